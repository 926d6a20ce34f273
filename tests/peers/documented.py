"""Answers of peers that are no test dependency, as recorded, against what ours are.

Recorded in 2026 from microxcaling (Microsoft, github.com/microsoft/microxcaling), torchao 0.18,
AMD Quark, NVIDIA ModelOpt, compressed-tensors and ml_dtypes, each run on the inputs listed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import lowprec as lp
from tests.peers.case import show

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Documented:
    """answers: theirs. except_at: the inputs where ours differ; why."""

    peer: str
    what: str
    inputs: Sequence[float]
    answers: Sequence[float]
    ours: Sequence[float]
    except_at: Sequence[float] = ()
    why: str = ""

    def different(self) -> list[float]:
        every = zip(self.inputs, self.answers, self.ours, strict=True)
        return [x for x, a, b in every if show(float(a)) != show(float(b))]


E4M3 = [1000, 448, 464, 464.1, 480, -1000, INF, -INF, NAN, -0.0]
TIES = [4.25, 1.0625, 1.1875, 2**-10, 3 * 2**-10, 1.5 * 2**-10, 5 * 2**-10]
FP4_AMAX = [5.5, 6, 6.0000005, 7, 7.5, 8, 3, 3.5, 2**-126, 0, 7.3e-40, 1]
FP8_AMAX = [1, 447, 448, 448.00003, 480, 500, 511.99997, 255.999985, 896, 957]


def _cast(x: Sequence[float], rounding: str, saturation: str) -> list[float]:
    return lp.cast(torch.tensor(x), "float8_e4m3fn", rounding, saturation).tolist()


def _bytes(amax: Sequence[float], name: str, rule: str) -> list[int]:
    x = torch.tensor(amax, dtype=torch.float32)[:, None].expand(-1, 32)
    return lp.quantize(x, f"{name}/{rule}").scales.flatten().tolist()


def documented() -> list[Documented]:
    beyond = "has Inf for overflow, which E4M3 has not, and loses the sign of zero"
    fp4 = {
        "floor": ("torchao, Quark", [127, 127, 127, 127, 127, 128, 126, 126, 0, 0, 0, 125]),
        "ceil": ("torchao, Quark", [128, 128, 128, 128, 128, 128, 127, 127, 0, 0, 0, 125]),
        "even": ("torchao, Quark", [127, 127, 127, 128, 128, 128, 126, 127, 0, 0, 0, 125]),
        "rceil": ("torchao, ModelOpt", [127, 127, 128, 128, 128, 128, 126, 127, 0, 0, 0, 125]),
    }
    fp8 = {
        "floor": ("torchao, Quark", [119, 127, 127, 127, 127, 127, 127, 126, 128, 128]),
        "ceil": ("torchao, Quark", [119, 128, 128, 128, 128, 128, 128, 127, 129, 129]),
        "even": ("torchao, Quark", [119, 127, 127, 127, 127, 128, 128, 127, 128, 128]),
        "rceil": ("torchao, ModelOpt", [119, 127, 127, 128, 128, 128, 128, 127, 128, 129]),
    }
    return [
        Documented(
            "microxcaling", "E4M3, nearest, not saturating: nearest-away/OvfInf", E4M3,
            [INF, 448, INF, INF, INF, -INF, INF, -INF, NAN, 0],
            _cast(E4M3, "nearest-away", "OvfInf"),
            [1000, 464, 464.1, 480, -1000, INF, -INF, -0.0], beyond,
        ),
        Documented(
            "microxcaling", "E4M3, even, not saturating: nearest-even/OvfInf", E4M3,
            [INF, 448, 448, INF, INF, -INF, INF, -INF, NAN, 0],
            _cast(E4M3, "nearest-even", "OvfInf"),
            [1000, 464.1, 480, -1000, INF, -INF, -0.0], beyond,
        ),
        Documented(
            "microxcaling", "E4M3, nearest, of ties: nearest-away", TIES,
            [4.5, 1.125, 1.25, 2**-9, 2**-8, 2**-9, 3 * 2**-9],
            _cast(TIES, "nearest-away", "SatFinite"),
        ),
        Documented(
            "Quark", "E4M3: nearest-even/SatFinite", E4M3,
            [448, 448, 448, 448, 448, -448, 448, -448, NAN, -0.0],
            _cast(E4M3, "nearest-even", "SatFinite"),
        ),
        *(
            Documented(peer, f"mxfp4 scales by amax: {rule}", FP4_AMAX, bytes_,
                       _bytes(FP4_AMAX, "mxfp4", rule))
            for rule, (peer, bytes_) in fp4.items()
        ),
        *(
            Documented(peer, f"mxfp8_e4m3 scales by amax: {rule}", FP8_AMAX, bytes_,
                       _bytes(FP8_AMAX, "mxfp8_e4m3", rule))
            for rule, (peer, bytes_) in fp8.items()
        ),
        Documented(
            "microxcaling", "mxfp8_e4m3 scales by amax: floor", FP8_AMAX,
            [119, 127, 127, 127, 127, 127, 128, 127, 128, 128],
            _bytes(FP8_AMAX, "mxfp8_e4m3", "floor"), [511.99997, 255.999985],
            "takes floor(log2) in float32, which rounds up just below 2^k",
        ),
    ]  # fmt: skip
