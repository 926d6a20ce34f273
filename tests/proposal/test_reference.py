"""The references agree with `exact` on the vectors: Python and C, every format and rule."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lowprec.errors import LowprecError
from lowprec.exact import value
from lowprec.proposal import vectors
from lowprec.proposal.reference import c_reference, python_reference
from lowprec.proposal.vectors import VectorSet
from lowprec.spec import (
    Aligned,
    BlockFormat,
    Datapath,
    Format,
    Quantizer,
    list_datapaths,
    list_formats,
    load_datapath,
    load_format,
    load_quantizer,
)
from lowprec.spec.projection import ROUNDINGS, SATURATIONS
from lowprec.spec.quantizer import RULES
from tests.proposal.answers import differences, same
from tests.proposal.compiled import CompiledDot, compiled

# Every branch of the templates once.
QUANTIZERS = [
    "float8_e4m3fn/cast/nearest-even/OvfInf",
    "float8_e5m2/cast/up/OvfInf",
    "float8_e4m3fnuz/cast/down/SatPropagate",
    "float8_e5m2fnuz/cast/nearest-away",
    "ufloat8_e5m3/cast/to-odd/OvfInf",
    "float8_e8m0fnu/cast/nearest-even/OvfInf",
    "cfloat8_1_4_3/cast/toward-zero",
    "binary8p3se/cast/stochastic:8/OvfInf",
    "int8/cast/stochastic:5",
    "int4/cast/to-odd",
    "uint4",
    "nf4/cast/nearest-even/OvfInf",
    "lns8/cast/up",
    "hifloat8/cast/nearest-away/OvfInf",
    "posit8_2",
    "mxfp4/floor",
    "mxfp4/floor/stochastic:8",
    "mxfp8_e5m2/rceil/nearest-even/OvfInf",
    "mxfp6_e2m3/ceil",
    "mxint8/floor2x",
    "mxfp4_plus/even",
    "nvfp4/amax",
    "nvfp4/static",
    "mx9/floor",
    "hif4/amax",
    "gguf_q4_0/signed",
    "uint4_zp_g32_float16/minmax",
    "float8_e4m3fn_tensor/static",
    "int8/fixed=0.05:tensor",
]
SLOW_KINDS = [
    "nvfp4/mse",
    "nvfp4/four_over_six",
    "mxfp4/mse",
    "float8_e4m3fn_128x128/mse",
    "gguf_q2_k/minmax",
    "gguf_q4_k/minmax",
    "gguf_q4_1/minmax",
    "nvfp4/four_over_six/stochastic:8",
]


def python_functions(quantizer: Quantizer) -> types.ModuleType:
    module = types.ModuleType("reference")
    exec(compile(python_reference(quantizer), quantizer.spell(), "exec"), module.__dict__)
    return module


@cache
def answers_of(quantizer: Quantizer) -> tuple[vectors.VectorSet, ...]:
    return vectors.generate(quantizer, "smoke")


def check(quantizers: list[Quantizer], folder: Path) -> None:
    for quantizer, in_c in zip(quantizers, compiled(quantizers, folder), strict=True):
        in_python = python_functions(quantizer)
        for found in answers_of(quantizer):
            assert differences(found, in_python, quantizer) == []
            assert differences(found, in_c, quantizer) == []


def test_python_and_c_answer_as_exact_does(tmp_path: Path) -> None:
    check([load_quantizer(text) for text in QUANTIZERS], tmp_path)


@pytest.mark.slow
def test_python_and_c_answer_as_exact_does_on_slow_rules(tmp_path: Path) -> None:
    check([load_quantizer(text) for text in SLOW_KINDS], tmp_path)


def catalogue() -> Iterator[Quantizer]:
    """Every scalar format of up to 8 bits, every block format with each rule that it takes."""
    for name in list_formats():
        fmt = load_format(name)
        if not isinstance(fmt, BlockFormat):
            if fmt.bits <= 8:
                yield Quantizer.model_validate({"format": fmt, "rule": "cast"})
            continue
        for rule in (rule for rule in RULES if rule != "mse"):
            try:
                fixed = 0.375 if rule == "fixed" else None
                yield Quantizer.model_validate({"format": fmt, "rule": rule, "fixed": fixed})
            except ValidationError:
                continue


@pytest.mark.slow
def test_the_whole_catalogue(tmp_path: Path) -> None:
    quantizers = list(catalogue())
    assert len(quantizers) > 150
    check(quantizers, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("saturation", SATURATIONS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_rounding_of_every_scalar_format(
    tmp_path: Path, rounding: str, saturation: str
) -> None:
    bits = ":8" if rounding == "stochastic" else ""
    quantizers = []
    for name in list_formats():
        fmt = load_format(name)
        if isinstance(fmt, BlockFormat) or fmt.bits > 8:
            continue
        quantizer = load_quantizer(f"{name}/cast/{rounding}{bits}/{saturation}")
        try:
            python_reference(quantizer)
        except LowprecError:
            assert rounding == "stochastic"
            continue
        quantizers.append(quantizer)
    check(quantizers, tmp_path)


@pytest.mark.parametrize("text", ["mxfp4/floor", "nf4", "gguf_q4_k/minmax", "nvfp4/mse"])
def test_the_python_needs_the_standard_library_alone(text: str) -> None:
    source = python_reference(load_quantizer(text))
    imported = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= {"math", "struct", "bisect"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("text", ["mxfp4/floor", "nvfp4/amax", "float8_e4m3fn"])
def test_ten_minutes_are_enough_to_read_it(text: str) -> None:
    assert len(python_reference(load_quantizer(text)).splitlines()) < 200


def test_the_same_call_gives_the_same_bytes() -> None:
    quantizer = load_quantizer("nvfp4/amax")
    assert python_reference(quantizer) == python_reference(quantizer)
    assert c_reference(quantizer) == c_reference(quantizer)


def test_a_wrong_reference_is_found() -> None:
    """The comparison can fail: a reference with another scale rule or rounding differs."""
    quantizer = load_quantizer("mxfp4/floor")
    for other in ("mxfp4/rceil", "mxfp4/floor/nearest-away", "mxfp4/floor/toward-zero"):
        functions = python_functions(load_quantizer(other))
        assert any(differences(each, functions, quantizer) for each in answers_of(quantizer))


@pytest.mark.parametrize("text", ["posit16_2", "nf4/cast/stochastic:8", "float64"])
def test_what_has_no_reference_is_said(text: str) -> None:
    with pytest.raises(LowprecError, match="no reference"):
        python_reference(load_quantizer(text))


# Dot products.


def dot_differences(found: VectorSet, functions: Any, path: Datapath) -> list[str]:
    """Every row in which one of the sums differs from the set's."""
    formats = {fmt.name: fmt for fmt in path.inputs}
    wrong = []
    for i in range(found.rows):
        row = {column.name: column.words[i] for column in found.columns}
        a, b = found.column("a").format, found.column("b").format
        operands = [_values(row["a"], formats[a]), _values(row["b"], formats[b])]
        scales = []
        if path.scaling:
            scales = [_values(row[f"scale_{x}"], path.scaling.formats[0]) for x in "ab"]
        (c,) = _values(row["c"], path.output)
        sums = functions.dot(*operands, c, *scales, a_format=a, b_format=b)
        wanted = _values(row["sums"], path.output)
        if len(sums) != len(wanted) or not all(map(same, sums, wanted)):
            wrong.append(f"{found.name} {found.why[i]}: {sums} not {wanted}")
    return wrong


