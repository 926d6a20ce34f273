"""Whether a plan fits into the chips' memory, and if not, what is missing and what would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.perf.grouping import Group, kv_bytes, table_bytes, weight_bytes
from lowprec.perf.hardware import Machine
from lowprec.perf.parallel import Parallel, head_ways
from lowprec.perf.roofline import nbytes
from lowprec.perf.sharding import Share, share
from lowprec.spec import Attention, Embedding, Format, Matmul

MOST_CHIPS = 1 << 12


@dataclass(frozen=True)
class Need:
    """Bytes on the fullest chip. activations: operands and result of the largest matmul, and the
    residual stream twice; all else is reused."""

    weights: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        return sum(size for _, size in self.parts())

    def parts(self) -> tuple[tuple[str, int], ...]:
        return (
            ("weights", self.weights),
            ("KV cache", self.cache),
            ("activations", self.activations),
        )


def need(part: Share, plan: Parallel, dtype: Format) -> Need:
    """What `part`, one chip's share under `plan`, has to hold; stages are taken as equal."""
    return Need(
        weights=-(-weight_bytes(part.groups, dtype) // plan.pp)
        + table_bytes(part.groups, dtype) // plan.tp,
        cache=-(-kv_bytes(part.groups, dtype) * plan.microbatches // plan.pp),
        activations=_activations(part.groups, dtype),
    )


def _activations(groups: Sequence[Group], dtype: Format) -> int:
    largest = residual = 0
    for group in groups:
        if isinstance(op := group.op, Matmul):
            largest = max(largest, op.batch * op.m * (op.n + op.k))
        elif isinstance(op, Embedding):
            residual = op.rows * op.width
    return nbytes(dtype, (largest + 2 * residual,))


def check(
    found: Need,
    machine: Machine,
    plan: Parallel,
    groups: Sequence[Group],
    batch: int,
    dtype: Format,
) -> None:
    """LowprecError if `machine` cannot hold `found`: how much is missing, and the smallest plan
    that fits."""
    capacity = machine.memory.capacity.value
    if found.total <= capacity:
        return
    fitting = smallest(machine, groups, batch, dtype)
    advice = (
        f"the smallest plan that fits: {fitting.spell()}"
        if fitting
        else (f"no plan of up to {MOST_CHIPS} chips fits")
    )
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in found.parts())
    raise LowprecError(
        f"machine {machine.name!r}: parallel {plan.spell()}: needs {gigabytes(found.total)} per "
        f"chip ({parts}) of {gigabytes(capacity)}: {gigabytes(found.total - capacity)} too much; "
        f"{advice}"
    )


def smallest(
    machine: Machine, groups: Sequence[Group], batch: int, dtype: Format
) -> Parallel | None:
    """The plan of the fewest chips that fits: tensor parallel within the scale-up domain, and
    experts over the same chips; then stages."""
    for plan in _plans(machine, groups):
        if need(share(groups, batch, plan, dtype), plan, dtype).total <= (
            machine.memory.capacity.value
        ):
            return plan
    return None


def _plans(machine: Machine, groups: Sequence[Group]) -> Iterator[Parallel]:
    ways = [set(head_ways(g.op)) for g in groups if isinstance(g.op, Attention)]
    experts = [g.op.experts for g in groups if isinstance(g.op, Matmul) and g.op.experts > 1]
    domain = machine.scale_up.domain if machine.scale_up else None
    widest = int(domain.value) if domain else 1
    powers = [1 << i for i in range(widest.bit_length())]
    fitting = [tp for tp in powers if all(tp in each for each in ways)]
    chips = 1
    while chips <= MOST_CHIPS:
        tp = max(tp for tp in fitting if tp <= chips)
        ep = tp if experts and all(count % tp == 0 for count in experts) else 1
        yield Parallel(tp=tp, pp=chips // tp, ep=ep)
        chips *= 2


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"
