"""Dot products of any length through units: order, promotion, scales, and real tensor cores."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from lowprec.errors import LowprecError
from lowprec.kernels.dot import dot as kernel_dot
from lowprec.rtl import Unit, dot_unit
from lowprec.rtl.sequence import dot
from lowprec.rtl.simulate import compiled, run
from lowprec.spec import load_datapath
from lowprec.spec.format import FloatFormat
from tests.exact.recordings import RECORDED, Recording, excerpt, whole
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import Codes, decode, encode

pytestmark = needs_yosys

# Recordings whose units are small or promote.
FEW = [("V100_fp16_fp32", "volta_fp16"), ("H100_E5M2_fp16", "hopper_fp8_fp16")]


def _passes(unit: Unit) -> partial[dict[str, Codes]]:
    return partial(run, unit, compiled(unit))


def _mismatches(lines: Recording, name: str) -> int:
    unit = dot_unit(name, lines.format, lines.format)
    out = unit.datapath.output
    assert isinstance(out, FloatFormat)
    a, b = (encode(x.astype(np.float64), lines.format) for x in (lines.a, lines.b))
    assert (decode(a, lines.format) == lines.a).all()
    c = encode(lines.c.astype(np.float64), out)
    d = decode(dot(unit, _passes(unit), a, b, c), out)
    with np.errstate(invalid="ignore"):
        found = d.astype(np.float32).view(np.uint32)
    same = (found == lines.d) | (np.isnan(d) & np.isnan(lines.d.view(np.float32)))
    return int((~same).sum())


@pytest.mark.parametrize(("recording", "name"), FEW)
def test_lines_that_real_units_computed(recording: str, name: str) -> None:
    assert _mismatches(excerpt(recording), name) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("recording", "name"), RECORDED, ids=[r for r, _ in RECORDED])
def test_all_lines_that_real_units_computed(recording: str, name: str) -> None:
    assert _mismatches(whole(recording), name) == 0


def _whole_dot(name: str, size: int, cases: int = 200) -> None:
    """Random operands of K = size: the kernels' bits, promotion and scales included."""
    unit = dot_unit(name)
    path, g = unit.datapath, np.random.default_rng(size)
    draw = g.standard_normal
    a, b = (encode(draw((cases, size)), f) for f in (unit.a, unit.b))
    c = encode(draw(cases), path.output)
    scales = None
    if path.scaling is not None:
        assert unit.scale is not None
        shape = (cases, -(-size // path.scaling.block))
        scales = tuple(encode(np.exp2(draw(shape) * 3), unit.scale) for _ in "ab")
    found = dot(unit, _passes(unit), a, b, c, scales)
    wanted = kernel_dot(
        torch.from_numpy(decode(a, unit.a)),
        torch.from_numpy(decode(b, unit.b)),
        torch.from_numpy(decode(c, path.output)),
        datapath=path,
        formats=unit.carriers,
        scales=scales and tuple(torch.from_numpy(decode(s, unit.scale)) for s in scales),
    )
    assert (decode(found, path.output) == wanted.double().numpy()).all()


def test_promotion_after_an_interleaved_order() -> None:
    _whole_dot("blackwell_fp8_fp16", 70)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [("hopper_fp8_deepseek", 300), ("blackwell_nvf4", 150), ("blackwell_mxf4", 150),
     ("blackwell_mxf8", 100), ("blackwell_fp8", 70), ("cdna3_fp8", 50), ("cdna2_fp16", 12)],
)  # fmt: skip
def test_dots_of_several_steps(name: str, size: int) -> None:
    _whole_dot(name, size)


def test_a_short_unit_is_no_step() -> None:
    unit = dot_unit("hopper_fp8", lanes=2)
    none = np.zeros((1, 32), np.uint64)
    with pytest.raises(LowprecError, match="2 lanes; expected the step, 32"):
        dot(unit, _passes(unit), none, none, none[:, 0])
    assert load_datapath("hopper_fp8").step == 32
