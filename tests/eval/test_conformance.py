"""The conformance of a format: it passes what is right, and finds what is not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lowprec import exact, kernels
from lowprec.eval import hard_inputs
from lowprec.eval.conformance import Comparison, blocks, conform, scalars
from lowprec.eval.conformance.comparison import compare, differing
from lowprec.spec import BlockFormat, Level, list_formats, load_format


def small(name: str, **changes: object) -> BlockFormat:
    """A shipped format with short blocks, so that the oracle is soon done."""
    fmt = load_format(name)
    assert isinstance(fmt, BlockFormat)
    return fmt.model_copy(update={"block": (3,), **changes})


@pytest.mark.parametrize("name", ["float4_e2m1fn", "ternary", "int4", "hifloat8"])
def test_scalar_formats_conform(name: str) -> None:
    found = conform(load_format(name))
    assert found.problems == ()
    assert found.differing == 0
    assert found.compared > 18 * 65_536


KINDS = {
    "plain": small("mxfp4"),
    "outer": small("gguf_q6_k", outer=Level(scale=load_format("float16"), block=(6,))),
    "inner": small("mx9", block=(4,)),
    "zero point": small("uint4_zp_g32_float16"),
    "offset": small("gguf_q4_k", outer=Level(scale=load_format("float16"), block=(6,))),
    "outlier": small("mxfp4_plus"),
    "tiles": small("float8_e4m3fn_128x128", block=(3, 4)),
    "tensor": load_format("int8_zp_tensor"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block_conforms(kind: str) -> None:
    assert conform(KINDS[kind]).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", list_formats())
def test_every_shipped_file_conforms(name: str) -> None:
    found = conform(load_format(name))
    assert (found.differing, found.problems) == (0, ())


def test_the_rest_follows_from_few_answers_of_the_oracle() -> None:
    fmt = load_format("float6_e3m2fn")
    x = torch.cat([hard_inputs.edges(fmt, torch.float32, 8), hard_inputs.random_bits(50)])
    for projection in scalars.DETERMINISTIC:
        every = [float(exact.project(v, fmt, projection)) for v in x.tolist()]
        found = scalars.project(x, fmt, projection)
        assert not differing(found, torch.tensor(every)).any()


def test_differences_are_counted_and_named() -> None:
    x = torch.tensor([1.0, 2.0, math.nan, -0.0])
    found = compare("t", torch.tensor([1.0, 3.0, math.nan, 0.0]), x, x)
    line = "t: 2 of 4 differ: of [2.0, -0.0] [3.0, 0.0], expected [2.0, -0.0]"
    assert found == Comparison(4, 2, (line,))
    assert found + Comparison(1) == Comparison(5, 2, (line,))


def test_a_wrong_cast_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.cast

    def wrong(x: Tensor, *rest: object) -> Tensor:
        return torch.where(x == 2.5, 3.0, right(x, *rest))

    monkeypatch.setattr(kernels, "cast", wrong)
    steps = list(scalars.scalar_steps(load_format("float4_e2m1fn")))
    found = sum((step() for step in steps), Comparison())
    # Three of six roundings send it to 2, under three saturations; two of three random numbers do.
    assert len([line for line in found.problems if "expected [2.0" in line]) == 9 + 2
    assert "of [2.5" in found.problems[0]


def test_a_wrong_scale_or_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (q,) = (q for q in blocks.quantizers(small("mxfp4")) if q.rule == "floor")
    steps = [blocks._values, blocks._stored, blocks._stored_codes]

    def problems() -> list[int]:
        arguments = [(q, -1), (q,), (q,)]
        return [len(step(*a).problems) for step, a in zip(steps, arguments, strict=True)]

    assert problems() == [0, 0, 0]
    other = q.model_copy(update={"rule": "ceil"})
    right = kernels.fake_quantize, kernels.quantize
    monkeypatch.setattr(kernels, "fake_quantize", lambda x, _, *r, **k: right[0](x, other, *r, **k))
    found = problems()
    assert (found[0], found[2]) == (1, 0)
    assert found[1]
    monkeypatch.setattr(kernels, "quantize", lambda x, _, *r, **k: right[1](x, other, *r, **k))
    assert problems() == [1, 0, 1]
    ragged = q.model_copy(update={"format": small("mxfp4", block=(2,))})
    monkeypatch.setattr(kernels, "quantize", lambda x, _, *r, **k: right[1](x, ragged, *r, **k))
    assert problems()[1]
