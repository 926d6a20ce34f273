"""What no kernel can do, and what must never make one slower."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lowprec.perf import Machine, list_machines, machine
from lowprec.perf.kernel.matmul import product
from lowprec.perf.kernel.plan import plan_of
from lowprec.perf.price import price
from lowprec.spec import Attention, Format, Matmul, Rule, Vector, load_format, load_recipe

BF16 = load_format("bfloat16")
assert isinstance(BF16, Format)
RECIPES = (
    "*: keep",
    "*: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/amax:tensor",
    "*: weight=float8_e4m3fn_128x128/amax activation=float8_e4m3fn_1x128/amax",
    "*: weight=int8/amax:channel activation=int8/amax:channel",
    "*: weight=mxfp4/floor activation=mxfp8_e4m3/floor",
    "*: weight=nvfp4/amax activation=nvfp4/amax",
    "*: weight=mxfp4/floor",
    "*: weight=int4/amax:channel",
)
RULES: tuple[Rule, ...] = tuple(load_recipe(text).rules[0] for text in RECIPES)
MACHINES = ("a100", "h100_sxm", "b200", "mi300x", "mi355x", "gaudi3", "tpu_v6e", "rubin_r200")
SIZES = st.integers(1, 1 << 16)
MATMULS = st.builds(
    Matmul,
    kind=st.just("matmul"),
    path=st.just("a"),
    m=SIZES,
    n=SIZES,
    k=SIZES,
    batch=st.integers(1, 4),
)
ATTENTION = st.builds(
    lambda batch, kv, shared, queries, behind, dim: Attention(
        kind="attention",
        path="a",
        batch=batch,
        heads=kv * shared,
        kv_heads=kv,
        queries=queries,
        keys=queries + behind,
        head_dim=dim,
        value_dim=dim,
        causal=True,
    ),
    st.integers(1, 64),
    st.integers(1, 16),
    st.integers(1, 64),
    st.sampled_from([1, 1, 2, 64, 1000, 8192]),
    st.sampled_from([0, 1, 127, 4096, 100_000]),
    st.sampled_from([64, 128, 256]),
)
OPS = st.one_of(
    MATMULS,
    ATTENTION,
    st.builds(
        Vector,
        kind=st.just("vector"),
        path=st.just("a"),
        name=st.just("silu"),
        read=SIZES,
        written=SIZES,
    ),
)


def faster(chip: Machine, **factors: float) -> Machine:
    """`chip` with its bandwidth, or the rates of all its datapaths, times a factor."""
    changes: dict[str, object] = {}
    if (f := factors.get("bandwidth")) is not None:
        bandwidth = chip.memory.bandwidth.model_copy(
            update={"value": f * chip.memory.bandwidth.value}
        )
        changes["memory"] = chip.memory.model_copy(update={"bandwidth": bandwidth})
    if (f := factors.get("rate")) is not None:
        changes["datapaths"] = tuple(
            path.model_copy(
                update={"rate": path.rate.model_copy(update={"value": f * path.rate.value})}
            )
            for path in chip.datapaths
        )
    return chip.model_copy(update=changes)


@given(OPS, st.sampled_from(RULES), st.sampled_from(MACHINES))
def test_never_faster_than_the_work_itself(op: Matmul | Attention, rule: Rule, name: str) -> None:
    chip = machine(name)
    bound, kernel = (price(op, rule, chip, BF16, level) for level in ("bound", "kernel"))
    assert kernel.bytes == bound.bytes
    assert kernel.flops == bound.flops
    least = max(bound.seconds.compute, bound.seconds.memory)
    assert kernel.seconds.total >= least * (1 - 1e-9)
    assert 0 < kernel.low <= kernel.high < math.inf


@given(MATMULS, st.sampled_from(RULES), st.sampled_from(MACHINES), st.floats(1, 4))
def test_bandwidth_and_rate_never_hurt(op: Matmul, rule: Rule, name: str, factor: float) -> None:
    chip = machine(name)
    here = price(op, rule, chip, BF16, "kernel").seconds.total
    for what in ("bandwidth", "rate"):
        better = price(op, rule, faster(chip, **{what: factor}), BF16, "kernel")
        assert better.seconds.total <= here * (1 + 1e-9), what


@given(
    MATMULS, st.sampled_from(RULES), st.sampled_from(list_machines()), st.floats(1, 20), st.data()
)
def test_a_faster_datapath_never_hurts(
    op: Matmul, rule: Rule, name: str, factor: float, data: st.DataObject
) -> None:
    """Nor on machines whose large cores count as more of them then, nor where none is counted."""
    chip = machine(name)
    rates = [path for path in chip.parameters() if path.endswith((".rate", ".bandwidth"))]
    better = chip.scaled(data.draw(st.sampled_from(rates)), factor)
    here, there = (price(op, rule, c, BF16, "kernel").seconds.total for c in (chip, better))
    assert there <= here * (1 + 1e-9)


@given(MATMULS, st.sampled_from(RULES), st.sampled_from(["a100", "mi300x"]), st.floats(1, 4))
def test_a_faster_cache_never_hurts(op: Matmul, rule: Rule, name: str, factor: float) -> None:
    chip = machine(name)
    better = chip.scaled("memory.cache_bandwidth", factor)
    here, there = (price(op, rule, c, BF16, "kernel").seconds.total for c in (chip, better))
    assert there <= here * (1 + 1e-9)


def test_a_matmul_waits_for_the_cache() -> None:
    chip = machine("mi300x")
    op = Matmul(kind="matmul", path="a", m=256, n=4096, k=4096)
    slower = chip.scaled("memory.cache_bandwidth", 0.25)
    here, there = (price(op, RULES[0], c, BF16, "kernel").seconds.total for c in (chip, slower))
    assert there > 1.5 * here


@given(MATMULS, st.sampled_from(RULES))
@settings(max_examples=50)
def test_more_rows_never_take_less(op: Matmul, rule: Rule) -> None:
    chip = machine("b200")
    more = op.model_copy(update={"m": op.m * 2})
    times = [price(each, rule, chip, BF16, "kernel").seconds.total for each in (op, more)]
    # A tile that is half empty may be another one, so that some rows more can be as fast.
    assert times[1] >= times[0] * 0.999


@pytest.mark.parametrize("rule", RULES[1:6])
def test_bytes_are_those_of_the_stored_tensors(rule: Rule) -> None:
    torch = pytest.importorskip("torch")
    import lowprec as lp

    m, n, k = 48, 96, 512
    op = Matmul(kind="matmul", path="a", m=m, n=n, k=k)
    x, w = torch.randn(m, k), torch.randn(n, k)
    assert rule.activation is not None
    assert rule.weight is not None
    stored = lp.quantize(x, rule.activation).nbytes + lp.quantize(w, rule.weight).nbytes
    assert price(op, rule, machine("b200"), BF16, "kernel").bytes == stored + 2 * m * n


def test_experts_by_their_rows_take_as_long_as_alone() -> None:
    op = Matmul(kind="matmul", path="a", m=4096, n=4096, k=4096)
    one = product(op, BF16, BF16, machine("h100_sxm"), BF16)
    grouped = product(op, BF16, BF16, machine("h100_sxm"), BF16, rows=((4096, 1),))
    assert grouped.seconds == one.seconds
    skewed = product(op, BF16, BF16, machine("h100_sxm"), BF16, rows=((4000, 1), (1, 96)))
    assert skewed.seconds.total > one.seconds.total


def test_a_quantizer_is_a_kernel_of_its_own() -> None:
    rule = RULES[1]
    assert rule.activation is not None
    assert rule.weight is not None
    op = Matmul(kind="matmul", path="a", m=8192, n=8192, k=8192)
    chip = machine("b200")
    args = (op, rule.activation.format, rule.weight.format, chip, BF16)
    inside, before = product(*args), product(*args, quantized=True)
    read_twice_and_written = 8192 * 8192 * 5 / 7.7e12
    assert inside.seconds.quantize > read_twice_and_written
    assert before.seconds.quantize == 0
    assert inside.seconds.total == pytest.approx(
        before.seconds.total + inside.seconds.quantize, rel=1e-12
    )


@pytest.mark.parametrize(("chip", "reach"), [("a100", 1.0), ("h100_sxm", 0.63)])
def test_converted_weights_are_in_registers(chip: str, reach: float) -> None:
    """Where the fastest instruction takes its operands from shared memory, another one runs."""
    op = Matmul(kind="matmul", path="a", m=8192, n=8192, k=8192)
    found = price(op, RULES[6], machine(chip), BF16, "kernel")
    assert found.choice is not None
    assert not found.choice.native
    done = op.flops / found.seconds.total / found.choice.datapath.rate.value
    assert 0.7 * reach < done < reach


def test_paths_are_named_by_what_the_datapath_does() -> None:
    def path(recipe: str, chip: str) -> str:
        rule = load_recipe(recipe).rules[0]
        x = rule.activation.format if rule.activation else BF16
        w = rule.weight.format if rule.weight else BF16
        return plan_of(x, w, machine(chip), BF16).path

    assert path(RECIPES[0], "b200") == "plain/16"
    assert path(RECIPES[1], "b200") == "tensor/fp8"
    assert path(RECIPES[1], "a100") == "weight/8"
    assert path(RECIPES[2], "h100_sxm") == "block/fp8"
    assert path(RECIPES[3], "h100_sxm") == "token/int8"
    assert path(RECIPES[5], "b200") == "mx/fp4"
    assert path(RECIPES[6], "b200") == "weight/4"
