"""The recorder on single operations, and the fusion of vector operations."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from lowprec import LowprecError
from lowprec.nn.tracing.fusion import Fuser
from lowprec.nn.tracing.recorder import MULTIPLIES, Recorder
from lowprec.spec import Matmul


class Odd(nn.Module):
    def __init__(self, work) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, device="meta")
        self.work = work

    def forward(self, x):
        return self.work(self.inner, x)


def observed(work, *shape: int):
    model = Odd(work)
    recorder = Recorder(model, new_tokens=1)
    with recorder.watching():
        model(torch.zeros(shape, device="meta"))
    return recorder.ops


@pytest.mark.parametrize(
    "work",
    [
        lambda m, x: torch.mv(m.weight, x[0]),
        lambda _, x: torch.dot(x[0], x[1]),
        lambda m, x: torch.conv1d(x[None], m.weight[:, :4, None]),
    ],
)
def test_a_product_that_cannot_be_recorded_is_an_error_not_a_hole(work):
    with pytest.raises(LowprecError, match=r"Odd: aten.* cannot be recorded yet"):
        observed(work, 4, 8)


def test_either_operand_may_be_the_parameter_also_in_another_type():
    ops = observed(lambda m, x: m.weight @ x.T, 4, 8)
    assert [(op.path, op.weight, op.m, op.n, op.k) for op in ops] == [("inner", True, 4, 8, 8)]
    ops = observed(lambda m, x: x.double() @ m.weight.double().T, 4, 8)
    assert [(op.path, op.weight) for op in ops if isinstance(op, Matmul)] == [("inner", True)]


def test_a_product_of_activations_is_no_weight():
    (op,) = observed(lambda _, x: x @ x.mT, 3, 4, 8)
    assert (op.path, op.weight, op.batch, op.m, op.n, op.k) == ("", False, 3, 4, 4, 8)


def fused(*ops: tuple[str, str, list, list]) -> list[tuple[str, int, int]]:
    fuser = Fuser()
    kernels = [fuser.vector(*op) for op in ops]
    found = [fuser.finish(k) for k in kernels if k is not None]
    return [(v.name, v.read, v.written) for v in found if v is not None]


def test_fusion_stops_where_something_else_has_used_a_result():
    a, b, c, d, e = (torch.empty(10) for _ in range(5))
    chain = ("m", "exp", [a], [b]), ("m", "add", [b, c], [d])
    assert fused(*chain) == [("exp add", 20, 10)]
    # b leaves the kernel once another module has read it, so it is written and read again.
    apart = fused(chain[0], ("n", "neg", [b], [e]), chain[1])
    assert apart == [("exp", 10, 10), ("neg", 10, 10), ("add", 20, 10)]


def test_fusion_joins_two_kernels_and_reads_halves_once_each():
    whole, b, c, d = torch.empty(2, 10), torch.empty(10), torch.empty(10), torch.empty(10)
    ops = [
        ("m", "silu", [whole[0]], [b]),
        ("m", "neg", [whole[1]], [c]),
        ("m", "mul", [b, c], [d]),
    ]
    assert fused(*ops) == [("silu neg mul", 20, 10)]
    scalar = torch.empty(1).expand(10)
    assert fused(("m", "exp", [scalar], [b])) == [("exp", 1, 10)]


def test_every_operation_that_torch_counts_is_recorded_or_refused():
    names = {packet.__name__ for packet in flop_registry}
    assert len(names) > 10
    assert [name for name in sorted(names) if not MULTIPLIES.search(name)] == []
