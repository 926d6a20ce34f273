"""Plans: what a chip runs and sends, what it holds, and that nothing gets better for free."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.perf import Machine, Quantity, estimate, machine
from lowprec.perf.grouping import grouped
from lowprec.perf.parallel import Parallel
from lowprec.perf.sharding import Share, share
from lowprec.perf.system import System
from lowprec.spec import Attention, Embedding, Matmul, Vector, Workload, load_format, load_recipe
from tests.perf.workloads import decoder, matmul, workload

BF16 = load_format("bfloat16")
KEEP = "*: keep"


def split(work: Workload, plan: Parallel) -> Share:
    return share(grouped(work, load_recipe(KEEP)), work.batch, plan, BF16)  # type: ignore[arg-type]


def by_path(part: Share) -> dict[str, Any]:
    return {group.path: group.op for group in part.groups}


def moe(tokens: int = 64, layers: int = 2) -> Workload:
    """Attention, a router and eight experts, two for each token."""
    ops: list[object] = [Embedding(kind="embedding", path="embed", rows=tokens, width=512)]
    for i in range(layers):
        name = f"layers.{i}"
        ops += [
            matmul(tokens, 1536, 512, f"{name}.attn.qkv_proj"),
            Attention(
                kind="attention", path=f"{name}.attn", batch=tokens, heads=8, kv_heads=4,
                queries=1, keys=1024, head_dim=64, value_dim=64, causal=True,
            ),
            matmul(tokens, 512, 512, f"{name}.attn.o_proj"),
            matmul(tokens, 8, 512, f"{name}.mlp.gate"),
            matmul(2 * tokens, 2048, 512, f"{name}.mlp.experts.gate_up", experts=8, top_k=2),
            Vector(
                kind="vector", path=f"{name}.mlp.experts", name="silu",
                read=4096 * tokens, written=2048 * tokens,
            ),
            matmul(2 * tokens, 512, 1024, f"{name}.mlp.experts.down_proj", experts=8, top_k=2),
        ]  # fmt: skip
    return Workload.model_validate(
        {
            "model": "moe", "phase": "decode", "batch": tokens, "tokens": 1, "context": 1023,
            "dtype": "bfloat16", "ops": tuple(ops),
        }
    )  # fmt: skip


def test_tensor_parallel_splits_columns_rows_and_heads() -> None:
    part = split(decoder(2, m=8, width=1024), Parallel(tp=4))
    ops = by_path(part)
    assert (ops["layers.*.up"].n, ops["layers.*.up"].k) == (1024, 1024)
    assert (ops["layers.*.down"].n, ops["layers.*.down"].k) == (1024, 1024)
    assert ops["head"].n == 8 * 1024 // 4
    attention = ops["layers.*.attn"]
    assert (attention.heads, attention.kv_heads, attention.batch) == (2, 1, 8)
    assert ops["layers.*.norm"].read == 8 * 1024  # every chip has the whole residual stream
    sums = {e.path: (e.kind, e.nbytes, e.ranks, e.count) for e in part.exchanges}
    assert sums["layers.*.attn.o"] == ("all_reduce", 2 * 8 * 1024, 4, 2)
    assert sums["layers.*.down"] == ("all_reduce", 2 * 8 * 1024, 4, 2)
    assert sums["head"][0] == "all_gather"
    assert len(sums) == 4  # and the embedding's


def test_tensor_parallel_splits_a_weight_per_head_by_heads() -> None:
    """Of latent attention: all rows meet every head's weight."""
    op = matmul(8 * 16, 512, 128, "layers.0.attn.kv_b_proj", experts=16, top_k=16)
    (part,) = split(workload(op), Parallel(tp=4)).groups
    assert isinstance(part.op, Matmul)
    assert (part.op.m, part.op.experts, part.op.top_k) == (8 * 4, 4, 4)
    assert 4 * part.op.flops == op.flops


def test_sequence_parallel_splits_what_lies_between() -> None:
    part = split(decoder(2, m=8), Parallel(tp=4, sequence=True))
    assert by_path(part)["layers.*.norm"].read == 8 * 1024 // 4
    kinds = [e.kind for e in part.exchanges if e.path == "layers.*.down"]
    assert kinds == ["reduce_scatter", "all_gather"]


