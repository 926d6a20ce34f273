"""Machine: one accelerator as data, every value with its kind and source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lowprec.perf import parameter
from lowprec.perf.datapath import Datapath
from lowprec.perf.quantity import Quantity
from lowprec.spec import Spec


class Memory(Spec):
    """Main memory of one chip, in bytes and bytes/s; `cache` is the last level that all cores
    share, or the on-chip memory that software manages, in bytes, and `cache_bandwidth` what all
    cores together get of the last cache (what several share by multicast counts for each)."""

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
    aliases: what else the chip is called; `machine()` finds it by those. based_on: the machine
    that this one is a what-if of; measured constants are looked up under that name.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)]
    title: Annotated[str, Field(min_length=3)]
    vendor: Annotated[str, Field(min_length=2)]
    family: Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=40)] | None = None
    aliases: tuple[Annotated[str, Field(min_length=2)], ...] = ()
    based_on: str | None = None
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

    def parameters(self) -> dict[str, Quantity]:
        """Every quantity that the machine has, by the path that `what_if` takes."""
        return dict(parameter.walk(self))

    def what_if(self, path: str, value: float) -> Machine:
        """This machine with one quantity replaced ("memory.bandwidth", "datapaths.bf16.rate"), in
        SI base units. Nothing follows from it: `cores` changes no rate.

        LowprecError names the nearest valid path.
        """
        changed = parameter.put(self, path, value, f"machine {self.name!r}")
        return changed.model_copy(update={"based_on": self.based_on or self.name, "aliases": ()})

    def scaled(self, path: str, factor: float) -> Machine:
        """This machine with one quantity times `factor`."""
        return self.what_if(
            path, parameter.get(self, path, f"machine {self.name!r}").value * factor
        )
