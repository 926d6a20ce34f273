"""The power-limited rate: what a chip's watts allow its datapaths to do in a sustained run.

Joules per FLOP grow with the width of the operands that toggle: a part that every product costs
(accumulation, control) and one per bit. Sustained 16-, 8- and 4-bit rates of B200 at 1000 W (about
1700, 3150 and 4550 TFLOPS, ai-dynamo/aiconfigurator@095f58a gemm_perf) and of H100 at 700 W (about
850 and 1500) are in these proportions; `Constants.energy` scales them per family, by its process.
"""

from __future__ import annotations

FIXED = 0.07e-12
PER_BIT = 0.025e-12
# What is left for the datapaths when leakage, memory and links have had theirs.
SHARE = 0.8


def joules(bits: float) -> float:
    """Joules per FLOP of products of operands of `bits`, at an energy of 1."""
    return FIXED + PER_BIT * bits


def sustained(watts: float, bits: float, energy: float) -> float:
    """FLOP/s that `watts` allow; infinite where they are unknown (0)."""
    return SHARE * watts / (energy * joules(bits)) if watts else float("inf")
