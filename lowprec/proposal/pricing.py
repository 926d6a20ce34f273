"""Throughput of the format and its baseline on the study's machines: as they are, and with a
datapath for the format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf import Datapath, Estimate, Machine, Quantity, Scaling, estimate, load_workload
from lowprec.perf import machine as load_machine
from lowprec.perf.datapath import choose
from lowprec.perf.kernel.chip import chip_of
from lowprec.proposal.evidence import Evidence
from lowprec.proposal.subject import Proposal
from lowprec.spec import BlockFormat, Format, Quantizer, Recipe, Rule, Workload, load_format
from lowprec.spec import Datapath as Unit

PLANS = ("tp=1", "tp=2", "tp=4", "tp=8")
# The ends of the search for break-even points.
LEAST, MOST = 1 / 64, 64.0
WHAT_IF = "what-if of this proposal"


@dataclass(frozen=True)
class Job:
    """A forward pass of the study's, of a model whose workload ships with lowprec."""

    model: str
    phase: str
    batch: int
    tokens: int
    context: int

    @property
    def name(self) -> str:
        if self.phase == "decode":
            return f"decode, batch {self.batch}, context {self.context:,}"
        return f"{self.phase}, batch {self.batch}, {self.tokens:,} tokens"

    def workload(self) -> Workload:
        return load_workload(self.model).at(self.batch, self.tokens, self.context)


@dataclass(frozen=True)
class Quote:
    """Estimates at the kernel level under one plan. theirs, ours: the baseline and the format on
    the machine as it is; `path` runs the baseline there.

    what_if: both (theirs, ours) on a machine like it that takes either format as stored, at the
    rate of `path`. Its kernels are priced with the constants of the machine's family and not with
    those fitted to the machine itself, which know how well its kernels for today's formats are
    tuned: what differs is the format alone. None where no unit for the format is known.
    """

    job: Job
    machine: Machine
    plan: str
    path: Datapath
    theirs: Estimate
    ours: Estimate
    what_if: tuple[Estimate, Estimate] | None

    @property
    def gain(self) -> float | None:
        """Tokens per second of the format over the baseline's, under the what-if."""
        return _ratio(self.what_if) if self.what_if else None

    @property
    def gain_today(self) -> float:
        return _ratio((self.theirs, self.ours))


def _ratio(pair: tuple[Estimate, Estimate]) -> float:
    return pair[1].tokens_per_second / pair[0].tokens_per_second


@dataclass(frozen=True)
class Pricing:
    """quotes: for every machine and job that could be priced; refused: what could not, and why."""

    quotes: tuple[Quote, ...]
    refused: tuple[str, ...]
    pricer: Pricer | None = None

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(quote.job for quote in self.quotes))

    def of(self, job: Job) -> list[Quote]:
        return [quote for quote in self.quotes if quote.job == job]


def study_jobs(evidence: Evidence) -> list[Job]:
    """Of every model of the study the first pass of each phase that it names: the largest batch
    stands first in ours."""
    asked = evidence.plan.get("throughput") or {}
    first: dict[str, dict[str, Any]] = {}
    for grid in asked.get("workloads", ()):
        first.setdefault(grid["phase"], grid)
    return [
        Job(str(model), phase, max(grid["batch"]), grid["tokens"], grid["context"])
        for model in asked.get("models", ())
        for phase, grid in first.items()
    ]


def price(proposal: Proposal) -> Pricing:
    """Quotes for the machines and models of the study's [throughput]; none without a baseline."""
    asked = proposal.evidence.plan.get("throughput") or {}
    if proposal.baseline is None or not asked:
        return Pricing((), ())
    pricer = Pricer(proposal)
    quotes, refused = [], []
    for job in study_jobs(proposal.evidence):
        for name in asked["machines"]:
            try:
                quotes.append(pricer.quote(job, load_machine(name)))
            except LowprecError as error:
                refused.append(f"{job.model} on {name}: {error}")
    return Pricing(tuple(quotes), tuple(refused), pricer)


