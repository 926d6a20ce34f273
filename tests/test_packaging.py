"""The formats and the other data are found from a wheel, an editable install and a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType

import pytest

import lowprec

ROOT = Path(__file__).parent.parent
DATA = ("formats", "evals")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
BUILD = ["--no-deps", "--no-build-isolation", "--no-index"]

# Says where lowprec was found, what formats it lists, and one that is built from another.
_QUESTION = """
import json, lowprec
from lowprec.spec.load import data_dir
block = lowprec.format("mxfp4")
print(json.dumps({
    "file": lowprec.__file__,
    "formats": sorted(lowprec.list_formats()),
    "element": lowprec.format("float4_e2m1fn").max,
    "mxfp4": repr(block),
    "data": {name: str(data_dir(name)) for name in ("formats", "evals")},
}))
"""


def _ask(python: Path | str, path: Path | None, cwd: Path) -> dict[str, object]:
    """What an installation answers; `path` is the only addition to the interpreter's own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    child = subprocess.run(
        [str(python), "-c", _QUESTION],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def _check(answer: dict[str, object], package: Path, data: Path) -> None:
    assert Path(str(answer["file"])).parent == package
    assert answer["formats"] == sorted(lowprec.list_formats())
    assert answer["element"] == 6.0
    assert answer["mxfp4"] == repr(lowprec.format("mxfp4"))
    assert answer["data"] == {name: str(data / name) for name in DATA}


def _pip(*arguments: str | Path) -> None:
    child = subprocess.run(
        [*PIP, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds, so that nothing is found beside the real one by chance."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("lowprec", *DATA):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a built wheel was installed into."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("target")
    _pip("wheel", *BUILD, "--wheel-dir", wheels, checkout)
    (wheel,) = wheels.glob("lowprec-*.whl")
    _pip("install", "--no-deps", "--no-index", "--target", target, wheel)
    return target


def _files(folder: Path) -> set[str]:
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {f for f in files if not f.endswith(".pyc")}


def test_a_checkout_finds_its_formats(checkout: Path, tmp_path: Path) -> None:
    _check(_ask(sys.executable, checkout, tmp_path), checkout / "lowprec", checkout)


def test_a_wheel_finds_its_formats(installed: Path, tmp_path: Path) -> None:
    package = installed / "lowprec"
    _check(_ask(sys.executable, installed, tmp_path), package, package / "_data")


def test_a_wheel_carries_the_package_and_its_data_and_nothing_else(
    checkout: Path, installed: Path
) -> None:
    expected = {f"lowprec/{name}" for name in _files(checkout / "lowprec")}
    for data in DATA:
        names = (name for name in _files(checkout / data) if not name.endswith(".py"))
        expected |= {f"lowprec/_data/{data}/{name}" for name in names}
    found = {f for f in _files(installed) if ".dist-info/" not in f and not f.startswith("bin/")}
    assert found == expected


def test_an_editable_install_finds_its_formats(checkout: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    # pip and the libraries are those of this interpreter, as a plain folder on the path, which
    # leaves out any lowprec that is itself installed here as editable.
    libraries = sysconfig.get_path("purelib")
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(libraries)
    _pip("--python", python, "install", *BUILD, "--editable", checkout)
    _check(_ask(python, None, tmp_path), checkout / "lowprec", checkout)
    assert not (site / "lowprec").exists(), "a copy beside the editable package would grow stale"
    assert (environment / "bin" / "lowprec").is_file()


@pytest.mark.parametrize("name", lowprec.__all__)
def test_every_public_name_exists_and_is_no_module(name: str) -> None:
    # A module of the same name would hide the function once something imports it.
    assert not isinstance(getattr(lowprec, name), ModuleType)
