"""Datapath files: what they hold, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowprec.errors import LowprecError
from lowprec.spec import (
    Aligned,
    Datapath,
    TwoStage,
    data_dir,
    list_datapaths,
    list_formats,
    load_datapath,
    load_datapath_facts,
)

FILES = sorted((data_dir("formats") / "datapath").glob("*.toml"))


def test_every_file_is_listed_and_is_no_format() -> None:
    assert [path.stem for path in FILES] == list_datapaths()
    assert len(FILES) >= 45
    assert not set(list_datapaths()) & set(list_formats())


@pytest.mark.parametrize("name", list_datapaths())
def test_a_datapath_survives_its_json(name: str) -> None:
    path = load_datapath(name)
    assert path.name == name
    assert Datapath.model_validate_json(path.model_dump_json()) == path


@pytest.mark.parametrize("name", list_datapaths())
def test_evidence_is_stated(name: str) -> None:
    facts = load_datapath_facts(name)
    assert (facts.evidence == "recorded") == bool(facts.recordings)
    assert facts.note or facts.evidence != "assumed"


def test_every_recorded_unit_has_a_datapath() -> None:
    recorded = [r for name in list_datapaths() for r in load_datapath_facts(name).recordings]
    assert len(recorded) == len(set(recorded)) == 34


@pytest.mark.parametrize(
    ("arch", "bits", "step"),
    [
        ("volta", 23, 4),
        ("turing", 24, 8),
        ("ampere", 24, 8),
        ("ada", 24, 8),
        ("hopper", 25, 16),
        ("blackwell", 25, 16),
    ],
)
def test_tensor_cores_of_float16(arch: str, bits: int, step: int) -> None:
    for name in (f"{arch}_fp16", f"{arch}_fp16_fp16"):
        path = load_datapath(name)
        assert isinstance(path.addition, Aligned)
        assert (path.addition.fraction_bits, path.step) == (bits, step)
        single = name.endswith("_fp16_fp16")
        assert path.accumulator.name == ("float16" if single else "float32")
        assert path.rounding == ("nearest-even" if single else "toward-zero")


def test_promotion_decides_the_output_format() -> None:
    assert load_datapath("hopper_fp8_fp16").output.name == "float16"
    deepseek = load_datapath("hopper_fp8_deepseek")
    assert deepseek.promotion is not None
    assert deepseek.promotion.interval == 128
    assert load_datapath("hopper_fp8").output.name == "float32"


CDNA3 = dict(load_datapath("cdna3_fp8").addition) | {"dot_bits": 20}


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("hopper_fp8_fp16", {"order": (0, 1, 1)}, "order is no permutation of 0 to 2"),
        ("hopper_fp8_fp16", {"step": 5}, "order has 32 places; expected a multiple of step"),
        ("hopper_fp8_deepseek", {"step": 48}, "promotion interval 128: expected whole steps"),
        ("tpu_bf16", {"step": None}, "a tree needs a step"),
        ("hopper_fp8", {"rounding": "stochastic"}, "'stochastic' is no datapath's"),
        ("hopper_fp8", {"overflow": "wrap"}, "'wrap' does not fit the accumulator 'float32'"),
        ("ampere_int8", {"overflow": "infinity"}, "'infinity' does not fit the accumulator"),
        ("hopper_fp8_deepseek", {"promotion": None}, "scales outside need a promotion"),
        ("blackwell_nvf4", {"step": 24}, "group 16: expected a divisor of block and step"),
        ("cdna3_fp8", {"addition": TwoStage(**CDNA3)}, "dot_bits: expected term_bits or more"),
        (
            "ampere_int8",
            {"addition": Aligned(kind="aligned", fraction_bits=8)},
            "for float formats alone",
        ),
    ],
)
def test_impossible_datapaths_are_refused(name: str, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Datapath.model_validate(dict(load_datapath(name)) | parts)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(LowprecError, match=r"unknown datapath 'hoper_fp8'; did you mean 'hopper_f"):
        load_datapath("hoper_fp8")
    with pytest.raises(LowprecError, match="unknown datapath 'x'"):
        load_datapath_facts("x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("step = 32", "setp = 32"), "setp: unknown key; did you mean 'step'?"),
        (('"float32"', '"flaot32"'), "accumulator: unknown format 'flaot32'"),
        (('"float32"', '"mxfp4"'), "accumulator: 'mxfp4' is a block format"),
        (('"hopper_fp8"', '"other"'), "name: 'other' differs from the file's 'hopper_fp8'"),
        (("[facts]", "[promotion]"), "facts: missing; expected source and evidence"),
        (('"recorded"', '"rumoured"'), "facts: evidence: "),
    ],
)
def test_errors_of_a_file_name_it(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = (data_dir("formats") / "datapath" / "hopper_fp8.toml").read_text()
    path = tmp_path / "hopper_fp8.toml"
    path.write_text(text)
    assert load_datapath(path) == load_datapath("hopper_fp8")
    path.write_text(text.replace(*change))
    with pytest.raises(LowprecError) as caught:
        load_datapath(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
