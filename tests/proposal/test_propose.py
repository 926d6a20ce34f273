"""The package: whole, the same again, checked by its own instructions, and clear refusals."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowprec.errors import LowprecError
from lowprec.proposal.package import propose
from lowprec.proposal.package.specs import toml
from lowprec.spec import list_formats, load_datapath, load_format
from tests.proposal.small_study import write_study

FOLDERS = ("datapath", "figures", "formats", "records", "reference", "rtl", "vectors")
DOCUMENTS = ("proposal.md", "proposal.html", "proposal.pdf", "proposal.png")
RUN = """
import sys
from lowprec.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""

needs_yosys = pytest.mark.skipif(not shutil.which("yosys"), reason="no yosys")
pytestmark = needs_yosys


def write_quick(folder: Path) -> tuple[Path, Path]:
    """A study that prices nothing, whose package takes little time."""
    study, file = write_study(folder)
    data = json.loads((study / "study.json").read_text())
    del data["study"]["throughput"]
    (study / "study.json").write_text(json.dumps(data))
    return study, file


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that another process wrote, without torch."""
    folder = tmp_path_factory.mktemp("quick")
    study, file = write_quick(folder)
    command = ["propose", str(study), "--format", str(file), "--baseline", "mxfp8_e4m3"]
    command += ["-o", str(folder / "out"), "--level", "smoke"]
    environment = os.environ | {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    run = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return folder


def test_everything_is_there(quick: Path) -> None:
    out = quick / "out"
    assert sorted(p.name for p in out.iterdir() if p.is_dir()) == list(FOLDERS)
    for name in (*DOCUMENTS, "README.md", "check.py", "manifest.json"):
        assert (out / name).stat().st_size > 500
    assert (out / "reference" / "five.h").exists()
    assert (out / "vectors" / "quantize-block.hex").exists()
    assert len(list((out / "records" / "cells").iterdir())) == 10
    assert sorted(p.name for p in out.glob("rtl/*")) == [
        "dot_for_five_16.v",
        "to_five_amax_nearest_even_SatFinite.v",
    ]


def test_the_definitions_are_those_that_lowprec_reads(quick: Path) -> None:
    out = quick / "out"
    assert (out / "formats" / "five.toml").read_bytes() == (quick / "five.toml").read_bytes()
    for path in out.glob("formats/*.toml"):
        known = load_format(path.stem) if path.stem in list_formats() else None
        assert known is None or load_format(path) == known
    unit = load_datapath(out / "datapath" / "for_five.toml")
    assert unit.inputs == (load_format(out / "formats" / "five.toml").element,)  # type: ignore[union-attr]


def test_a_second_run_writes_the_same_bytes(quick: Path, tmp_path: Path) -> None:
    study, file = write_quick(tmp_path)
    again = propose(study, file, tmp_path / "again", "mxfp8_e4m3", "smoke")
    assert digests(again) == digests(quick / "out")


def test_the_manifest_holds(quick: Path) -> None:
    out = quick / "out"
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["schema"], manifest["format"], manifest["baseline"]) == (
        1,
        "five",
        "mxfp8_e4m3",
    )
    found = digests(out)
    del found["manifest.json"]
    assert {name: each["sha256"] for name, each in manifest["files"].items()} == found
    for name, each in manifest["files"].items():
        assert (out / name).stat().st_size == each["bytes"]
    text = (out / "manifest.json").read_text()
    assert text == json.dumps(manifest, indent=1, sort_keys=True) + "\n"


def steps(readme: str) -> list[str]:
    """The commands of the README's numbered steps, as printed."""
    return [line.strip() for line in re.findall(r"```\n((?: {3}.+\n)+?) {3}```", readme)]


