"""The CPU core: core.c, compiled once into the cache folder and called through ctypes.

It covers float32 arithmetic on grids with subnormals and precision of 2 or more, in one-dimensional
blocks or none, with rounding to nearest even or stochastic by seed; the definition in torch does
the rest, and all of it where there is no compiler. Both give the same bits.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from lowprec.errors import LowprecError
from lowprec.spec.load import cache_dir

SOURCES = sorted(Path(__file__).parent.glob("core*.[ch]"))
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w")
Pair = c_int32 * 2


class CGrid(ctypes.Structure):
    _fields_ = [
        ("magic", c_float),
        ("fixed", c_int32),
        ("shift", c_int32),
        ("half", c_int32),
        ("odd", c_int32),
        ("keep", c_int32),
        ("bound", Pair),
        ("overflow", Pair),
        ("infinity", Pair),
        ("zero", Pair),
        ("saturates", c_int32),
        ("mirrored", c_int32),
        ("random", c_uint32),
        ("per_quantum", c_float),
        ("quantum", c_float),
        ("nothing", c_float),
    ]


class CRule(ctypes.Structure):
    _fields_ = [
        ("power_of_two", c_int32),
        ("divides", c_int32),
        ("largest", c_float),
        ("carry", c_int32),
        ("emax", c_int32),
        ("lowest", c_int32),
        ("highest", c_int32),
        ("has_outer", c_int32),
        ("onto", CGrid),
    ]


class CCode(ctypes.Structure):
    _fields_ = [
        ("mask", c_int32),
        ("negates", c_int32),
        ("sign", c_int32),
        ("infinity", c_int32),
        ("nan", c_int32),
    ]


class Task(ctypes.Structure):
    _fields_ = [
        ("onto", c_void_p),
        ("scale", c_void_p),
        ("code", c_void_p),
        ("k", c_int64),
        ("inner", c_int64),
        ("b", c_int64),
    ]


# What the functions of the core take and return.
_RULE = ctypes.POINTER(CRule)
_FUNCTIONS = {
    "lp_quantize": (
        [*[c_void_p] * 5, c_int64, c_int64, c_uint64, c_int32, c_float, c_int32, c_void_p],
        c_int32,
    ),
    "lp_largest": ([c_void_p, c_int64], c_int32),
    "lp_scale": ([c_int32, _RULE], c_float),
    "lp_decode": (
        [c_void_p, c_void_p, *[c_int64] * 4, c_void_p, c_void_p, c_int32, c_int32],
        c_int32,
    ),
    "lp_pack": ([c_void_p, c_void_p, c_int64, c_int32], c_int32),
    "lp_unpack": ([c_void_p, c_void_p, c_int64, c_int32], None),
    "lp_huge": ([c_void_p, c_int64], None),
    "lp_matmul": ([c_void_p, *[c_int64] * 4], c_int32),
}


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
        library = opened(compiled())
    except (OSError, subprocess.SubprocessError, LowprecError) as error:
        if wanted == "core":
            raise LowprecError(f"LOWPREC_BACKEND=core: {error}") from None
        return None, Backend("torch", f"no CPU core: {error}")
    return library, Backend("core", "compiled from core.c")


def opened(path: Path) -> ctypes.CDLL:
    """The library, its functions declared and tested."""
    library = ctypes.CDLL(str(path))
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    _self_test(library)
    return library


def compiled(march: str = "native") -> Path:
    """The shared library of these sources and flags for this processor, or another `march`."""
    said = platform.machine(), _processor() if march == "native" else march
    key = sha256(b"".join(p.read_bytes() for p in SOURCES) + repr((FLAGS, said)).encode())
    library = cache_dir() / f"core-{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LowprecError("no C compiler (cc) found")
    source = str(Path(__file__).with_name("core.c"))
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        fresh = Path(folder) / library.name
        command = [
            compiler,
            *FLAGS,
            f"-march={march}",
            "-fPIC",
            "-shared",
            "-o",
            str(fresh),
            source,
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise LowprecError(f"{compiler} failed: {lines[-1]}")
        fresh.replace(library)
    return library


def _processor() -> str:
    """What distinguishes this processor's instructions from others' in a shared cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s for s in lines if s.startswith(("flags", "Features", "isa"))), "")


def _self_test(library: ctypes.CDLL) -> None:
    """Both roundings of core.c, of bfloat16 with Inf and of saturating float8_e5m2, and its codes:
    ties, a subnormal, NaN, -0 and an overflow, which flush-to-zero or -ffast-math would get wrong;
    packed bits, in which an order of bytes would show."""
    infinities, zeros = _pair(0x7F800000, 0xFF800000), _pair(0, 0x80000000)
    ends = _pair(0x7F7F0000, 0x7F7F0000), infinities, infinities, zeros
    keep = c_int32(0xFFFF0000)
    bfloat16 = CGrid(2.0**-110, 1 << 23, 16, 0x7FFF, 1, keep, *ends)
    given = [1.00390625, 1.01171875, 1e-40, float("nan"), -0.0, -3.4e38]
    wanted = [0x3F800000, 0x3F820000, 0x00010000, 0x7FC00000, 0x80000000, 0xFF800000]
    _check(_cast(library, given, bfloat16), wanted)
    limits = _pair(0x47600000, 0xC7600000)
    ends = _pair(0x47600000, 0x47600000), limits, limits, zeros
    e5m2 = CGrid(2.0**7, 113 << 23, 21, 0xFFFFF, 1, -(1 << 21), *ends, 1, 1)
    given = [1.125, 1.375, 2.0**-17, 3 * 2.0**-17, float("nan"), -0.0, -1e6]
    wanted = [0x3F800000, 0x3FC00000, 0, 0x38000000, 0x7FC00000, 0x80000000, 0xC7600000]
    _check(_cast(library, given, e5m2), wanted)
    code = CCode(0xFF, 0, 0x80, 0x7C, 0x7E)
    codes = _cast(library, given, e5m2, code)
    _check(codes, [0x3C, 0x3E, 0, 2, 0x7E, 0x80, 0xFB])
    packed = torch.zeros(7, dtype=torch.uint8)
    library.lp_pack(codes.data_ptr(), packed.data_ptr(), 7, 7)
    bits = sum((code & 0x7F) << (7 * i) for i, code in enumerate(codes.tolist()))
    _check(packed, list(bits.to_bytes(7, "little")))


def _pair(positive: int, negative: int) -> ctypes.Array[c_int32]:
    return Pair(positive, negative)


def _cast(
    library: ctypes.CDLL, given: list[float], grid: CGrid, code: CCode | None = None
) -> torch.Tensor:
    x, n = torch.tensor(given), len(given)
    y = torch.empty(n) if code is None else torch.empty(n, dtype=torch.uint8)
    to = (y.data_ptr(), None) if code is None else (None, y.data_ptr())
    task = Task(ctypes.addressof(grid), None, None if code is None else ctypes.addressof(code))
    library.lp_quantize(ctypes.addressof(task), x.data_ptr(), *to, None, 0, n, 0, 0, 0.0, 0, None)
    return y.view(torch.int32) if code is None else y


def _check(found: torch.Tensor, wanted: list[int]) -> None:
    if [bits & 0xFFFFFFFF for bits in found.tolist()] != wanted:
        raise LowprecError("the compiled core rounds wrongly here (flush-to-zero, fast-math?)")
