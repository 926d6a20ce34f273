"""Units for block formats: against the kernels, and against what the formats' tensors are worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowprec.errors import LowprecError
from lowprec.exact.dot import dot as exact_dot
from lowprec.exact.values import exact
from lowprec.kernels import quantize
from lowprec.rtl import Unit, format_unit, simulate
from lowprec.spec import BlockFormat, IntFormat, load_format, load_quantizer
from lowprec.spec.default_datapath import default_datapath, goes_beyond_scales
from tests.rtl.tools import needs_yosys
from tests.rtl.vectors import (
    Codes,
    check,
    decode,
    operand,
    scale_of,
    vectors,
)


@needs_yosys
@pytest.mark.parametrize(("name", "lanes"), [("hif4", 8), ("mxfp4_plus", 2), ("gguf_q2_k", 2)])
def test_what_a_block_shares(name: str, lanes: int) -> None:
    check(format_unit(name, lanes), 2000, 1)


@needs_yosys
@pytest.mark.parametrize("name", ["gguf_q2_k"])
def test_promoted_sums_have_both_levels_of_scales(name: str) -> None:
    unit = format_unit(name, 2)
    given = vectors(unit, 300, 2)
    given["c"] = np.zeros_like(given["c"])
    found = simulate(unit, given)["promoted"]
    path, total = unit.datapath, decode(given["total"], unit.datapath.output)
    values = [operand(unit, given, x) for x in "ab"]
    scales = [scale_of(unit, given, x) for x in "ab"]
    for k in range(len(found)):
        a, b = ([exact(x) for x in rows[k].tolist()] for rows in values)
        s = (scales[0][k].tolist(), scales[1][k].tolist())
        want = float(exact_dot(a, b, exact(total[k].item()), path, unit.carriers, s))
        got = decode(found[k : k + 1], path.output)[0]
        assert got == want or (np.isnan(got) and np.isnan(want))


# ---- the ports mean what the format's tensors do ----


def ports_of(unit: Unit, text: str, x: torch.Tensor) -> tuple[dict[str, Codes], torch.Tensor]:
    """The inputs of one operand for rows of one pass each, and their dequantized values."""
    q = quantize(x, load_quantizer(text))
    fmt, rows = unit.shared, len(x)
    assert fmt is not None
    assert q.scales is not None

    def codes(t: torch.Tensor, width: int) -> Codes:
        return t.reshape(rows, -1).numpy().astype(np.int64).astype(np.uint64) & np.uint64(
            (1 << width) - 1
        )

    given = {
        "a": codes(q.codes, unit.a.bits),
        "a_scale": codes(q.scales, fmt.scale.bits),
    }
    for at, inner in enumerate(q.inner):
        given[f"a_inner{at}"] = codes(inner, fmt.inner[at].scale.bits)
    if q.offset is not None and fmt.zero_point is not None:
        given["a_zero_point"] = codes(q.offset, fmt.zero_point.bits)
    if q.outlier is not None:
        given["a_outlier"] = codes(q.outlier, 8)
    return given, q.dequantize()


@pytest.mark.parametrize(
    "text", ["mx9/floor", "hif4/amax", "mxfp4_plus/floor", "uint4_zp_g32_float16/minmax"]
)
def test_ports_carry_what_tensors_hold(text: str) -> None:
    fmt = load_quantizer(text).format
    assert isinstance(fmt, BlockFormat)
    assert goes_beyond_scales(fmt)
    size = int(fmt.block[-1])
    path = default_datapath(fmt, lanes=size)
    unit = Unit(path, fmt.element, fmt.element, size, scale=fmt.scale, shared=fmt)
    x = torch.randn(50, size, generator=torch.Generator().manual_seed(0))
    given, wanted = ports_of(unit, text, x)
    found = operand(unit, given, "a") * scale_of(unit, given, "a")
    np.testing.assert_allclose(found, wanted.double().numpy(), rtol=1e-7)


def test_plain_formats_share_nothing_more() -> None:
    assert format_unit("mxfp4").shared is None
    assert format_unit("float8_e4m3fn").shared is None
    assert format_unit("mxfp4").ports.keys() == {"a", "b", "c", "a_scale", "b_scale", "d"}
    assert format_unit("mx9").ports["a_inner0"].bits == 8


def test_lanes_are_parts_of_blocks() -> None:
    with pytest.raises(LowprecError, match="3 lanes; expected whole parts of 2"):
        _ = format_unit("mx9", 3).ports
    assert default_datapath(load_format("mx9"), lanes=12).step == 8


def shared(**parts: Any) -> BlockFormat:
    given = {"name": "odd", "scale": load_format("float8_e4m3fn"), **parts}
    return BlockFormat(**given)


def test_formats_of_one_name_are_refused() -> None:
    element, scale = (
        load_format(n).model_copy(update={"name": "same"})
        for n in ("float4_e2m1fn", "float8_e4m3fn")
    )
    fmt = shared(element=element, scale=scale, block=(16,))
    with pytest.raises(LowprecError, match="two formats of the unit are called 'same'"):
        format_unit(fmt, 2)


def test_long_names_have_units_too() -> None:
    element = load_format("int4").model_copy(update={"name": "x" * 80})
    path = default_datapath(
        shared(element=element, block=(16,)).model_copy(update={"name": "y" * 80})
    )
    assert len(path.inputs[0].name) == 80
    assert len(path.name) == 60
    wide = IntFormat(name="int8", kind="int", bits=8, exponent=900)
    with pytest.raises(LowprecError, match="int8: accumulator: exponent"):
        default_datapath(wide)


ODD = {
    "blocks of 7": (shared(element=load_format("int4"), block=(7,)), 14, 7),
    "blocks of 5 times 5": (shared(element=load_format("float4_e2m1fn"), block=(25,)), 16, None),
    "inner scales of 3": (
        shared(
            element=load_format("int3"),
            block=(12,),
            inner=({"scale": load_format("mx9").inner[0].scale, "block": (3,)},),  # type: ignore[union-attr]
        ),
        12,
        12,
    ),
    "an unsigned zero point of signed elements": (
        shared(
            element=IntFormat(name="int5", kind="int", bits=5),
            zero_point=IntFormat(name="uint5", kind="int", bits=5, signed=False),
            block=(24,),
        ),
        12,
        12,
    ),
    "offsets": (
        shared(element=load_format("uint2"), offset=load_format("float8_e4m3fn"), block=(10,)),
        10,
        10,
    ),
}


@needs_yosys
@pytest.mark.parametrize("case", ODD)
def test_blocks_that_nobody_has_built(case: str) -> None:
    fmt, step, group = ODD[case]
    path = default_datapath(fmt)
    assert path.scaling is not None
    assert (path.step, path.scaling.group) == (step, group)
    check(format_unit(fmt, 3 if fmt.inner else 2), 1000)
