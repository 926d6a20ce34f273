"""The CPU core: core.c, compiled once into the cache folder and called through ctypes.

It covers float32 arithmetic with rounding to nearest even on grids with subnormals and precision
of 2 or more, in one-dimensional blocks or none; the definition in torch does the rest, and all of
it where there is no compiler. Both give the same bits.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from lowprec.errors import LowprecError
from lowprec.spec.load import cache_dir

SOURCE = Path(__file__).with_name("core.c")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
Pair = ctypes.c_uint32 * 2


class CGrid(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_float),
        ("fixed", ctypes.c_uint32),
        ("shift", ctypes.c_int32),
        ("half", ctypes.c_uint32),
        ("odd", ctypes.c_uint32),
        ("keep", ctypes.c_uint32),
        ("bound", Pair),
        ("overflow", Pair),
        ("infinity", Pair),
        ("zero", Pair),
        ("saturates", ctypes.c_int32),
        ("lift", ctypes.c_float),
    ]


class CRule(ctypes.Structure):
    _fields_ = [
        ("power_of_two", ctypes.c_int32),
        ("divides", ctypes.c_int32),
        ("largest", ctypes.c_float),
        ("carry", ctypes.c_int32),
        ("emax", ctypes.c_int32),
        ("lowest", ctypes.c_int32),
        ("highest", ctypes.c_int32),
        ("has_tensor_scale", ctypes.c_int32),
        ("tensor_scale", ctypes.c_float),
        ("onto", CGrid),
    ]


@dataclass(frozen=True)
class Backend:
    """Which implementation runs on CPU tensors, "core" or "torch", and why."""

    name: str
    reason: str


def backend() -> Backend:
    """What computes on CPU tensors. LOWPREC_BACKEND=torch or core forces one; same bits."""
    return load()[1]


@cache
def load() -> tuple[ctypes.CDLL | None, Backend]:
    wanted = os.environ.get("LOWPREC_BACKEND", "")
    if wanted not in ("", "core", "torch"):
        raise LowprecError(f"LOWPREC_BACKEND={wanted!r}: expected 'core' or 'torch'")
    if wanted == "torch":
        return None, Backend("torch", "LOWPREC_BACKEND=torch")
    try:
        library = ctypes.CDLL(str(_compiled()))
        _declare(library)
        _self_test(library)
    except (OSError, subprocess.SubprocessError, LowprecError) as error:
        if wanted == "core":
            raise LowprecError(f"LOWPREC_BACKEND=core: {error}") from None
        return None, Backend("torch", f"no CPU core: {error}")
    return library, Backend("core", f"compiled from {SOURCE.name}")


def _compiled() -> Path:
    """The shared library of this source, these flags and this kind of machine."""
    key = sha256(SOURCE.read_bytes() + " ".join((*FLAGS, platform.machine())).encode()).hexdigest()
    library = cache_dir() / f"core-{key[:16]}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LowprecError("no C compiler (cc) found")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        fresh = Path(folder) / library.name
        command = [compiler, *FLAGS, "-fPIC", "-shared", "-o", str(fresh), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise LowprecError(f"{compiler} failed: {said[-1]}")
        fresh.replace(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    pointer, size, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    grid, rule = ctypes.POINTER(CGrid), ctypes.POINTER(CRule)
    library.lp_cast.argtypes = [pointer, pointer, size, grid]
    library.lp_largest.argtypes = [pointer, size]
    library.lp_largest.restype = i32
    library.lp_scale.argtypes = [i32, rule]
    library.lp_scale.restype = ctypes.c_float
    library.lp_apply.argtypes = [pointer, pointer, size, i32, rule, grid]
    library.lp_rows.argtypes = [pointer, pointer, size, size, size, rule, grid]
    library.lp_columns.argtypes = [pointer, pointer, size, size, size, size, rule, grid]


def _self_test(library: ctypes.CDLL) -> None:
    """Both roundings of core.c, of bfloat16 with Inf and of saturating float8_e5m2: ties, a
    subnormal, NaN, -0 and an overflow, which flush-to-zero or -ffast-math would get wrong."""
    infinities, zeros = (0x7F800000, 0xFF800000), (0, 0x80000000)
    ends = (0x7F7F0000, 0x7F7F0000), infinities, infinities, zeros
    bfloat16 = CGrid(2.0**-110, 1 << 23, 16, 0x7FFF, 1, 0xFFFF0000, *map(_pair, ends), 0, 2.0**16)
    given = [1.00390625, 1.01171875, 1e-40, float("nan"), -0.0, -3.4e38]
    wanted = [0x3F800000, 0x3F820000, 0x00010000, 0x7FC00000, 0x80000000, 0xFF800000]
    _check(library, bfloat16, given, wanted)
    limits = (0x47600000, 0xC7600000)
    ends = (limits[0], limits[0]), limits, limits, zeros
    e5m2 = CGrid(2.0**7, 113 << 23, 21, 0xFFFFF, 1, 0xFFE00000, *map(_pair, ends), 1, 2.0**21)
    given = [1.125, 1.375, 2.0**-17, 3 * 2.0**-17, float("nan"), -0.0, -1e6]
    wanted = [0x3F800000, 0x3FC00000, 0, 0x38000000, 0x7FC00000, 0x80000000, 0xC7600000]
    _check(library, e5m2, given, wanted)


def _pair(ends: tuple[int, int]) -> ctypes.Array[ctypes.c_uint32]:
    return Pair(*ends)


def _check(library: ctypes.CDLL, grid: CGrid, given: list[float], wanted: list[int]) -> None:
    x = torch.tensor(given)
    y = torch.empty_like(x)
    library.lp_cast(x.data_ptr(), y.data_ptr(), len(x), ctypes.byref(grid))
    if [bits & 0xFFFFFFFF for bits in y.view(torch.int32).tolist()] != wanted:
        raise LowprecError("the compiled core rounds wrongly here (flush-to-zero, fast-math?)")
