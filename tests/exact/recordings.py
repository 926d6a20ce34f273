"""Inner products that real tensor cores computed: a few dozen lines of each beside this file, all
of them in the folder that LOWPREC_MMA_RECORDINGS names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lowprec.exact import value
from lowprec.spec import Format, list_datapaths, load_datapath_facts, load_format

EXCERPT = Path(__file__).parent / "data" / "tensor_cores.txt"
DEFAULT = Path(__file__).parents[3] / "shared" / "reference" / "formats" / "mma"
FOLDER = Path(os.environ.get("LOWPREC_MMA_RECORDINGS") or DEFAULT)

# Recorded name and datapath, of every unit that has a recording.
RECORDED = [(r, name) for name in list_datapaths() for r in load_datapath_facts(name).recordings]
FORMATS = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "tf32": "tfloat32",
    "E4M3": "float8_e4m3fn",
    "E5M2": "float8_e5m2",
}
# The inputs list a c that the recorded results, to the bit, do not contain.
WITHOUT_C = {"H100_E4M3_fp32", "H100_E5M2_fp32"}


@dataclass(frozen=True)
class Recording:
    """a, b: lines x K, c: lines, all float32; d: the bits of the float32 results."""

    format: Format
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    c: NDArray[np.float32]
    d: NDArray[np.uint32]

    def lines(self, step: int = 1) -> Iterator[tuple[list[float], list[float], float, int]]:
        for i in range(0, len(self.d), step):
            yield self.a[i].tolist(), self.b[i].tolist(), float(self.c[i]), int(self.d[i])


def whole(name: str) -> Recording:
    """All lines of a recording; skips the test where there are none."""
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no recording {path}: set LOWPREC_MMA_RECORDINGS to the folder of the .npz")
    data = np.load(path)
    c = np.zeros_like(data["c"]) if name in WITHOUT_C else data["c"]
    return Recording(_format(name), data["a"], data["b"], c, data["d_bits"])


def excerpt(name: str) -> Recording:
    """The lines of a recording that the checkout holds."""
    rows = [line.split() for line in _sections()[name]]
    fmt = _format(name)
    a, b = (np.stack([_decode(row[i], fmt) for row in rows]) for i in (0, 1))
    c, d = (np.array([int(row[i], 16) for row in rows], np.uint32) for i in (2, 3))
    return Recording(fmt, a, b, c.view(np.float32) * (name not in WITHOUT_C), d)


def _format(name: str) -> Format:
    fmt = load_format(FORMATS[name.split("_")[1]])
    assert isinstance(fmt, Format)
    return fmt


@cache
def _sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in EXCERPT.read_text().splitlines():
        if line.startswith("@"):
            lines = sections.setdefault(line[1:].split()[0], [])
        elif not line.startswith("#"):
            lines.append(line)
    return sections


def _decode(text: str, fmt: Format) -> NDArray[np.float32]:
    width = -(-fmt.bits // 4)
    codes = [int(text[i : i + width], 16) for i in range(0, len(text), width)]
    return np.array([float(value(code, fmt)) for code in codes], np.float32)
