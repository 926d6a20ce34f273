"""Machine files: found by name or alias, read with their sources, checked against their facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError, unknown
from lowprec.perf.accelerator import Machine
from lowprec.perf.facts import Facts
from lowprec.perf.inherit import cited, merged
from lowprec.perf.names import Spelled, meant
from lowprec.spec import load_format, read_toml
from lowprec.spec.load import build

__all__ = ["Machine", "list_machines", "machine", "machine_aliases"]

_FOLDER = Path(__file__).parent / "machines"


def list_machines() -> list[str]:
    """Names of the machines that come with lowprec."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def machine(name: str | Path) -> Machine:
    """A machine by name, by an alias of it (case and punctuation, makers and boards aside), or from
    a .toml file.

    LowprecError names the file, the key and the nearest valid name.
    """
    text = str(name)
    return _file(Path(text)) if text.endswith(".toml") else _built_in(_named(text))


@cache
def _named(text: str, where: str = "") -> str:
    """The machine that `text` means: "NVIDIA H200 141GB HBM3e" is h200.

    LowprecError: none, several, or one with another memory.
    """
    if text in list_machines():  # without a look into all files
        return text
    aliases = machine_aliases()
    if (known := aliases.get(_plain(text))) is not None:
        return known
    spelled = Spelled.of(text)
    found = meant(spelled, aliases)
    fitting = [name for name in found if spelled.agrees(_capacities(_built_in(name)))]
    if len(fitting) == 1:
        return fitting[0]
    if found:
        sizes = (f"{name} has {_built_in(name).memory.capacity.value / 1e9:g} GB" for name in found)
        place = f"{where}: " if where else ""
        raise LowprecError(f"{place}unknown machine {text!r}: {', '.join(sizes)}")
    raise unknown("machine", text, list_machines(), where)


def _capacities(machine: Machine) -> list[float]:
    capacity = machine.memory.capacity
    return [capacity.value, *(other.value for other in capacity.disputed)]


@cache
def machine_aliases() -> dict[str, str]:
    """Machine by each of its aliases, in lower case with underscores; no two share one."""
    found = {_plain(name): name for name in list_machines()}
    for name in list_machines():
        for alias in read_toml(_FOLDER / f"{name}.toml").get("aliases", []):
            if found.setdefault(_plain(alias), name) != name:
                raise LowprecError(f"machines {found[_plain(alias)]} and {name}: both {alias!r}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


@cache
def _built_in(name: str) -> Machine:
    return _file(_FOLDER / f"{name}.toml")


def _file(path: Path) -> Machine:
    where = str(path)
    data, facts = _data(path, ())
    result = build(Machine, _formats(data, where), where)
    if result.name != path.stem:
        raise LowprecError(f"{path}: name: {result.name!r} differs from the file's {path.stem!r}")
    if facts is not None:
        build(Facts, facts, f"{path}: facts").check(result, f"{path}: facts")
    return result


def _data(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Any], Any]:
    """The file's content, cited and merged over the machine that it is based on, and its facts."""
    if path in seen:
        raise LowprecError(f"{path}: based_on: the machine is based on itself")
    data = read_toml(path)
    facts = data.pop("facts", None)
    base = data.get("based_on")
    data = cited(data, path, required=base is None)
    if base is None:
        return data, facts
    if not isinstance(base, str):
        raise LowprecError(f"{path}: based_on: expected the name of a machine, got {base!r}")
    below, _ = _data(_path(base, path), (*seen, path))
    # A file of ours is another machine, that shares most of its values with the one below.
    origin = None if path.parent == _FOLDER else below.get("based_on") or below["name"]
    named = {"name": data.get("name", path.stem), "based_on": origin}
    return merged(below, data | named, str(path)), facts


def _path(base: str, beside: Path) -> Path:
    if base.endswith(".toml"):
        return beside.parent / base
    return _FOLDER / f"{_named(base, f'{beside}: based_on')}.toml"


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
