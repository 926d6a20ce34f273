"""Machine: one accelerator as data, every value with its kind and source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError, unknown
from lowprec.perf.datapath import Datapath
from lowprec.perf.quantity import Quantity
from lowprec.spec import Spec, load_format, read_toml
from lowprec.spec.load import build

_FOLDER = Path(__file__).parent / "machines"


class Memory(Spec):
    """Main memory of one chip, in bytes and bytes/s; `cache` is the last level that all cores
    share, or the on-chip memory that software manages, in bytes, and `cache_bandwidth` what it
    gives to all cores together."""

    capacity: Quantity
    bandwidth: Quantity
    cache: Quantity | None = None
    cache_bandwidth: Quantity | None = None


class Core(Spec):
    """One of the `cores`: bytes of its shared memory (LDS, scratchpad) and of its registers."""

    shared_memory: Quantity | None = None
    registers: Quantity | None = None


class ScaleUp(Spec):
    """Links between the chips of one domain: bytes/s of one chip in one direction over all its
    links, the number of chips, and seconds of one message between two of them.

    pair: bytes/s that two chips exchange at most, where that is less (a mesh of direct links).
    topology: "switch", "mesh" (every pair has a link of its own) or "torus". reduces: whether the
    switch adds up what it forwards (in-network reduction).
    """

    bandwidth: Quantity
    domain: Quantity | None = None
    latency: Quantity | None = None
    pair: Quantity | None = None
    topology: Literal["switch", "mesh", "torus"] | None = None
    reduces: bool = False


class ScaleOut(Spec):
    """The network between domains: bytes/s of one chip in one direction, and seconds of one
    message."""

    bandwidth: Quantity
    latency: Quantity | None = None


class Tco(Spec):
    """Cost of ownership of one chip: US dollars per hour, rented, and watts at the wall with its
    share of host, network and cooling."""

    per_hour: Quantity | None = None
    watts: Quantity | None = None


class Machine(Spec):
    """One chip (one package where a package is what one buys), dense rates, SI base units.

    What a source does not say is left out, never guessed; what is guessed says so.
    family: machines of one family run one generation of kernels ("hopper", "cdna3"): what was
    measured on one carries over to the others first. power: watts of the chip at most.
    launch: seconds that every kernel costs beside its work.
    datapaths: one is called "vector": the general units, which convert between formats.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    title: Annotated[str, Field(min_length=3)]
    vendor: Annotated[str, Field(min_length=2)]
    family: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)] | None = None
    note: str | None = None
    memory: Memory
    core: Core | None = None
    cores: Quantity | None = None
    clock: Quantity | None = None
    power: Quantity | None = None
    scale_up: ScaleUp | None = None
    scale_out: ScaleOut | None = None
    tco: Tco | None = None
    launch: Quantity
    datapaths: Annotated[tuple[Datapath, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names(self) -> Machine:
        names = [path.name for path in self.datapaths]
        if len(set(names)) != len(names):
            raise ValueError(f"two datapaths have one name: {', '.join(sorted(names))}")
        if "vector" not in names:
            raise ValueError("expected a datapath called 'vector': the units that convert formats")
        return self

    @property
    def vector(self) -> Datapath:
        """The general units."""
        return next(path for path in self.datapaths if path.name == "vector")


def list_machines() -> list[str]:
    """Names of the machines that come with lowprec."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def machine(name: str | Path) -> Machine:
    """A machine by name, or from a .toml file.

    LowprecError names the file, the key and the nearest valid name.
    """
    text = str(name)
    if text.endswith(".toml"):
        return _file(Path(text))
    names = list_machines()
    if text not in names:
        # "h100" means h100_sxm and not h200, which has more letters in common.
        raise unknown("machine", text, [n for n in names if n.startswith(text)] or names)
    return _built_in(text)


@cache
def _built_in(name: str) -> Machine:
    return _file(_FOLDER / f"{name}.toml")


def _file(path: Path) -> Machine:
    """Reads the file with its `[sources]`: a value's `source` is the name of one of those."""
    data = read_toml(path)
    sources = data.pop("sources", None)
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise LowprecError(f"{path}: sources: expected a table of name = 'where it was read'")
    used: set[str] = set()
    data = {key: _cite(value, sources, used, f"{path}: {key}") for key, value in data.items()}
    for name in sources.keys() - used:
        raise LowprecError(f"{path}: sources: {name!r} is cited by no value")
    result = build(Machine, _formats(data, str(path)), str(path))
    if result.name != path.stem:
        raise LowprecError(f"{path}: name: {result.name!r} differs from the file's {path.stem!r}")
    return result


def _cite(value: Any, sources: Mapping[str, str], used: set[str], where: str) -> Any:
    """`value` with every `source` replaced by the text it names."""
    if isinstance(value, list):
        return [_cite(item, sources, used, f"{where}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    cited = {k: _cite(v, sources, used, f"{where}.{k}") for k, v in value.items()}
    if isinstance(name := value.get("source"), str):
        if name not in sources:
            raise unknown("source", name, sources, f"{where}.source")
        used.add(name)
        cited["source"] = sources[name]
    return cited


def _formats(data: dict[str, Any], where: str) -> dict[str, Any]:
    """`data` with the datapaths' formats in place of their names."""
    paths = data.get("datapaths")
    if not isinstance(paths, list):
        return data
    return data | {
        "datapaths": [_datapath(path, f"{where}: datapaths.{i}") for i, path in enumerate(paths)]
    }


def _datapath(path: Any, where: str) -> Any:
    if not isinstance(path, Mapping):
        return path
    loaded = dict(path)
    if isinstance(operands := path.get("operands"), list):
        loaded["operands"] = [_scalar(fmt, f"{where}.operands") for fmt in operands]
    if isinstance(scalings := path.get("scalings"), list):
        loaded["scalings"] = [
            s | {"scale": _scalar(s["scale"], f"{where}.scalings")}
            if isinstance(s, dict) and "scale" in s
            else s
            for s in scalings
        ]
    return loaded


def _scalar(fmt: Any, where: str) -> Any:
    return load_format(fmt, where) if isinstance(fmt, str) else fmt
