"""The command line as users meet it: what it prints, and what it says of bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lowprec import cli
from lowprec.spec import Matmul, Workload
from lowprec.spec.load import data_dir
from tests import tiny_study


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Runner:
    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch

    def __call__(self, *arguments: str | Path) -> Done:
        self._patch.setattr(sys, "argv", ["lowprec", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        code = stop.value.code
        return Done(code if isinstance(code, int) else 0, *self._capsys.readouterr())

    def error(self, *arguments: str | Path) -> str:
        """The one line of an error, with everything else checked."""
        done = self(*arguments)
        assert done.code == 2
        assert done.out == ""
        *progress, line = done.err.splitlines()
        assert line.startswith("lowprec: error: ")
        assert "Traceback" not in done.err
        assert not any("error" in other for other in progress)
        return line.removeprefix("lowprec: error: ")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(capsys, monkeypatch)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_study.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    op = Matmul(kind="matmul", path="layers.0.up", m=1, n=4096, k=4096)
    found = Workload(
        model="m", phase="decode", batch=1, tokens=1, context=9, dtype="bfloat16", ops=(op,)
    )
    path = tmp_path / "w.json"
    path.write_text(found.model_dump_json())
    return path


def test_help_is_what_nothing_gives(run: Runner) -> None:
    done = run()
    assert done.code == 0
    for command in ("formats", "check", "study", "eval", "trace", "perf"):
        assert f"\n  {command}" in done.out
    assert run("--help") == done


def test_formats_lists_all(run: Runner) -> None:
    rows = json.loads(run("formats", "--json").out)
    folder = data_dir("formats")
    files = {path.stem for kind in ("scalar", "block") for path in (folder / kind).glob("*.toml")}
    assert {row["name"] for row in rows} == files
    assert all(name in run("formats").out for name in files)


def test_formats_shows_one(run: Runner) -> None:
    found = json.loads(run("formats", "float4_e2m1fn", "--json").out)
    assert found["max"] == 6
    assert found["min_positive"] == 0.5
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [value for _, value in found["values"]] == positive + [-value for value in positive]
    assert "OCP" in found["source"]
    text = run("formats", "mxfp4").out
    assert "bits_per_element  4.25" in text
    assert "0x7 6" in text
    values = json.loads(run("formats", "float8_e5m2", "--json").out)["values"]
    assert values[0x7C] == ["0x7c", "inf"]
    assert values[0x7D] == ["0x7d", "nan"]
    assert "values" not in json.loads(run("formats", "bfloat16", "--json").out)


def test_check_passes_what_is_shipped(run: Runner) -> None:
    evals = data_dir("evals")
    files = [data_dir("formats") / "scalar" / "float6_e2m3fn.toml", *evals.glob("recipes/*.toml")]
    done = run("check", *files, evals / "studies" / "smollm2.toml")
    assert done.code == 0
    assert done.err == ""
    assert done.out.count(" passes") == len(files) + 1
    assert "11 facts" in done.out
    assert ", 0 differ from the oracle's\n" in done.out


def test_check_fails_a_wrong_fact(run: Runner, tmp_path: Path) -> None:
    text = (data_dir("formats") / "scalar" / "float6_e2m3fn.toml").read_text()
    path = tmp_path / "float6_e2m3fn.toml"
    assert "max = 7.5" in text
    path.write_text(text.replace("max = 7.5", "max = 7.25"))
    done = run("check", path, "--json")
    assert done.code == 1
    (result,) = json.loads(done.out)
    assert result["kind"] == "format"
    assert "max: stated 7.25, derived 7.5" in result["problems"][0]
    assert result["compared"] > 18 * 65_536
    assert result["differing"] == 0


def test_check_fails_a_wrong_answer(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowprec import kernels

    right = kernels.encode
    monkeypatch.setattr(kernels, "encode", lambda *a, **k: right(*a, **k) ^ 1)
    path = data_dir("formats") / "scalar" / "float4_e2m1fn.toml"
    done = run("check", path)
    assert done.code == 1
    assert f"{path}: format fails: " in done.out
    assert "16 differ from the oracle's\n  float4_e2m1fn: encode: 16 of 16 differ" in done.out


def test_perf_prices_a_recorded_workload(run: Runner, workload: Path) -> None:
    arguments = ("perf", workload, "--recipe", "mxfp4/floor", "--machine", "b200")
    done = run(*arguments, "--machine", "h100_sxm", "--terms", "--level", "bound")
    assert done.code == 0
    assert "b200" in done.out
    assert "layers.0.up" in done.out
    assert "note: datasheet bound" in done.out
    (found,) = json.loads(run(*arguments, "--json").out)
    assert found["machine"] == "b200"
    assert found["tokens_per_second"] == pytest.approx(1 / found["seconds"])


def test_trace_and_perf_of_a_configuration(run: Runner, tmp_path: Path, tiny: Path) -> None:
    out = tmp_path / "w.json"
    config = tiny.parent / "model" / "config.json"
    (row,) = json.loads(run("trace", config, "-o", out, "--context", "7", "--json").out)
    assert row["phase"] == "decode"
    assert row["flops"] == Workload.model_validate_json(out.read_text()).flops
    from_file = run("perf", out, "--recipe", "mxfp4/floor", "--machine", "b200", "--json")
    direct = run(
        "perf", config, "--recipe", "mxfp4/floor", "--machine", "b200", "--context", "7", "--json"
    )
    assert from_file.out == direct.out
    both = run("perf", config, "--recipe", "mxfp4/floor", "--machine", "b200", "--batch", "1",
               "--batch", "2", "--phase", "prefill", "--tokens", "8", "--json")  # fmt: skip
    assert [row["phase"] for row in json.loads(both.out)] == ["prefill", "prefill"]


def test_eval_measures_one_recipe(run: Runner, tiny: Path) -> None:
    folder = tiny.parent
    arguments = ("eval", folder / "model", "--text", folder / "text.txt", "--windows", "2",
                 "--length", "16", "--recipe", "lm_head: keep; *: weight=mxfp4/floor")  # fmt: skip
    record = json.loads(run(*arguments, "--json").out)
    assert record["metrics"]["kl"]["value"] > 0
    assert record["details"]["tokens"] == 30
    assert "dnll" in run(*arguments).out


def test_records_compare_and_other_measures(run: Runner, tiny: Path, tmp_path: Path) -> None:
    folder = tiny.parent
    measure = ("eval", folder / "model", "--text", folder / "text.txt")
    for name in ("mxfp4", "mxfp8_e4m3"):
        cut = ("--length", "16", "--windows", "0", "--protocol", "gptq")
        recipe = ("--recipe", f"lm_head: keep; *: weight={name}/floor")
        run(*measure, *cut, *recipe, "-o", tmp_path / f"{name}.json")
    records = (tmp_path / "mxfp4.json", tmp_path / "mxfp8_e4m3.json")
    [row] = json.loads(run("compare", *records, "--json").out)
    assert row["difference"] < 0
    assert row["p, Holm"] == row["p"] < 0.05
    assert run.error("compare", records[0]) == "compare: expected two records or more"
    assert "no record" in run.error("compare", records[0], tiny)
    said = run(*measure, "--recipe", "*: weight=mxfp4/floor", "--generate", "4", "--prompts", "2")
    assert "divergence_median" in said.out


def test_published_figures_are_listed(run: Runner) -> None:
    rows = json.loads(run("eval", "Llama-3.2-1B", "--compare", "--json").out)
    assert {row["model"] for row in rows} == {"Llama-3.2-1B"}
    recipe = "lm_head: keep; *: weight=nvfp4/amax activation=nvfp4/amax"
    done = run("eval", "./none/Llama-3.2-1B", "--recipe", recipe, "--compare")
    assert "not measured: ./none/Llama-3.2-1B" in done.err
    assert "10.7473" in done.out
    assert "nothing published" in run.error("eval", "gpt-5", "--compare")
    assert "expected a model and --recipe" in run.error("eval", "x")


def test_study_prints_a_table_and_where_the_report_is(
    run: Runner, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("study", tiny, "--out", tmp_path / "out")
    assert done.code == 0
    assert "mxfp4 weights" in done.out
    assert f"report: {(tmp_path / 'out' / 'report.html').resolve()}" in done.out
    assert "12 cells, 12 of them new" in done.out
    monkeypatch.setattr("lowprec.report.page.write", lambda _report, folder: folder / "report.html")
    found = json.loads(run("study", tiny, "--out", tmp_path / "out", "--json").out)
    assert [row["recipe"] for row in found["rows"]] == [
        "float32", "mxfp8", "nvfp4", "mxfp4 weights",
    ]  # fmt: skip
    assert found["shown"]["machine"] == "b200"


USAGE = {
    "no such command": (["formast"], "unknown command 'formast'; did you mean 'formats'?"),
    "no such option": (["formats", "--jsn"], "No such option: --jsn"),
    "no argument": (["check"], "Missing argument"),
    "no option": (["perf", "w.json", "--machine", "b200"], "Missing option '--recipe'"),
    "no such format": (["formats", "mxpf4"], "unknown format 'mxpf4'; did you mean 'mxfp4'?"),
    "no such file": (["check", "nothing.toml"], "nothing.toml: no such file"),
    "no such study": (["study", "nothing.toml"], "nothing.toml: no such file"),
    "a number": (
        ["trace", "x", "-o", "y", "--batch", "many"],
        "Invalid value for '--batch': Input should be a valid integer",
    ),
    "no such model": (
        ["trace", "smollm2-153m", "-o", "y"],
        "unknown model 'smollm2-153m'; did you mean 'smollm2-135m'?",
    ),
    "no such folder": (
        ["eval", "./nowhere/model", "--recipe", "mxfp4/floor"],
        "./nowhere/model: no such model folder",
    ),
    "no such config": (["trace", "no/config.json", "-o", "y"], "no/config.json: no such file"),
}


@pytest.mark.parametrize("name", USAGE)
def test_bad_usage(run: Runner, name: str) -> None:
    arguments, message = USAGE[name]
    assert message in run.error(*arguments)


PERF = {
    "recipe": (["--recipe", "mxfp5/floor", "--machine", "b200"], "did you mean 'mxfp4'?"),
    "rule": (
        ["--recipe", "mxfp4/flor", "--machine", "b200"],
        "--recipe: rules.0.weight: unknown scale rule 'flor'; did you mean 'floor'?",
    ),
    "machine": (
        ["--recipe", "mxfp4/floor", "--machine", "b2000"],
        "unknown machine 'b2000'; did you mean 'b200'?",
    ),
    "pattern": (
        ["--recipe", "lm_head: keep; *: weight=mxfp4/floor", "--machine", "b200"],
        "rule 'lm_head' matches no matmul",
    ),
    "batch": (
        ["--recipe", "mxfp4/floor", "--machine", "b200", "--batch", "2"],
        "--batch: ",
    ),
    "phase": (["--recipe", "mxfp4/floor", "--machine", "b200", "--phase", "x"], "--phase: "),
    "terms": (
        ["--recipe", "mxfp4/floor", "--machine", "b200", "--elasticities", "--terms"],
        "--terms: expected without --sweep",
    ),
    "system": (
        ["--recipe", "mxfp4/floor", "--machine", "b200", "--system", "dgx_h100"],
        "system 'dgx_h100': its chips are h100_sxm, not b200",
    ),
}


@pytest.mark.parametrize("name", PERF)
def test_bad_input_to_perf(run: Runner, workload: Path, name: str) -> None:
    arguments, message = PERF[name]
    assert message in run.error("perf", workload, *arguments)


def test_a_file_that_is_no_workload(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    rest = ("--recipe", "mxfp4/floor", "--machine", "b200")
    for text, message in (("{", ""), ('{"model": 3}', "model: "), ("[]", "recorded workload")):
        path.write_text(text)
        line = run.error("perf", path, *rest)
        assert line.startswith(f"{path}: ")
        assert message in line


FORMAT = """
name = "mine"
kind = "float"
bits = 8
precision = 4
bias = 7
[facts]
source = "made up for this test"
"""
BLOCK = """
name = "mine"
element = "float8_e4m3fn"
scale = "float8_e8m0fnu"
block = [32]
[facts]
source = "made up for this test"
"""
RECIPE = """
name = "mine"
[[rules]]
match = "*"
weight = "mxfp4/floor"
"""
FILES = {
    "bits of 99": (FORMAT, "bits = 8", "bits = 99", "bits: Input should be less than or equal to"),
    "a wrong type": (FORMAT, "bits = 8", 'bits = "8"', "bits: Input should be a valid integer"),
    "an unknown key": (FORMAT, "bias", "biass", "biass: unknown key; did you mean 'bias'?"),
    "an unknown kind": (FORMAT, '"float"', '"flaot"', "unknown kind 'flaot'; did you mean 'float'"),
    "a missing key": (FORMAT, "bias = 7", "", "bias: Field required"),
    "no facts": (FORMAT, '[facts]\nsource = "made up for this test"', "", "facts: missing"),
    "no TOML": (FORMAT, "bits = 8", "bits = ", "Invalid value"),
    "a block of 0": (BLOCK, "[32]", "[0]", "block"),
    "an unknown element": (BLOCK, "float8_e4m3fn", "float8_e4m4fn", "did you mean 'float8_e4m3fn'"),
    "an unknown format": (RECIPE, "mxfp4/", "mxfp44/", "unknown format 'mxfp44'; did you mean"),
    "an unknown rule": (
        RECIPE,
        "/floor",
        "/flor",
        "unknown scale rule 'flor'; did you mean 'floor'",
    ),
    "a rule that cannot be": (RECIPE, "mxfp4/floor", "nvfp4/floor", "needs the rule 'amax'"),
    "an unknown recipe key": (RECIPE, "weight", "wieght", "did you mean 'weight'?"),
}


@pytest.mark.parametrize("text", [FORMAT, BLOCK, RECIPE])
def test_good_files(run: Runner, tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert run("check", path).code == 0


@pytest.mark.parametrize("name", FILES)
def test_bad_files(run: Runner, tmp_path: Path, name: str) -> None:
    good, old, new, message = FILES[name]
    path = tmp_path / "mine.toml"
    assert old in good
    path.write_text(good.replace(old, new, 1))
    line = run.error("check", path)
    assert line.startswith(f"{path}: ")
    assert message in line


STUDIES = {
    "a pattern": ("lm_head: keep; *: weight=nvfp4", "lm_haed: keep; *: weight=nvfp4",
                  "recipes.2 (nvfp4): rule 'lm_haed' matches no module"),
    "a machine": ('"b200"', '"b100"', "throughput.machines.0: unknown machine 'b100'"),
    "a model": ('model = "./model"', 'model = "smol"', "accuracy.model: unknown model 'smol'"),
    "a folder": ('model = "./model"', 'model = "./modle"', "no such model folder"),
    "a text": ("text.txt", "house-of-lords", "did you mean 'house-of-commons'?"),
    "a window": ("length = 32", "length = 100000", "too short for"),
    "a priced model": ('models = ["./model"]', 'models = ["llama-3.1-7b"]',
                       "throughput.models.0: unknown model 'llama-3.1-7b'; did you mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_bad_studies(run: Runner, tiny: Path, tmp_path: Path, name: str) -> None:
    old, new, message = STUDIES[name]
    text = tiny.read_text()
    assert old in text
    path = tiny.with_name("bad.toml")
    path.write_text(text.replace(old, new, 1))
    assert message in run.error("study", path, "--out", tmp_path / "out")


def test_an_altered_model_is_refused(run: Runner, tiny: Path, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(tiny.parent / "model", tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    rest = ("--recipe", "mxfp4/floor", "--text", tiny.parent / "text.txt")
    assert str(folder) in run.error("eval", folder, *rest)


def _child(*arguments: str | Path) -> list[str]:
    code = "from lowprec.cli import main; main()"
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_a_reader_that_goes_away() -> None:
    command = _child("formats", "binary8p3se", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 128 + signal.SIGPIPE


@pytest.fixture
def heard() -> Iterator[None]:
    """Interrupts are not ignored, as they are by what a shell without job control puts in the
    background, and by all the children of that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_is_no_traceback(tiny: Path, tmp_path: Path) -> None:
    command = _child("study", tiny, "--out", tmp_path / "out")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        # The first line says that the model is loaded; by then every import is done.
        first = child.stderr.readline()
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read()
    assert b"loading" in first
    assert child.returncode == 130, rest.decode()
    assert b"Traceback" not in rest