def test_experts_over_groups_keep_their_share_of_the_rows() -> None:
    part = split(moe(), Parallel(tp=4, ep=4))
    up = by_path(part)["layers.*.mlp.experts.gate_up"]
    assert (up.experts, up.m, up.n) == (2, 32, 2048)
    whole = grouped(moe(), load_recipe(KEEP))
    before = next(g.op for g in whole if g.path == "layers.*.mlp.experts.gate_up")
    assert isinstance(before, Matmul)
    assert up.distinct_weights == pytest.approx(before.distinct_weights / 4, rel=0.02)
    assert by_path(part)["layers.*.mlp.gate"].n == 8  # every chip routes
    skewed = split(moe(), Parallel(tp=4, ep=4, skew=1.5))
    assert by_path(skewed)["layers.*.mlp.experts.gate_up"].m == 48


def test_experts_of_shared_groups_are_split_by_columns_and_rows() -> None:
    part = by_path(split(moe(), Parallel(tp=4, ep=2)))
    up, down = (part[f"layers.*.mlp.experts.{name}"] for name in ("gate_up", "down_proj"))
    assert (up.experts, up.m, up.n, up.k) == (4, 64, 1024, 512)
    assert (down.n, down.k) == (512, 512)


def test_attention_ranks_have_parts_of_the_batch_and_send_tokens_to_the_experts() -> None:
    part = split(moe(), Parallel(attention_dp=4, ep=4, dispatch="float8_e4m3fn"))
    ops = by_path(part)
    assert ops["layers.*.attn"].batch == 16
    assert ops["layers.*.attn"].heads == 8
    assert ops["layers.*.attn.qkv_proj"].m == 16
    assert ops["layers.*.mlp.experts.gate_up"].m == 32
    there, back = [e for e in part.exchanges if e.kind == "all_to_all"]
    # 16 tokens go to 4 * (1 - (3/4)^2) = 1.75 groups each.
    assert there.nbytes == 28 * 512
    assert back.nbytes == 2 * 28 * 512


def test_stages_send_the_residual_stream() -> None:
    (send,) = [e for e in split(decoder(4, m=8), Parallel(pp=2)).exchanges if e.kind == "send"]
    assert (send.nbytes, send.count, send.stride) == (2 * 8 * 1024, 1, 1)


def test_context_parallel_splits_the_keys_of_a_decode() -> None:
    part = split(decoder(2, keys=512), Parallel(cp=4))
    assert by_path(part)["layers.*.attn"].keys == 128
    assert [e.kind for e in part.exchanges] == ["all_gather"]


