"""Vector sets: their answers, their files in three forms, and files that are none."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.exact import code_of, dot, encode, identical, value
from lowprec.proposal import vectors
from lowprec.proposal.vectors import VectorSet
from lowprec.proposal.vectors.files import FORMS, MAX_BYTES
from lowprec.proposal.vectors.model import thin
from lowprec.proposal.vectors.scalar import ROWS
from lowprec.spec import Projection, load_datapath, load_format, load_quantizer

E4M3 = load_format("float8_e4m3fn")
ENDINGS = sorted(FORMS)


@pytest.fixture(scope="module")
def sets() -> dict[str, VectorSet]:
    return {each.name: each for each in vectors.generate(load_quantizer("mxfp4/floor"))}


@pytest.fixture(scope="module")
def folder(sets: dict[str, VectorSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    vectors.write(sets.values(), path)
    return path


def numbers(found: VectorSet, column: str) -> list[float]:
    words = found.column(column).words
    return [struct.unpack("<f", struct.pack("<I", word))[0] for (word,) in words]


# What is asked, and what is answered.


def test_every_code_point_is_decoded() -> None:
    found = vectors.generate(E4M3)[0]
    assert [words for (words,) in found.column("code").words] == list(range(256))
    wanted = [float(value(code, E4M3)) for code in range(256)]
    pairs = zip(numbers(found, "value"), wanted, strict=True)
    assert all(identical(a, b) for a, b in pairs)


def test_every_tie_of_a_small_format_is_asked_with_both_neighbours() -> None:
    fmt = load_format("float4_e2m1fn")
    found = next(each for each in vectors.generate(fmt) if each.kind == "encode")
    asked = set(numbers(found, "x"))
    for tie in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0):
        up = float(np.nextafter(np.float32(tie), np.float32(np.inf)))
        down = float(np.nextafter(np.float32(tie), np.float32(0)))
        assert {tie, -tie, up, down, -up, -down} <= asked
    assert {0.0, 6.0, float("inf"), 2.0**-149} <= asked
    assert all(
        encode(x, fmt) == code
        for x, (code,) in zip(numbers(found, "x"), found.column("code").words, strict=True)
        if x or str(x) == "0.0"
    )


def test_stochastic_rows_turn_at_their_random_bits() -> None:
    found = next(each for each in vectors.generate(E4M3) if each.kind == "stochastic")
    projection = Projection(rounding="stochastic", bits=8)
    answers: dict[int, set[int]] = {}
    rows = zip(*(found.column(name).words for name in ("x", "random", "code")), strict=True)
    for ((x,), (random,), (code,)), number in zip(rows, numbers(found, "x"), strict=True):
        answers.setdefault(x, set()).add(code)
        if number and number == number:
            assert encode(number, E4M3, projection, random) == code
    assert sum(len(codes) > 1 for codes in answers.values()) > 20


def test_blocks_hold_the_hard_cases(sets: dict[str, VectorSet]) -> None:
    found = sets["quantize-block"]
    hard = {"zeros", "special", "subnormals", "largest", "ties", "equal-maxima", "short-block"}
    assert hard | {"at-turn", "below-turn", "above-turn"} <= set(found.why)
    at = found.why.index("special")
    assert found.column("scale").words[at] == (0xFF,)
    assert set(found.column("code").words[at]) == {0}


@pytest.mark.parametrize(
    "name", ["hopper_fp8", "blackwell_nvf4", "ampere_int8", "cdna3_fp8", "hopper_fp8_deepseek"]
)
def test_intermediate_sums_lead_to_the_dot_product(name: str) -> None:
    path = load_datapath(name)
    found = vectors.generate(path)[0]
    for i in range(0, found.rows, 7):
        row = {column.name: column.words[i] for column in found.columns}
        fmt = path.inputs[0]
        scales = None
        if path.scaling:
            of = path.scaling.formats[0]
            a, b = ([value(c, of) for c in row[f"scale_{x}"]] for x in "ab")
            scales = a, b
        a, b = ([value(code, fmt) for code in row[x]] for x in "ab")
        whole = dot(a, b, value(row["c"][0], path.output), path, (fmt, fmt), scales)
        assert code_of(whole, path.output) == row["d"][0] == row["sums"][-1]
        assert len(row["sums"]) > 1 or found.why[i] == "short"


def test_a_smoke_level_is_about_a_thousand_rows(sets: dict[str, VectorSet]) -> None:
    assert 800 < sum(each.rows for each in sets.values()) < 1500


def test_a_block_format_alone_has_no_vectors() -> None:
    with pytest.raises(LowprecError, match="scale rule"):
        vectors.generate(load_format("mxfp4"))


def test_thinning_keeps_every_reason_and_its_ends() -> None:
    rows = [("a", (i,)) for i in range(100)] + [("b", (i,)) for i in range(3)]
    kept = thin(rows, 20)
    assert len(kept) <= 21
    assert {("a", (0,)), ("a", (99,)), ("b", (0,)), ("b", (1,)), ("b", (2,))} <= set(kept)


# Files.


@pytest.mark.parametrize("ending", ENDINGS)
def test_all_forms_hold_the_same(folder: Path, sets: dict[str, VectorSet], ending: str) -> None:
    for name, found in sets.items():
        assert vectors.read(folder / f"{name}{ending}") == found


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_codebook_with_nan_and_infinity_is_json_for_everyone(ending: str) -> None:
    """RFC 8259 has no such numbers: JavaScript, jq and others would refuse the file."""
    form = FORMS[ending]
    for found in vectors.generate(load_format("hifloat8")):
        assert form.load(form.dump(found)) == found
        if ending == ".json":
            text = form.dump(found).decode()
            json.loads(text, parse_constant=pytest.fail)
            with pytest.raises(LowprecError, match="expected the string 'NaN'"):
                form.load(text.replace('"NaN"', "NaN").encode())


def test_the_same_sets_give_the_same_bytes(sets: dict[str, VectorSet]) -> None:
    again = vectors.generate(load_quantizer("mxfp4/floor"))
    for each in again:
        for form in FORMS.values():
            assert form.dump(each) == form.dump(sets[each.name])


def test_numpy_reads_the_npz_without_pickle(folder: Path) -> None:
    with np.load(folder / "encode-element.npz", allow_pickle=False) as arrays:
        head = json.loads(arrays["head"].tobytes())
        assert len(arrays["x"]) == len(arrays["code"]) == head["rows"]


def test_the_hex_text_is_parsed_in_a_few_lines(folder: Path, sets: dict[str, VectorSet]) -> None:
    lines = (folder / "encode-element.hex").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [int(code, 16) for _, code, _ in rows] == [
        code for (code,) in sets["encode-element"].column("code").words
    ]


def refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(LowprecError, match=message):
        vectors.read(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_truncated_file_is_refused(folder: Path, tmp_path: Path, ending: str) -> None:
    data = (folder / f"encode-element{ending}").read_bytes()
    for share in (0, 1, len(data) // 3, len(data) // 2, len(data) - 40):
        refused(tmp_path / f"a{ending}", data[:share], ": ")


def test_text_that_is_no_set_is_refused(folder: Path, tmp_path: Path) -> None:
    text, path = (folder / "encode-element.hex").read_text(), tmp_path / "a.hex"
    refused(path, text.replace("schema: 1", "schema: 2").encode(), "schema '2'; expected 1")
    refused(path, text.replace("code out 4", "code out 99").encode(), "bits")
    refused(path, text.replace("code out 4", "code out 1").encode(), "1 bits do not hold")
    refused(path, text.replace("rows: ", "rows: 9").encode(), "truncated")
    refused(path, text.replace("rows: ", "rows: 99999999").encode(), "rows; at most|schema|rows")
    refused(path, text.replace('"bits": 4', '"bits": 5').encode(), "digest")
    refused(path, text.replace(" tie\n", " tie extra\n").encode(), "fields; expected")
    refused(path, text.replace("# kind: encode", "# kind: guess").encode(), "kind 'guess'")
    refused(path, b"\xff\xfe", "ASCII")


def test_json_of_wrong_types_is_refused(folder: Path, tmp_path: Path) -> None:
    good, path = json.loads((folder / "encode-element.json").read_bytes()), tmp_path / "a.json"
    for key, wrong in (
        ("rows", "1"), ("rows", True), ("columns", {}), ("columns", [1]), ("columns", []),
        ("data", 3), ("data", [3]), ("data", [[1, 2, 3]]), ("spec", []), ("kind", None),
        ("data", [["zz", "0", "tie"]]), ("columns", [{"name": "x"}] * 40),
    ):  # fmt: skip
        refused(path, json.dumps(good | {key: wrong}).encode(), "expected|rows|schema")
    refused(path, b"[" * 100_000, "no JSON")


def test_npz_that_could_do_harm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"

    def packed(name: str, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        return buffer.getvalue()

    pickled = io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(path, packed("head.npy", pickled.getvalue()), "unsigned integers")
    refused(path, packed("head.npy", bytes(1 << 27)), "too large")
    floats = io.BytesIO()
    np.save(floats, np.array([np.nan]))
    refused(path, packed("head.npy", floats.getvalue()), "unsigned integers")
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        lying, {"shape": (1 << 60,), "fortran_order": False, "descr": "<u8"}
    )
    refused(path, packed("head.npy", lying.getvalue() + b"12345678"), "do not fill")
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for i in range(50):
            archive.writestr(f"a{i}.npy", b"")
    refused(path, many.getvalue(), "50 arrays")


def test_only_regular_files_of_bounded_size_are_read(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.hex"
    link.symlink_to(folder / "encode-element.hex")
    with pytest.raises(LowprecError, match="no link"):
        vectors.read(link)
    with pytest.raises(LowprecError, match="regular file"):
        vectors.read(Path("/dev/zero.hex"))
    huge = tmp_path / "huge.hex"
    with huge.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(LowprecError, match="larger than"):
        vectors.read(huge)
    with pytest.raises(LowprecError, match="ending"):
        vectors.read(tmp_path / "a.pickle")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(ENDINGS), st.data())
def test_damaged_files_give_a_set_or_an_error(
    folder: Path, ending: str, data: st.DataObject
) -> None:
    """Never another exception, whatever bytes stand there."""
    whole = bytearray((folder / f"decode-element{ending}").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        patch = data.draw(st.binary(min_size=0, max_size=6))
        whole[at : at + data.draw(st.integers(0, 6))] = patch
    path = folder.parent / f"damaged{ending}"
    path.write_bytes(whole)
    with suppress(LowprecError):
        assert isinstance(vectors.read(path), VectorSet)


def test_a_set_whose_words_do_not_fit_is_none(sets: dict[str, VectorSet]) -> None:
    found = sets["encode-element"]
    wrong = replace(found.column("code"), words=((16,),) * found.rows)
    with pytest.raises(LowprecError, match="4 bits do not hold"):
        replace(found, columns=(found.column("x"), wrong))


# Levels.

OCP = [
    "float8_e4m3fn", "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn",
    "mxfp8_e4m3/floor", "mxfp8_e5m2/floor", "mxfp6_e3m2/floor", "mxfp6_e2m3/floor", "mxfp4/floor",
    "mxint8/floor",
]  # fmt: skip


def check_level(target: str, level: str, folder: Path) -> int:
    """The rows of all sets, which are within the bounds and survive their files."""
    sets = vectors.generate(vectors.load_target(target), level)
    for found in sets:
        assert found.level == level
        assert found.rows <= ROWS[level]
        if found.kind == "decode":
            (column,) = (c for c in found.columns if c.name == "code")
            assert len(set(column.words)) == 1 << column.bits
    vectors.write(sets, folder)
    for found in sets:
        for ending in FORMS:
            path = folder / f"{found.name}{ending}"
            assert path.stat().st_size < MAX_BYTES
            assert vectors.read(path) == found
    return sum(found.rows for found in sets)


def test_standard_is_more_than_smoke(tmp_path: Path) -> None:
    smoke = sum(found.rows for found in vectors.generate(vectors.load_target(OCP[4])))
    assert smoke < 1200
    assert 3 * smoke < check_level(OCP[4], "standard", tmp_path) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("target", OCP)
def test_standard_and_full_of_every_ocp_format(tmp_path: Path, target: str) -> None:
    standard = check_level(target, "standard", tmp_path / "standard")
    full = check_level(target, "full", tmp_path / "full")
    assert standard < full


@pytest.mark.slow
@pytest.mark.parametrize("target", ["bfloat16", "float16"])
def test_full_has_every_code_point_of_16_bits(tmp_path: Path, target: str) -> None:
    assert check_level(target, "full", tmp_path) > 1 << 17
