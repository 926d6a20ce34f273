"""`lowprec datapath`: files that nobody has seen, machines with another unit, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rtl.tools import needs_yosys
from tests.test_cli import Runner

FACTS = '[facts]\nsource = "drawn up for this test"\n'
FILES = {
    "e6m0": 'kind = "float"\nbits = 7\nprecision = 1\nbias = 40\n',
    "far": 'kind = "float"\nbits = 8\nprecision = 4\nbias = -30\nnan = "all-ones"\n',
    "three": 'kind = "codebook"\nbits = 2\nvalues = [-3.5, -0.25, 0.0, 6.0]\n',
    "pairs": 'element = "float4_e2m1fn"\nscale = "ufloat8_e5m3"\nblock = [2]\n',
    "sevens": 'element = "ternary"\nscale = "float4_e2m1fn"\nblock = [7]\n',
    "int5": 'element = { name = "i5", kind = "int", bits = 5 }\nscale = "float8_e4m3fn"\n'
    'block = [24]\nzero_point = { name = "u5", kind = "int", bits = 5, signed = false }\n',
    "levels": 'element = "posit6_1"\nscale = "uint4"\nblock = [8]\n'
    'outer = { scale = "bfloat16", block = [64] }\n',
    "offsets": 'element = "uint3"\nscale = "float16"\nblock = [32]\noffset = "float16"\n',
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(capsys, monkeypatch)


def write(folder: Path, name: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{FILES[name]}{FACTS}')
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_nobody_has_seen_has_a_cost(run: Runner, tmp_path: Path, name: str) -> None:
    done = run("datapath", write(tmp_path, name), "--baseline", "mxfp4", "--json")
    assert done.code == 0
    data = json.loads(done.out)
    assert data["numerics"]["datapath"] == f"for_{name}"
    assert 0 < data["model"]["low"] < data["model"]["gates"] < data["model"]["high"]
    assert data["model"]["passes"] == (4 if name == "offsets" else 1)


@needs_yosys
@pytest.mark.parametrize(
    "name",
    ["sevens", *(pytest.param(n, marks=pytest.mark.slow) for n in FILES if n != "sevens")],
)
def test_it_is_synthesised_with_no_code_written(run: Runner, tmp_path: Path, name: str) -> None:
    done = run("datapath", write(tmp_path, name), "--synth", "--rtl", tmp_path / "rtl", "--json")
    assert done.code == 0
    data = json.loads(done.out)
    assert data["synthesis"][0]["gates"] == pytest.approx(data["model"]["gates"], rel=0.2)
    assert f"module dot_for_{name}" in Path(data["verilog"]).read_text()


def test_a_machine_with_the_unit(run: Runner) -> None:
    recipe = "*: weight=mx9/floor activation=mx9/floor"
    arguments = (
        "datapath", "mx9", "--baseline", "blackwell_mxf8", "--machine", "b200", "--replace",
        "mxf8f6f4", "--model", "llama-3.1-70b", "--batch", "512", "--recipe", recipe, "--json",
    )  # fmt: skip
    found, halved, beside = (
        json.loads(run(*arguments, *more).out)["machine"]
        for more in ((), ("--power", "0.5"), ("--beside", "--area", "0.5"))
    )
    assert found["tokens/s/chip"] > found["tokens/s/chip as it is"]
    assert found["products on"].startswith("for_mx9 multiplies mx9 by mx9")
    assert "no datapath reads mx9 with its inner scales" in found["products as it is on"]
    assert halved["FLOP/s"] < 0.55 * found["FLOP/s"]
    assert beside["FLOP/s"] == pytest.approx(found["FLOP/s"] / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mx9", "--replace", "fp8"), "expected --machine, too"),
        (("mx9", "--machine", "b200"), "needs --replace, and --baseline"),
        (("mx9", "--lanes", "99"), "lanes 99: expected 1 to 16"),
        (("mx", "--synth"), "unknown datapath or format 'mx'"),
        (("mx9", "--inputs", "int4"), "mx9 is a format; expected a datapath's name"),
    ],
)
def test_what_does_not_fit_is_refused(
    run: Runner, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run.error("datapath", *arguments)
