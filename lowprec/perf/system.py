"""System: chips of one machine in nodes, racks and pods, with the networks between them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from lowprec.errors import LowprecError, unknown
from lowprec.perf import parameter
from lowprec.perf.accelerator import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.inherit import cited, merged
from lowprec.perf.quantity import Quantity
from lowprec.perf.topology import Level
from lowprec.spec import Spec, read_toml
from lowprec.spec.load import build

_FOLDER = Path(__file__).parent / "systems"


class Rack(Spec):
    """What is powered and cooled together: its chips, and watts of the whole at most."""

    chips: Annotated[int, Field(ge=1)]
    power: Quantity


class System(Spec):
    """Chips of one machine and the networks that join them, from the inner to the outer.

    host: chips that share one host. front_end: bytes/s of one host in one direction to storage and
    clients: ingest, checkpoints, KV caches that move. overhead: watts at the wall over the watts
    of the chips, hosts, network and cooling included.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=60)]
    title: Annotated[str, Field(min_length=3)]
    machine: Machine
    levels: tuple[Level, ...]
    host: Annotated[int, Field(ge=1)] = 8
    front_end: Quantity | None = None
    rack: Rack | None = None
    overhead: Quantity | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _order(self) -> System:
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise ValueError(f"levels: two have one name: {', '.join(names)}")
        if any(level.size is None for level in self.levels[:-1]):
            raise ValueError("levels: only the outermost may be of any size")
        return self

    @property
    def chips(self) -> float:
        """How many there are; infinite where the outermost level is of any size."""
        sizes = [math.inf if level.size is None else level.size for level in self.levels]
        return math.prod(sizes)

    def holds(self, machine: Machine) -> bool:
        """Whether its chips are `machine`, or one of the two is a what-if of the other."""
        here = {self.machine.name, self.machine.based_on} - {None}
        return machine.name in here or machine.based_on in here

    @classmethod
    def of(cls, machine: Machine) -> System:
        """One machine's links as its file has them: the scale-up domain, and beyond it the
        scale-out adapters in a fat tree of any size without taper (an assumption)."""
        levels = []
        if (up := machine.scale_up) and up.domain and up.domain.value > 1:
            size = round(up.domain.value)
            shape = up.topology or "switch"
            levels.append(
                Level(
                    name="scale_up",
                    size=size,
                    topology=shape,
                    dimensions=_cube(size) if shape == "torus" else (),
                    bandwidth=up.bandwidth,
                    latency=up.latency,
                    pair=up.pair,
                    reduces=up.reduces,
                )
            )
        if out := machine.scale_out:
            levels.append(
                Level(
                    name="scale_out",
                    size=None,
                    topology="fat_tree",
                    bandwidth=out.bandwidth,
                    latency=out.latency,
                )
            )
        return cls(name=machine.name, title=machine.title, machine=machine, levels=tuple(levels))

    def parameters(self) -> dict[str, Quantity]:
        """Every quantity of the system, by the path that `what_if` takes."""
        return dict(parameter.walk(self))

    def what_if(self, path: str, value: float) -> System:
        """This system with one quantity replaced ("levels.rack.bandwidth", "machine.clock")."""
        return parameter.put(self, path, value, f"system {self.name!r}")


def list_systems() -> list[str]:
    """Names of the systems that come with lowprec."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_system(name: str | Path) -> System:
    """A system by name or from a .toml file; a machine's name or alias is a system too, by
    `System.of`. LowprecError names the file, the key and the nearest valid name."""
    text = str(name)
    if text.endswith(".toml"):
        path = Path(text)
        data = read_toml(path)
        # A machine's file has datapaths or says what machine it changes; a system's has levels.
        return (
            _file(path) if "levels" in data or _is_system(data) else System.of(load_machine(path))
        )
    if text in list_systems():
        return _built_in(text)
    try:
        return System.of(load_machine(text))
    except LowprecError:
        raise unknown("system", text, list_systems()) from None


def _is_system(data: dict[str, Any]) -> bool:
    return "machine" in data or data.get("based_on") in list_systems()


@cache
def _built_in(name: str) -> System:
    return _file(_FOLDER / f"{name}.toml")


def _file(path: Path) -> System:
    data = _data(path)
    if isinstance(chip := data.get("machine"), str):
        data["machine"] = load_machine(path.parent / chip if chip.endswith(".toml") else chip)
    return build(System, data, str(path))


def _data(path: Path) -> dict[str, Any]:
    """The file's content, merged over that of the system that it is based on."""
    data = read_toml(path)
    base = data.pop("based_on", None)
    data = cited(data, path, required=base is None)
    if base is None:
        return data
    if base not in list_systems():
        raise unknown("system", str(base), list_systems(), f"{path}: based_on")
    below = _data(_FOLDER / f"{base}.toml")
    return merged(below, {"name": path.stem} | data, str(path))


def _cube(size: int) -> tuple[int, ...]:
    """Dimensions of a torus, as equal as three (from 512 chips on) or two factors can be."""
    axes = 3 if size >= 512 else 2
    dimensions = []
    for left in range(axes, 0, -1):
        root = round(size ** (1 / left))
        side = min((d for d in range(1, size + 1) if size % d == 0), key=lambda d: abs(d - root))
        dimensions.append(side)
        size //= side
    return tuple(sorted(dimensions))
