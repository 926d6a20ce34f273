"""What `lowprec datapath` says of a machine that has the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowprec.cli.datapath import Chosen
    from lowprec.perf.estimates import Estimate
    from lowprec.perf.silicon import Swap
    from lowprec.spec import Datapath


def swapped(
    ours: Chosen,
    old: Datapath,
    machine: str,
    replace: str,
    *,
    area: float,
    power: float,
    keep: bool,
) -> Swap:
    """The machine with our unit for its datapath `replace`, whose unit is `old`, or beside it."""
    from lowprec.perf import machine as load_machine
    from lowprec.perf.silicon import swap

    element = None if ours.a == ours.path.inputs[0] else ours.a
    return swap(
        load_machine(machine),
        replace,
        old,
        ours.path,
        element=element,
        shared=ours.shared,
        area=area,
        power=power,
        keep=keep,
    )


def rates(swap: Swap) -> dict[str, Any]:
    """In ratios to the old unit, and in FLOP/s."""
    return {
        "lanes in its area": swap.lanes,
        "clock": swap.clock,
        **({"passes of a product": swap.passes} if swap.passes > 1 else {}),
        "held down by power": swap.power,
        "FLOP/s": swap.rate,
        "FLOP/s, low of 90 %": swap.low,
        "FLOP/s, high of 90 %": swap.high,
    }


def throughput(swap: Swap, machine: str, model: str, batch: int, recipe: str) -> dict[str, Any]:
    """Tokens per second of a workload's decode, with the unit and without."""
    from lowprec.perf import estimate, load_workload

    work = load_workload(model).at(batch=batch)
    after, before = (
        estimate(work, recipe, each, level="bound") for each in (swap.machine, machine)
    )
    return {
        "tokens/s/chip": after.tokens_per_second_per_chip,
        "tokens/s/chip as it is": before.tokens_per_second_per_chip,
        "products on": _reasons(after),
        "products as it is on": _reasons(before),
    }


def _reasons(found: Estimate) -> str:
    """What of the model runs on which datapath, and what has to be converted for it."""
    return "; ".join(dict.fromkeys(t.reason for t in found.terms if t.datapath and t.reason))