class Pricer:
    """Prices both formats as weights and activations of all linear layers but the head."""

    def __init__(self, proposal: Proposal) -> None:
        assert proposal.baseline is not None
        self.units = proposal.baseline.unit, proposal.ours.unit
        self.recipes = uniform(proposal.baseline.quantizer), uniform(proposal.ours.quantizer)
        self.baseline = proposal.baseline.format

    def quote(self, job: Job, machine: Machine) -> Quote:
        work = job.workload()
        plan, theirs = self._planned(work, machine)
        path = self._path(machine)
        ours = _estimate(work, self.recipes[1], machine, plan)
        return Quote(job, machine, plan, path, theirs, ours, self._what_if(work, machine, plan))

    def break_even_rate(self, quote: Quote) -> float | None:
        """The rate of the format's datapath, over that of the baseline's, from which on it is no
        slower under the what-if; 0 if it need not be there, None if no rate is enough."""
        work = quote.job.workload()

        def ratio(factor: float) -> float:
            found = self._what_if(work, quote.machine, quote.plan, factor)
            return _ratio(found) if found else 0.0

        return crossing(ratio)

    def break_even_bandwidth(self, quote: Quote) -> float | None:
        """The memory bandwidth, over the machine's, up to which the format is the faster one by a
        hundredth under the what-if; None if it is at every bandwidth, 0 if at none."""
        work = quote.job.workload()

        def slower(factor: float) -> float:
            machine = quote.machine.scaled("memory.bandwidth", factor)
            found = self._what_if(work, machine, quote.plan)
            return 1.01 / _ratio(found) if found else 2.0

        return crossing(slower)

    def _path(self, machine: Machine) -> Datapath:
        """The datapath that runs the baseline, as stored or converted."""
        fmt, dtype = self.baseline, load_format("bfloat16")
        assert isinstance(dtype, Format)
        return choose(machine.datapaths, fmt, fmt, dtype, machine.name).datapath

    def _what_if(
        self, work: Workload, machine: Machine, plan: str, factor: float = 1.0
    ) -> tuple[Estimate, Estimate] | None:
        """Both formats with datapaths of their own; `factor`: the format's rate over the other."""
        theirs, ours = self.units
        if ours is None or theirs is None:
            return None
        path = self._path(machine)
        # The same chip for both: what multiplies either element today makes way.
        elements = theirs.inputs[0], ours.inputs[0]
        others = [
            each
            for each in machine.datapaths
            if each.name == "vector" or not any(each.multiplies(e, e) for e in elements)
        ]
        # Where the model derives the cores from a datapath's rate and operands, from one of them.
        cores = chip_of(machine, path, elements[0].bits).cores
        pair = []
        for unit, recipe, speed in (
            (theirs, self.recipes[0], 1.0),
            (ours, self.recipes[1], factor),
        ):
            changed = {
                "name": f"{machine.name}_what_if",
                "based_on": None,
                "aliases": (),
                "cores": Quantity(value=cores, kind="derived", source=WHAT_IF),
                "datapaths": (*others, datapath(unit, path.rate.value * speed)),
            }
            pair.append(_estimate(work, recipe, machine.model_copy(update=changed), plan))
        return pair[0], pair[1]

    def _planned(self, work: Workload, machine: Machine) -> tuple[str, Estimate]:
        """The smallest plan that holds the baseline."""
        for plan in PLANS[:-1]:
            try:
                return plan, _estimate(work, self.recipes[0], machine, plan)
            except LowprecError:
                continue
        return PLANS[-1], _estimate(work, self.recipes[0], machine, PLANS[-1])


def _estimate(work: Workload, recipe: Recipe, machine: Machine, plan: str) -> Estimate:
    return estimate(work, recipe, machine, level="kernel", parallel=plan)


def crossing(ratio: Callable[[float], float]) -> float | None:
    """The least factor at which `ratio`, which grows with it, reaches 1, to a hundredth; 0 if it
    is there from the start, None if never."""
    low, high = LEAST, MOST
    if ratio(low) >= 1:
        return 0.0
    if ratio(high) < 1:
        return None
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if ratio(middle) >= 1 else (middle, high)
    return high


def uniform(quantizer: Quantizer) -> Recipe:
    """Weights and activations of all linear layers but the head."""
    rules = (
        Rule(match="lm_head", keep=True),
        Rule(match="*", weight=quantizer, activation=quantizer),
    )
    return Recipe(name=quantizer.format.name, rules=rules)


def datapath(unit: Unit, rate: float) -> Datapath:
    """What a machine file would say of the unit."""
    scalings = (
        tuple(Scaling(scale=f, block=unit.scaling.block) for f in unit.scaling.formats)
        if unit.scaling
        else ()
    )
    return Datapath(
        name="what_if",
        operands=unit.inputs,
        scalings=scalings,
        rate=Quantity(value=rate, kind="assumed", source=WHAT_IF),
    )


@dataclass(frozen=True)
class Validated:
    """What the throughput model's errors are on published measurements: shares of the value."""

    what: str
    points: int
    median: float
    p90: float
    coverage: float


@cache
def validated() -> tuple[Validated, ...]:
    """Errors on points that the constants of a prediction were fitted without, computed anew from
    the measurements that ship with lowprec."""
    from lowprec.perf.validation import speedups
    from lowprec.perf.validation.files import read_points
    from lowprec.perf.validation.table import errors, fitted_groups, left_out, rows
    from lowprec.spec import data_dir

    folder = data_dir("benchmarks/validation")
    matmuls = list(read_points(folder / "gemm.csv"))
    found = left_out(matmuls, "path") + left_out(matmuls, "machine")
    found += speedups.left_out(read_points(folder / "speedups.csv"), matmuls, fitted_groups())
    for name in ("attention", "collectives", "quantizers"):
        found += errors(name, read_points(folder / f"{name}.csv"))[0]
    return tuple(_rows(rows(found)))


_NAMES = {
    "matmuls, path left out": "time of a matmul, its format on that chip left out of the fit",
    "matmuls, machine left out": "time of a matmul, its chip left out of the fit",
    "speed-up over bf16, format left out": "speed-up of a format over bfloat16, format left out",
    "attention": "time of attention, fitted to these points",
    "collectives": "time of a collective, fitted to these points",
    "quantizers": "time of quantizing activations, fitted to these points",
}


def _rows(table: Any) -> Iterator[Validated]:
    for row in table:
        if row.by == "set":
            yield Validated(_NAMES[row.value], row.points, row.median, row.p90, row.coverage)


def scale_bits(fmt: Any) -> float:
    """Bits of scales per element."""
    if not isinstance(fmt, BlockFormat):
        return 0.0
    return fmt.bits_per_element - fmt.element.bits