def shell(command: str, folder: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def newcomer(quick: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the package, and a folder with a Python that has no packages, and lowprec."""
    package, tools = tmp_path / "package", tmp_path / "tools"
    shutil.copytree(quick / "out", package)
    tools.mkdir()
    bare = f'#!/bin/sh\nexec {sys._base_executable} -I -S "$@"\n'  # type: ignore[attr-defined]
    code = "import sys; sys.argv[0] = 'lowprec'; from lowprec.cli import main; main()"
    own = f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n'
    for name, text in (("python3", bare), ("lowprec", own)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return package, tools


def test_the_readme_s_steps_work_as_printed(newcomer: tuple[Path, Path]) -> None:
    package, tools = newcomer
    commands = steps((package / "README.md").read_text())
    assert [command.split()[0] for command in commands] == ["python3", "cp", "python3", "lowprec"]
    for command in commands:
        run = shell(command, package, tools)
        assert run.returncode == 0, run.stdout + run.stderr
        if command.split()[0] != "cp":
            assert "all 41 rows right" in run.stdout
            assert "wrong" not in run.stdout


def test_a_wrong_converter_is_found_and_named(newcomer: tuple[Path, Path]) -> None:
    package, tools = newcomer
    right = (package / "reference" / "five.py").read_text()
    first = right.index("if 2 * rest > unit")
    wrong = right[:first] + right[first:].replace(
        "or (2 * rest == unit and code & 1)", "or 2 * rest == unit", 1
    )
    assert wrong != right
    (package / "my_converter.py").write_text(wrong)
    check, explain = steps((package / "README.md").read_text())[2:]
    run = shell(check, package, tools)
    assert run.returncode == 1
    assert re.search(r"encode-element: \d+ of 222 rows wrong\n  row \d+ \(tie\)", run.stdout)
    assert "decode-element: all 32 rows right" in run.stdout
    run = shell(explain, package, tools)
    assert run.returncode == 1
    assert "rounds ties away from zero" in run.stdout


def test_functions_that_are_left_out_are_not_asked(newcomer: tuple[Path, Path]) -> None:
    package, tools = newcomer
    (package / "my_converter.py").write_text("def decode_element(code):\n    return 0.0\n")
    run = shell("python3 check.py my_converter.py", package, tools)
    assert run.returncode == 1
    assert "decode-element: 31 of 32 rows wrong" in run.stdout
    assert "quantize-block: not answered: no function quantize_block" in run.stdout
    assert shell("python3 check.py nothing.py", package, tools).returncode == 2


def test_the_stochastic_reference_answers_its_set(newcomer: tuple[Path, Path]) -> None:
    package, tools = newcomer
    run = shell("python3 check.py reference/five_stochastic.py", package, tools)
    assert run.returncode == 0, run.stdout
    assert re.search(r"stochastic-element: all \d+ rows right", run.stdout)
    assert "encode-element: not answered: encode_element takes 2 arguments" in run.stdout


def test_an_earlier_package_is_replaced_as_a_whole(tmp_path: Path) -> None:
    study, file = write_quick(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("{}")
    (out / "stale.txt").write_text("old")
    propose(study, file, out, None, "smoke")
    assert not (out / "stale.txt").exists()
    assert "No baseline was named" in (out / "proposal.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["five.toml", "out", "study"]


@pytest.mark.parametrize(
    ("fmt", "baseline", "message"),
    [
        ("mxfp9", None, "unknown format 'mxfp9'"),
        ("mxfp4", None, "no recipe of the study uses it alone.*mxfp4/amax.*five"),
        ("{five}", "{five}", "is the proposed format itself"),
        ("{five}", "nvfp5", "unknown format 'nvfp5'"),
    ],
)
def test_what_cannot_be_proposed_is_refused_and_leaves_nothing(
    tmp_path: Path, fmt: str, baseline: str | None, message: str
) -> None:
    study, file = write_quick(tmp_path)
    named = baseline and baseline.format(five=file)
    with pytest.raises(LowprecError, match=message):
        propose(study, fmt.format(five=file), tmp_path / "out", named, "smoke")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["five.toml", "study"]


def test_a_failure_on_the_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, file = write_quick(tmp_path)

    def fail(*_: object) -> None:
        raise LowprecError("the disk is full")

    monkeypatch.setattr("lowprec.proposal.package.build.verilog", fail)
    with pytest.raises(LowprecError, match="disk"):
        propose(study, file, tmp_path / "out", None, "smoke")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["five.toml", "study"]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    study, file = write_quick(tmp_path)
    with pytest.raises(LowprecError, match="no study's folder"):
        propose(tmp_path, file, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(LowprecError, match="something else than a proposal"):
        propose(study, file, tmp_path / "mine")
    with pytest.raises(LowprecError, match="is a file"):
        propose(study, file, file)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "words"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace('"value": 0.08', '"value": 0.008'), "its digests differ"),
        (lambda text: text[: len(text) // 2], "no JSON"),
        (lambda _: "[" * 100_000, "no JSON"),
        (lambda _: "[]", "expected a JSON object"),
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, damage: object, message: str) -> None:
    study, file = write_quick(tmp_path)
    path = next(p for p in study.glob("cells/*.json") if '"value": 0.08' in p.read_text())
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(LowprecError, match=message):
        propose(study, file, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("study.json", {"study": {"recipes": [], "throughput": {"models": ["a"]}}}),
        ("study.json", {"study": {"recipes": [{"name": "x"}]}}),
        ("search.json", {"candidates": [{"name": "x"}]}),
    ],
)
def test_damaged_plans_are_refused(tmp_path: Path, name: str, content: object) -> None:
    study, file = write_quick(tmp_path)
    (study / name).write_text(json.dumps(content))
    with pytest.raises(LowprecError, match="damaged"):
        propose(study, file, tmp_path / "out")


def test_every_built_in_format_can_be_written_and_read(tmp_path: Path) -> None:
    for name in list_formats():
        fmt = load_format(name)
        path = tmp_path / f"{name}.toml"
        path.write_text(toml(fmt.to_json() | {"facts": {"source": "written by a test"}}))
        assert load_format(path) == fmt


EXAMPLE = Path(__file__).parents[2] / "proposals" / "fp5_ue5m3"


def test_the_example_s_small_files_are_those_of_its_manifest() -> None:
    package = EXAMPLE / "package"
    files = json.loads((package / "manifest.json").read_text())["files"]
    kept = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    assert {"README.md", "proposal.md", "proposal.png", "formats/fp5_ue5m3.toml"} <= kept
    for name in kept - {"manifest.json"}:
        assert hashlib.sha256((package / name).read_bytes()).hexdigest() == files[name]["sha256"]


@pytest.mark.slow
def test_the_example_is_made_again(tmp_path: Path) -> None:
    out = propose(EXAMPLE / "study", EXAMPLE / "fp5_ue5m3.toml", tmp_path / "out", "mxfp8_e4m3")
    files = json.loads((EXAMPLE / "package" / "manifest.json").read_text())["files"]
    now = digests(out)
    # What the machines' constants and the tools' versions have no part in.
    for folder in ("formats/", "datapath/", "vectors/", "reference/", "records/"):
        same = {name for name in files if name.startswith(folder)}
        assert same == {name for name in now if name.startswith(folder)}
        assert all(now[name] == files[name]["sha256"] for name in same), folder
