"""The verifier: every diagnosis is proven by an implementation with exactly that mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.exact import code_of, value
from lowprec.proposal import vectors
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.dots import running_sums
from lowprec.proposal.verify import verify
from lowprec.spec import Datapath, load_datapath, load_format, load_quantizer
from tests.proposal.answers import number
from tests.proposal.test_reference import python_functions


@cache
def package(target: str) -> tuple[VectorSet, ...]:
    return vectors.generate(vectors.load_target(target), "smoke")


def one(target: str, name: str) -> VectorSet:
    return next(each for each in package(target) if each.name == name)


def answered(
    folder: Path, asked: VectorSet, cells: Mapping[str, list[tuple[int, ...]]]
) -> tuple[str, list[str]]:
    """What the verifier says of these answers: its first line, and all diagnoses."""
    vectors.write([asked], folder / "vectors")
    results = folder / "results"
    results.mkdir(exist_ok=True)
    rows = zip(*cells.values(), strict=True)
    texts = ([" ".join(f"{word:x}" for word in words) for words in row] for row in rows)
    lines = [",".join(cells), *map(",".join, texts)]
    (results / f"{asked.name}.csv").write_text("\n".join(lines) + "\n")
    (verdict,) = verify(folder, results)
    return verdict.sentences[0], list(verdict.diagnoses)


# Encoders and decoders: the reference of another format or projection answers.


@pytest.mark.parametrize(
    ("target", "wrong", "diagnosis"),
    [
        ("float8_e4m3fn", "float8_e4m3fn/cast/nearest-away", "rounds ties away from zero"),
        ("float8_e4m3fn", "float8_e4m3fn/cast/toward-zero", "truncates"),
        ("float8_e4m3fn", "float8_e4m3fn/cast/nearest-even/OvfInf", "overflows where it should"),
        (
            "float8_e5m2/cast/nearest-even/OvfInf", "float8_e5m2",
            "saturates where it should overflow",
        ),
        ("mxfp4/floor", "mxfp4/floor/nearest-away", "rounds ties away from zero"),
        ("float8_e4m3fn", "float8_e4m3fnuz", "takes it for the FNUZ format of these bits"),
        ("float8_e4m3fnuz", "float8_e4m3fn", "takes it for the OCP format of these bits"),
        (
            "float8_e5m2/cast/OvfInf", "float8_e5m2fnuz/cast/OvfInf",
            "takes it for the FNUZ format of these bits",
        ),
    ],
)  # fmt: skip
def test_encoders_are_diagnosed(tmp_path: Path, target: str, wrong: str, diagnosis: str) -> None:
    asked = one(target, "encode-element")
    functions = python_functions(load_quantizer(wrong))
    x = asked.column("x")
    codes = [(functions.encode_element(number(word, x.format)),) for (word,) in x.words]
    line, diagnoses = answered(tmp_path, asked, {"code": codes})
    assert diagnosis in line
    assert len(diagnoses) == 1


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        ("toward-zero/OvfInf", "truncates, and overflows where it should saturate"),
        ("nearest-away/OvfInf", "rounds ties away from zero, and overflows where"),
    ],
)
def test_two_mistakes_at_once_are_diagnosed(tmp_path: Path, wrong: str, diagnosis: str) -> None:
    asked = one("float8_e4m3fn", "encode-element")
    functions = python_functions(load_quantizer(f"float8_e4m3fn/cast/{wrong}"))
    x = asked.column("x")
    codes = [(functions.encode_element(number(word, x.format)),) for (word,) in x.words]
    assert diagnosis in answered(tmp_path, asked, {"code": codes})[0]


def test_flushed_inputs_are_diagnosed(tmp_path: Path) -> None:
    """Of a format that has the subnormal numbers of its input among its values."""
    asked = one("bfloat16", "encode-element")
    tiny = 2.0**-126
    codes = _changed(asked, lambda x, code: code & 0x8000 if abs(x) < tiny else code)
    line, diagnoses = answered(tmp_path, asked, {"code": codes})
    assert "flushes subnormal inputs to zero" in line
    assert len(diagnoses) == 1


def _changed(asked: VectorSet, change: Callable[[float, int], int]) -> list[tuple[int, ...]]:
    x, code = asked.column("x"), asked.column("code")
    return [
        (change(number(word, x.format), answer),)
        for (word,), (answer,) in zip(x.words, code.words, strict=True)
    ]


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (lambda _, code: code & 0x80 if code & 0x7F < 8 else code, "flushes subnormal results"),
        (lambda _, code: 0 if code == 0x80 else code, "loses the sign of zero"),
        (lambda x, code: 0x7E if x != x else code, "encodes NaN as 0x7e, which is 448.0"),
        (
            lambda x, code: (code & 0x80 if code & 0x7F < 8 else code) if x == x else 0x7E,
            "flushes subnormal results to zero, and encodes NaN as 0x7e",
        ),
    ],
)
def test_encoders_with_slips_are_diagnosed(
    tmp_path: Path, change: Callable[[float, int], int], diagnosis: str
) -> None:
    asked = one("float8_e4m3fn", "encode-element")
    line, diagnoses = answered(tmp_path, asked, {"code": _changed(asked, change)})
    assert diagnosis in line
    assert len(diagnoses) == 1


@pytest.mark.parametrize(
    ("target", "wrong", "diagnosis"),
    [
        ("float8_e4m3fn", {"bias": 8}, "uses the exponent bias 8 instead of 7"),
        ("float8_e4m3fn", {"nan": "none"}, "NaN 0x7f becomes 480.0"),
        ("float8_e4m3fnuz", {"nan": "all-ones"}, "OCP E4M3's NaN"),
        (
            "float8_e4m3fn", {"nan": "negative-zero", "bias": 8},
            "takes it for the FNUZ format of these bits",
        ),
        ("float8_e5m2", {"nan": "none", "infinity": False}, "decodes NaN and Inf as numbers"),
    ],
)  # fmt: skip
def test_decoders_are_diagnosed(
    tmp_path: Path, target: str, wrong: dict[str, object], diagnosis: str
) -> None:
    asked = one(target, "decode-element")
    fmt = load_format(target).model_copy(update=wrong)
    wide = load_format("float32")
    values = [(code_of(value(code, fmt), wide),) for (code,) in asked.column("code").words]
    line, _ = answered(tmp_path, asked, {"value": values})
    assert diagnosis in line


# Block quantizers.


@pytest.mark.parametrize(
    ("target", "wrong", "diagnosis"),
    [
        ("mxfp4/rceil", "mxfp4/floor", "computes the scale by floor instead of rceil"),
        ("mxfp4/floor", "mxfp4/rceil", "computes the scale by rceil instead of floor"),
        ("mxfp4/floor", "mxfp4/floor/toward-zero", "elements: truncates"),
        (
            "mxfp4/floor", "mxfp4/rceil/toward-zero",
            "computes the scale by rceil instead of floor, and elements: truncates",
        ),
    ],
)  # fmt: skip
def test_block_quantizers_are_diagnosed(
    tmp_path: Path, target: str, wrong: str, diagnosis: str
) -> None:
    asked, other = one(target, "quantize-block"), one(wrong, "quantize-block")
    at = {words: i for i, words in enumerate(other.column("x").words)}
    cells = {
        name: [other.column(name).words[at[x]] for x in asked.column("x").words]
        for name in ("scale", "code", "value")
    }
    line, diagnoses = answered(tmp_path, asked, cells)
    assert diagnosis in line
    assert len(diagnoses) == 1


def test_swapped_nibbles_are_diagnosed(tmp_path: Path) -> None:
    asked = one("mxfp4/floor", "quantize-block")
    swapped = [
        tuple(w for i in range(0, len(words), 2) for w in words[i : i + 2][::-1])
        for words in asked.column("code").words
    ]
    line, diagnoses = answered(tmp_path, asked, {"code": swapped})
    assert "swaps neighbouring elements" in line
    assert len(diagnoses) == 1


def test_a_transposed_scale_layout_is_diagnosed(tmp_path: Path) -> None:
    asked = one("nvfp4/amax", "quantize-block")
    turned = [(*words[::2], *words[1::2]) for words in asked.column("scale").words]
    line, diagnoses = answered(tmp_path, asked, {"scale": turned})
    assert "transposed" in line
    assert len(diagnoses) == 1


# Dot products.


def _dots(asked: VectorSet, path: Datapath, turn: int = 1) -> list[tuple[int, ...]]:
    fmt = path.inputs[0]
    rows = zip(*(asked.column(name).words for name in "abc"), strict=True)
    return [
        (
            code_of(
                running_sums(
                    path, (fmt, fmt), (a[::turn], b[::turn], (), (), value(c[0], path.output))
                )[-1],
                path.output,
            ),
        )
        for a, b, c in rows
    ]


def _wrong_paths() -> Iterator[tuple[str, Datapath, int]]:
    path = load_datapath("hopper_fp8")
    narrow = path.addition.model_copy(update={"fraction_bits": 10})
    yield "10 fraction bits instead of 13", path.model_copy(update={"addition": narrow}), 1
    yield "8 products at a time", path.model_copy(update={"step": 8}), 1
    yield "another order: from the last product", path, -1


@pytest.mark.parametrize(("diagnosis", "path", "turn"), list(_wrong_paths()))
def test_dot_products_are_diagnosed(
    tmp_path: Path, diagnosis: str, path: Datapath, turn: int
) -> None:
    asked = one("hopper_fp8", "dot-float8_e4m3fn.float8_e4m3fn")
    line, diagnoses = answered(tmp_path, asked, {"d": _dots(asked, path, turn)})
    assert diagnosis in line
    assert len(diagnoses) == 1


# Right answers, answers of no kind, hostile ones.


def test_right_answers_are_right_in_every_form(tmp_path: Path) -> None:
    sets = package("mxfp4/floor")
    vectors.write(sets, tmp_path / "vectors")
    assert all(v.answered and not v.wrong for v in verify(tmp_path, tmp_path / "vectors"))
    for ending in (".hex", ".json"):
        for path in (tmp_path / "vectors").glob(f"*{ending}"):
            if ending == ".json":
                path.rename(tmp_path / path.name)
    assert all(not v.wrong for v in verify(tmp_path, tmp_path))


def test_what_no_mistake_explains_is_said(tmp_path: Path) -> None:
    asked = one("float8_e4m3fn", "encode-element")
    codes = [(code ^ (i % 7 == 0),) for i, (code,) in enumerate(asked.column("code").words)]
    line, diagnoses = answered(tmp_path, asked, {"code": codes})
    assert "no known mistake" in line
    assert diagnoses == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no results|line of names|answers none"),
        ("code\n", "0 rows; expected"),
        ("code\nzz\n", "hexadecimal"),
        ("code,code\n1,1\n", "same name"),
        ("other\n1\n", "answers none"),
        ("code\n1,2\n", "2 cells"),
    ],
)
def test_results_that_are_none_are_refused(tmp_path: Path, text: str, message: str) -> None:
    asked = one("mxfp4/floor", "encode-element")
    vectors.write([asked], tmp_path / "vectors")
    (tmp_path / "encode-element.csv").write_text(text)
    with pytest.raises(LowprecError, match=message):
        verify(tmp_path, tmp_path)


def test_a_link_out_of_the_results_is_refused(tmp_path: Path) -> None:
    asked = one("mxfp4/floor", "encode-element")
    vectors.write([asked], tmp_path / "vectors")
    (tmp_path / "encode-element.csv").symlink_to("/etc/hostname")
    with pytest.raises(LowprecError, match="no link"):
        verify(tmp_path, tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_results_give_a_verdict_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    asked = one("mxfp4/floor", "decode-element")
    vectors.write([asked], tmp_path / "vectors")
    good = "value\n" + "\n".join(f"{w:x}" for (w,) in asked.column("value").words)
    whole = bytearray(good.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    (tmp_path / "decode-element.csv").write_bytes(whole)
    with suppress(LowprecError):
        assert len(verify(tmp_path, tmp_path)) == 1