def _values(words: tuple[int, ...], fmt: Format) -> list[float]:
    return [float(value(word, fmt)) for word in words]


def dot_functions(path: Datapath) -> types.ModuleType:
    module = types.ModuleType("reference")
    source = python_reference(load_quantizer("mxfp4/floor"), path)
    exec(compile(source, path.name, "exec"), module.__dict__)
    return module


DATAPATHS = ["hopper_fp8", "blackwell_nvf4", "cdna3_fp8", "ampere_int8", "blackwell_fp8_fp16"]
DATAPATHS += ["cdna2_bf16"]
# Those whose exact sums of floats are longer than C's double.
WIDE = {"cdna1_bf16", "cdna1_fp16", "cdna4_mxf8", "exact"}


@pytest.mark.parametrize("name", DATAPATHS)
def test_dot_products_have_the_intermediate_sums(name: str, tmp_path: Path) -> None:
    path = load_datapath(name)
    for functions in (dot_functions(path), CompiledDot(path, tmp_path)):
        assert dot_differences(vectors.generate(path)[0], functions, path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list_datapaths())
def test_dot_products_of_every_datapath(name: str, tmp_path: Path) -> None:
    path = load_datapath(name)
    kinds = [dot_functions(path)] + ([CompiledDot(path, tmp_path)] if name not in WIDE else [])
    for found in vectors.generate(path):
        for functions in kinds:
            assert dot_differences(found, functions, path) == []


@pytest.mark.parametrize("name", sorted(WIDE))
def test_what_no_double_holds_has_no_dot_product_in_c(name: str) -> None:
    with pytest.raises(LowprecError, match="no dot product in C: exact sums of floats"):
        c_reference(load_quantizer("float8_e4m3fn"), load_datapath(name))


def test_a_narrower_window_is_found() -> None:
    path = load_datapath("hopper_fp8")
    assert isinstance(path.addition, Aligned)
    narrow = path.model_copy(
        update={"addition": path.addition.model_copy(update={"fraction_bits": 12})}
    )
    assert dot_differences(vectors.generate(path)[0], dot_functions(narrow), path)