def test_json_has_no_infinity(run: Runner, workload: Path) -> None:
    arguments = ("perf", workload, "--recipe", "mxfp4/floor", "--machine", "b200")
    out = run(*arguments, "--level", "bound", "--json").out
    (row,) = json.loads(out, parse_constant=pytest.fail)
    assert row["high"] is None  # a bound has no upper end


SMALL = ("llama-3.1-8b", "--recipe", "*: keep", "--machine", "b200")
CONTRADICTIONS = {
    "tokens of a decode": (["perf", *SMALL, "--phase", "decode", "--tokens", "4"], "--tokens: "),
    "no context": (["perf", *SMALL, "--phase", "decode", "--context", "0"], "--context: "),
    "spread": (["serve", *SMALL, "--spread", "2"], "traffic: spread: "),
    "no requests": (["serve", *SMALL, "--rate", "0"], "traffic: rate: "),
    "two loads": (["serve", *SMALL, "--rate", "0", "--concurrency", "4"], "--rate: "),
    "no copies": (
        ["serve", *SMALL, "--prefill", "0 x tp=1", "--decode", "1 x tp=1"],
        "--prefill: ",
    ),
    "apart, simulated": (
        ["serve", *SMALL, "--prefill", "1 x tp=1", "--decode", "1 x tp=1", "--simulate"],
        "--prefill: ",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_in_what_is_priced(run: Runner, name: str) -> None:
    arguments, message = CONTRADICTIONS[name]
    assert message in run.error(*arguments)


def test_several_new_tokens_are_a_prompt(run: Runner) -> None:
    (short,) = json.loads(run("perf", *SMALL, "--tokens", "512", "--json").out)
    (said,) = json.loads(run("perf", *SMALL, "--tokens", "512", "--phase", "prefill", "--json").out)
    assert short == said
