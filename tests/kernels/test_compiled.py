"""The definition through torch.compile, as GPUs run it: the same bits, and no compilation for a
format whose structure has been compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from lowprec import quantizer
from lowprec.kernels import compiled
from lowprec.kernels.calls import Call, define
from tests.kernels.oracle import assert_same_bits
from tests.kernels.test_block import breaking

CASTS = [
    "float8_e4m3fn",
    "float8_e5m2",
    "float6_e2m3fn",
    "float4_e2m1fn",
    "float8_e4m3fn/cast/OvfInf",
]
CASTS += ["int8", "bfloat16", "nf4", "float8_e4m3fn/cast/up", "binary8p3se/cast/to-odd"]
BLOCKS = ["mxfp4/floor", "mxfp8_e4m3/rceil", "mxint8/even", "nvfp4/amax", "int8/amax:channel"]
BLOCKS += ["float8_e4m3fn/amax:tensor", "nf4/amax:16", "nvfp4/four_over_six", "mxfp4/mse"]
BLOCKS += ["mx9/floor", "gguf_q4_1/minmax", "mxfp4_plus/floor", "mxfp4/floor/stochastic:8"]


FUNCTION = compiled._function.__wrapped__


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(x: Tensor, name: str, monkeypatch: pytest.MonkeyPatch, backend: str = "eager") -> Tensor:
    function = FUNCTION(backend)
    monkeypatch.setattr(compiled, "_function", lambda: function)
    q = quantizer(name)
    random = torch.arange(x.numel()).view(x.shape) % 256 if q.projection.bits else None
    found = compiled.define(x, q, -1, random, None)
    assert_same_bits(found, define(x, Call(q, -1, random)), x)
    out = torch.empty_like(x)
    assert compiled.define(x, q, -1, random, None, out) is out
    assert_same_bits(out, found)
    return found


QUICK = ["float8_e4m3fn", "mxfp4/floor", "nvfp4/amax"]


@pytest.mark.parametrize("name", QUICK)
def test_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(breaking(64)[:14], name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASTS, *BLOCKS])
def test_same_bits_ragged_and_of_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(breaking(70), name, monkeypatch)
    run(breaking(64)[:14].bfloat16(), name, monkeypatch)


def test_one_compilation_serves_many_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    function = FUNCTION("eager")
    monkeypatch.setattr(compiled, "_function", lambda: function)
    x = torch.randn(20, 64)
    alike = [
        ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"],
        ["mxfp8_e4m3/floor", "mxfp8_e5m2/floor", "mxfp6_e2m3/ceil", "mxfp4/even"],
    ]
    for names in alike:
        for i, name in enumerate(names):
            before = counters["stats"]["unique_graphs"]
            q = quantizer(name)
            found = compiled.define(x, q, -1, None, None)
            assert_same_bits(found, define(x, Call(q, -1)), x)
            assert counters["stats"]["unique_graphs"] - before == (i == 0), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float8_e4m3fn", "mxfp4/floor", "nvfp4/amax", "nf4/amax:16"])
def test_same_bits_of_generated_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(breaking(64)[:14], name, monkeypatch, "inductor")
