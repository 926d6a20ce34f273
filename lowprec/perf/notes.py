"""What a reader has to know before quoting an estimate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lowprec.perf.hardware import Machine
from lowprec.perf.price import Level


class Used(Protocol):
    """What is asked of a term."""

    @property
    def datapath(self) -> str | None: ...
    @property
    def native(self) -> bool: ...


def notes(machine: Machine, level: Level, split: int, terms: Iterable[Used]) -> tuple[str, ...]:
    """split: chips of an ideal split, 1 where there is none."""
    terms = tuple(terms)
    found = _bound(machine) if level == "bound" else []
    if split > 1:
        found.append(
            f"does not fit one chip: priced as an ideal split over {split} chips, without "
            "communication"
        )
    if level == "bound" and any(not term.native for term in terms):
        found.append(
            "dequantize: 1 operation per element and 1 per block-scaled one on the vector units, "
            f"at {machine.vector.rate.value / 2:.3g}/s ({machine.vector.rate.kind}), not "
            "overlapped; an assumption"
        )
    used = {term.datapath for term in terms}
    found += [
        f"{path.name}: {path.note}" for path in machine.datapaths if path.note and path.name in used
    ]
    return tuple(found)


def _bound(machine: Machine) -> list[str]:
    return [
        "datasheet bound: full rate and full bandwidth; measured speed is lower",
        f"launch: {machine.launch.value * 1e6:g} us per kernel, {machine.launch.kind}",
        "memory needed: weights of the matmuls and KV cache; no activations, no embedding table",
    ]
