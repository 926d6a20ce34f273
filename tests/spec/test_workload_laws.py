"""Laws of sizes, and schedules that say equal layers once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.spec import Attention, Matmul, Workload
from lowprec.spec.law import Factor, Sizes, evaluate, spell
from lowprec.spec.schedule import fold, kind_of_pass, template

SIZES = Sizes(batch=3, tokens=5, context=100, logits=2)


@pytest.mark.parametrize(
    ("law", "value"),
    [
        (7, 7),
        ("7", 7),
        ("batch*tokens", 15),
        ("64*batch*tokens + 64", 1024),
        ("tokens + min(context, 31)", 36),
        ("min(context, 1000)*tokens", 500),
        ("-3*batch*logits + 20", 2),
        ("tokens*tokens", 25),
    ],
)
def test_laws_by_hand(law, value):
    assert evaluate(law, SIZES) == value


@pytest.mark.parametrize("law", ["bitch", "64*", "2**3", "min(context)", "__import__('os')", ""])
def test_what_is_no_law(law):
    with pytest.raises(LowprecError, match="is no law"):
        evaluate(law, SIZES)


FACTORS = st.builds(Factor, st.integers(0, 3), st.none() | st.integers(0, 200))
TERMS = st.lists(st.tuples(st.integers(-99, 99), st.lists(FACTORS, max_size=3).map(tuple)))


@given(terms=TERMS)
def test_what_is_spelled_is_evaluated(terms):
    expected = 0
    for count, factors in terms:
        for factor in factors:
            count *= factor.at(SIZES)
        expected += count
    assert evaluate(spell(terms), SIZES) == expected


def layer(number: int, wide: bool) -> list[Matmul]:
    n = 16 if wide else 8
    return [
        Matmul(kind="matmul", path=f"h.{number}.up", m=4, n=n, k=8),
        Matmul(kind="matmul", path=f"h.{number}.experts.3.down", m=4, n=8, k=n),
    ]


@given(wide=st.lists(st.booleans(), min_size=1, max_size=9))
def test_folding_loses_nothing_and_says_equal_layers_once(wide):
    ops = [op for i, each in enumerate(wide) for op in layer(i, each)]
    ops.append(Matmul(kind="matmul", path="head", m=4, n=99, k=8))
    schedule = fold(map(template, ops), ())
    assert list(schedule.ops(schedule.at(SIZES))) == ops
    assert len(schedule.blocks) == len(set(wide)) + 1
    work = Workload(
        model="m", phase="prefill", batch=1, tokens=4, context=0, dtype="bfloat16", ops=tuple(ops)
    )
    assert work.ops == tuple(ops)
    assert work.flops == sum(op.flops for op in ops)
    paths = [path for group in work.groups for path in group.paths]
    assert sorted(paths) == sorted(op.path for op in ops)
    assert all(group.op.path == group.paths[0] for group in work.groups)


@given(queries=st.integers(1, 40), behind=st.integers(0, 40), window=st.none() | st.integers(1, 50))
def test_pairs_that_a_mask_leaves(queries, behind, window):
    """`keys` are those that some query sees, and each sees at most its window."""
    behind = behind if window is None else min(behind, window - 1)
    op = Attention(
        kind="attention", path="a", batch=2, heads=4, kv_heads=2, queries=queries,
        keys=behind + queries, head_dim=8, value_dim=16, causal=True, window=window,
    )  # fmt: skip
    seen = [behind + i + 1 for i in range(queries)]
    expected = sum(seen if window is None else (min(window, n) for n in seen))
    assert op.pairs == expected
    assert op.flops == 2 * 2 * 4 * expected * 24


def test_kinds_of_passes():
    kinds = [kind_of_pass(t, c) for t, c in ((1, 0), (5, 0), (5, 9), (1, 9))]
    assert kinds == ["start", "prefill", "extend", "decode"]


def test_a_changed_copy_derives_anew():
    ops = tuple(layer(0, wide=True))
    work = Workload(
        model="m", phase="prefill", batch=1, tokens=4, context=0, dtype="bfloat16", ops=ops
    )
    assert work.ops == ops
    other = fold(map(template, layer(0, wide=False)), ())
    assert work.model_copy(update={"schedules": (other,)}).ops == tuple(layer(0, wide=False))


def test_an_operation_that_is_none_names_itself():
    bad = {"kind": "matmul", "path": "h.*.up", "m": "batch*context", "n": 8, "k": 8}
    work = Workload(
        model="m", phase="prefill", batch=1, tokens=4, context=0, dtype="bfloat16",
        schedules=(fold([bad | {"path": "h.0.up"}], ("prefill",)),),
    )  # fmt: skip
    with pytest.raises(LowprecError, match=r"operation 'h.\*.up': m: Input should be greater"):
        _ = work.ops
    with pytest.raises(LowprecError, match="no laws for a pass of the kind decode; has prefill"):
        _ = work.at(tokens=1, context=5).ops
