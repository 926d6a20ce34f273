"""Training steps: what the backward pass multiplies, pipelines, copies, and published runs."""

from __future__ import annotations

import pytest

from lowprec.errors import LowprecError
from lowprec.perf import machine
from lowprec.perf.backward import backward, casts
from lowprec.perf.footprint import Schedule
from lowprec.perf.grouping import grouped
from lowprec.perf.parallel import Parallel
from lowprec.perf.sharding import share
from lowprec.perf.training import Step, training_step
from lowprec.perf.validation.megatron import MODELS
from lowprec.spec import Attention, Matmul, Workload, load_format, load_recipe
from tests.perf.workloads import matmul, symbolic, workload

BF16 = load_format("bfloat16")
KEEP = "*: keep"
FP8 = (
    "*: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/amax:tensor "
    "input_gradient.gradient=float8_e5m2/amax:tensor "
    "weight_gradient.gradient=float8_e5m2/amax:tensor"
)


def pass_of(tokens: int = 2048) -> Workload:
    return symbolic(layers=8).at(batch=1, tokens=tokens, context=0, logits="all")


def step(recipe: str = KEEP, parallel: str = "dp=1", **how: object) -> Step:
    schedule = Schedule.model_validate(how)
    return training_step(
        pass_of(), recipe, "h100_sxm", parallel=parallel, schedule=schedule, level="bound"
    )


def test_backward_is_twice_the_matmuls_and_two_and_a_half_times_the_attention() -> None:
    work = pass_of()
    part = share(grouped(work, load_recipe(KEEP)), 1, Parallel(), BF16)  # type: ignore[arg-type]

    def flops(kind: type, groups: object) -> float:
        return sum(g.count * g.op.flops for g in groups if isinstance(g.op, kind))  # type: ignore[attr-defined]

    back = backward(part).groups
    assert flops(Matmul, back) == 2 * flops(Matmul, part.groups)
    assert flops(Attention, back) == pytest.approx(2.5 * flops(Attention, part.groups))


def test_gradients_have_formats_of_their_own() -> None:
    work = pass_of()
    part = share(grouped(work, load_recipe(FP8)), 1, Parallel(), BF16)  # type: ignore[arg-type]
    rules = {g.path: g.rule for g in backward(part).groups if isinstance(g.op, Matmul)}
    dx, dw = (rules[f"layers.*.mlp.up_proj {end}"] for end in ("dx", "dw"))
    assert dx is not None
    assert dw is not None
    assert dx.activation.format.element.name == "float8_e5m2"  # type: ignore[union-attr]
    assert dx.weight.format.element.name == "float8_e4m3fn"  # type: ignore[union-attr]
    assert dw.weight.format.element.name == "float8_e4m3fn"  # type: ignore[union-attr]


def test_the_parts_are_the_whole() -> None:
    found = step(parallel="tp=2,pp=2,dp=2,microbatches=8", recompute="full")
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.tokens == 2048 * 8 * 2
    assert found.chips == 8
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
    assert 0 < found.utilisation < 1
    assert found.low <= found.seconds <= found.high


def test_recomputing_more_takes_longer_and_keeps_less() -> None:
    found = [step(recompute=r) for r in ("none", "selective", "operations", "full")]
    seconds = [each.seconds for each in found]
    assert seconds == sorted(seconds)
    assert found[-1].parts["recompute"] <= found[-1].parts["forward"]
    assert found[-1].chip_bytes < found[2].chip_bytes < found[0].chip_bytes


def test_the_bubble_is_the_stages_waited_for() -> None:
    few, many, chunked = (
        step(parallel=f"pp=4,microbatches={count}", interleave=chunks)
        for count, chunks in ((4, 1), (16, 1), (16, 2))
    )
    for found, count in ((few, 4), (many, 16)):
        busy = sum(found.parts[name] for name in ("forward", "backward", "stages"))
        assert found.parts["bubble"] == pytest.approx(3 / count * busy)
    busy = sum(chunked.parts[name] for name in ("forward", "backward", "stages"))
    assert chunked.parts["bubble"] == pytest.approx(3 / 2 / 16 * busy)


def test_copies_are_hidden_as_far_as_the_passes_last() -> None:
    shown, hidden = (
        step(parallel="dp=8", sharding="parameters", overlap=overlap) for overlap in (0.0, 1.0)
    )
    assert shown.parts["copies"] > 0
    assert hidden.parts["copies"] < shown.parts["copies"]
    narrow = step(parallel="dp=8", sharding="parameters", overlap=0.0, gather="float8_e4m3fn")
    assert narrow.parts["copies"] < shown.parts["copies"]
    assert step(parallel="dp=8").chip_bytes < step(parallel="dp=8", sharding="none").chip_bytes
    assert step(parallel="dp=8").parts["optimizer"] == pytest.approx(step().parts["optimizer"] / 8)


def test_narrow_formats_cast_the_weights_and_multiply_faster() -> None:
    big = symbolic(layers=2, width=8192).at(batch=1, tokens=8192, context=0, logits="all")
    plain, fp8 = (training_step(big, r, "h100_sxm", level="bound") for r in (KEEP, FP8))
    assert plain.parts["casts"] == 0
    assert fp8.parts["casts"] > 0
    assert fp8.seconds < plain.seconds


def test_a_step_that_does_not_fit_says_what_is_missing() -> None:
    small = machine("h100_sxm").what_if("memory.capacity", 1e9)
    with pytest.raises(LowprecError, match=r"a step needs .* too much; more tp or pp"):
        training_step(pass_of(), KEEP, small, level="bound")


# Seconds of an iteration: table 5 of arXiv 2205.05198, full recomputation, then sequence parallel
# with selective recomputation.
MEASURED = {
    "Megatron-22B": (1.42, 1.10),
    "GPT3-175B": (18.13, 13.75),
    "Turing-530B": (49.05, 37.83),
    "Megatron-1T": (94.42, 71.49),
}


@pytest.mark.parametrize("name", MEASURED)
def test_no_published_step_beats_the_bound_and_none_is_far_from_it(name: str) -> None:
    model = MODELS[name]
    for full, seconds in zip((True, False), MEASURED[name], strict=True):
        found = training_step(
            model.workload(), KEEP, "a100", parallel=model.parallel(not full),
            schedule=model.schedule(full), level="bound",
        )  # fmt: skip
        assert 0.7 * seconds < found.seconds < seconds
        assert found.chip_bytes < 80e9


def test_scales_along_the_summed_axis_are_made_anew_for_the_backward_pass() -> None:
    def moved(recipe: str) -> float:
        work = workload(matmul(m=512, n=1024, k=2048))
        part = share(grouped(work, load_recipe(recipe)), 1, Parallel(), BF16)  # type: ignore[arg-type]
        return casts(part, BF16)  # type: ignore[arg-type]

    gradients = "input_gradient.gradient={0} weight_gradient.gradient={0}"
    tensor, row = (
        moved(f"*: weight={fp8} activation={fp8} " + gradients.format(fp8))
        for fp8 in ("float8_e4m3fn/amax:tensor", "float8_e4m3fn/amax:channel")
    )
    weight, activation = 1024 * 2048, 512 * 2048
    assert tensor == pytest.approx(3 * weight, rel=0.01)
    assert row == pytest.approx(3 * (2 * weight + activation), rel=0.01)
    assert moved("*: keep") == 0