def test_context_parallel_prefill_keeps_the_flops() -> None:
    attention = Attention(
        kind="attention", path="attn", batch=1, heads=8, kv_heads=2, queries=4096, keys=4096,
        head_dim=64, value_dim=64, causal=True,
    )  # fmt: skip
    work = workload(attention, matmul(m=4096), tokens=4096)
    mine = by_path(split(work, Parallel(cp=4)))["attn"]
    assert mine.flops == pytest.approx(attention.flops / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ("tp=8,tpp=2", "parallel: unknown parallel way 'tpp'; did you mean 'tp'"),
        ({"tp": 0}, "parallel.tp: Input should be greater than or equal to 1"),
        ("tp=two", "parallel.tp"),
        ("tp=4,ep=3", "ep=3 does not divide tp . attention_dp . cp = 4"),
    ],
)
def test_bad_plans(parallel: Any, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        Parallel.of(parallel)


def test_plans_are_spelled_as_they_are_read() -> None:
    for text in ("tp=1", "tp=8,pp=2,ep=8,skew=1.5", "attention_dp=8,ep=8,sequence"):
        assert Parallel.of(Parallel.of(text).spell()) == Parallel.of(text)
    assert Parallel.of("tp=4,pp=2,dp=3,attention_dp=2").chips == 48


def test_memory_is_a_hard_limit_and_the_error_says_what_fits() -> None:
    work = workload(matmul(m=1, n=1 << 20, k=1 << 16), tokens=1)  # 137.4 GB
    with pytest.raises(LowprecError) as caught:
        estimate(work, KEEP, "h100_sxm", level="bound", parallel="tp=1")
    message = str(caught.value)
    assert "needs 137 GB per chip (weights 137 GB" in message
    assert "57.4 GB too much; the smallest plan that fits: tp=2" in message
    found = estimate(work, KEEP, "h100_sxm", level="bound", parallel="tp=2")
    assert found.fits
    assert found.chip_bytes < 80e9


def free_links(chip: Machine) -> System:
    """The machine's domain with links that take no time worth naming."""
    assert chip.scale_up
    free = Quantity(value=1e30, kind="assumed", source="links that cost nothing")
    instant = Quantity(value=1e-30, kind="assumed", source="links that cost nothing")
    links = chip.scale_up.model_copy(update={"bandwidth": free, "latency": instant, "pair": None})
    return System.of(chip.model_copy(update={"scale_up": links}))


def half(chip: Machine) -> Machine:
    for path in ("memory.bandwidth", "memory.capacity", "power"):
        chip = chip.scaled(path, 0.5)
    for path in chip.datapaths:
        chip = chip.scaled(f"datapaths.{path.name}.rate", 0.5)
    return chip


@given(
    m=st.integers(1, 200),
    width=st.integers(1, 40),
    keys=st.integers(1, 4000),
    recipe=st.sampled_from([KEEP, "mxfp8_e4m3/floor", "*: weight=nvfp4/amax"]),
    chip=st.sampled_from(["h100_sxm", "b200", "mi300x"]),
)
def test_two_half_machines_are_never_better_than_one(
    m: int, width: int, keys: int, recipe: str, chip: str
) -> None:
    work = decoder(3, m, 64 * width, keys)
    whole = machine(chip)
    one = estimate(work, recipe, whole, level="bound").seconds
    two = estimate(
        work, recipe, half(whole), level="bound", parallel="tp=2", system=free_links(half(whole))
    )
    work_alone = two.seconds - sum(t.seconds for t in two.terms if t.binding == "network")
    assert work_alone >= one * (1 - 1e-9)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    microbatches=st.sampled_from([1, 4]),
    factor=st.floats(1, 8),
)
def test_totals_are_sums_and_better_links_never_hurt(
    tp: int, pp: int, microbatches: int, factor: float
) -> None:
    chip = machine("h200")
    plan = Parallel(tp=tp, pp=pp, microbatches=microbatches)
    base = estimate(moe(64), KEEP, chip, level="bound", parallel=plan)
    assert base.seconds == pytest.approx(sum(term.seconds for term in base.terms))
    assert sum(base.shares.values()) == pytest.approx(1)
    for path in ("scale_up.bandwidth", "scale_out.bandwidth"):
        better = estimate(moe(64), KEEP, chip.scaled(path, factor), level="bound", parallel=plan)
        assert better.seconds <= base.seconds * (1 + 1e-9)


@given(st.floats(0.1, 3), st.sampled_from([8, 64, 1024]))
@settings(max_examples=10)
def test_skewed_routing_reads_fewer_experts_and_fills_them_unevenly(
    skew: float, batch: int
) -> None:
    even, uneven = (
        estimate(moe(batch), KEEP, "h200", parallel={"routing": exponent})
        for exponent in (0.0, skew)
    )
    assert even.seconds != uneven.seconds
    for one, other in zip(even.terms, uneven.terms, strict=True):
        assert one.flops == other.flops
        assert "experts" in one.path or one.seconds == other.seconds


def test_hidden_communication_costs_nothing() -> None:
    shown, hidden = (
        estimate(moe(), KEEP, "h200", level="bound", parallel=Parallel(tp=8, overlap=overlap))
        for overlap in (0.0, 1.0)
    )
    network = sum(t.seconds for t in shown.terms if t.binding == "network")
    assert network > 0
    assert hidden.seconds == pytest.approx(shown.seconds - network)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=2,tp=4", "expected each way once"),
        ("tp=0", r"parallel.tp: .* \(got 0\)"),
        ("dispatch=float8_e4m3f", "did you mean 'float8_e4m3fn'?"),
        ("tp=16,ep=16", "parallel.ep: 16 groups of 8 experts"),
        ("pp=3", "parallel.pp: 3 stages of 2 layers"),
        ("tp=3", "tp: 3 chips cannot share 8 heads and 4 key heads evenly; expected one of 1, 2"),
        ("tp=16", "tp: 16 chips cannot share 8 heads"),
    ],
)
def test_plans_that_no_model_can_have(text: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        estimate(moe(), KEEP, "b200", parallel=text)
