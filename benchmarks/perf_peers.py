"""Matmul times: lowprec's kernel level, the plain roofline and peers' formulas on the same points.

    python benchmarks/perf_peers.py     # needs torch and torchao; a minute

torchao: its inference roofline (torchao.testing.training.roofline_utils, run as installed) on the
chips and formats that it has. GenZ: its rule restated (abhibambhaniya/GenZ-LLM-Analyzer: the chip's
16-bit rate and bytes, time times 0.5 for 8 bits and 0.25 for 4, no scales, no launch), because its
package is not on the index. lowprec twice: with the shipped constants, which were
fitted to these points, and with the point's machine left out of the fit.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lowprec.perf.kernel.matmul import priced
from lowprec.perf.roofline import Chips, cost
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.fit import Sample, grouped, samples
from lowprec.perf.validation.leave_out import residuals
from lowprec.perf.validation.table import fitted_groups
from lowprec.spec import Quantizer, Rule

POINTS = Path(__file__).parent / "validation" / "gemm.csv"
TORCHAO = {"h100_sxm": "NVIDIA H100", "b200": "NVIDIA B200", "mi300x": "AMD Instinct MI300X"}
RECIPES = {"tensor/fp8": "tensorwise", "token/fp8": "rowwise", "mx/fp4": "nvfp4"}


def roofline(s: Sample) -> float:
    """lowprec's level "bound"."""
    rule = Rule.model_construct(
        activation=Quantizer.model_construct(format=s.plan.x),
        weight=Quantizer.model_construct(format=s.plan.w),
    )
    found = cost(s.op, rule, Chips(s.plan.machine, 1), s.plan.dtype).seconds
    return found.total - (found.quantize if s.quantized else 0.0)


def genz(s: Sample) -> float:
    """GenZ's rule: one factor for the narrower operand, on time of compute and of memory."""
    op = s.op
    factor = {16: 1.0, 8: 0.5, 4: 0.25}[_bits(s)]
    rate = max(p.rate.value for p in s.plan.machine.datapaths if _is_sixteen(p))
    moved = 2 * (op.m * op.k + op.n * op.k + op.m * op.n)
    return factor * max(op.flops / rate, moved / s.plan.chip.bandwidth)


def _bits(s: Sample) -> int:
    return int(s.plan.path.rpartition("/")[2].removeprefix("fp").removeprefix("int"))


def _is_sixteen(path: Any) -> bool:
    return any(fmt.bits == 16 for fmt in path.operands)


def torchao(s: Sample, utils: Any, torch: Any) -> float | None:
    """Its matmul and the traffic of its quantizer; None where it has no chip or recipe."""
    chip, path = TORCHAO.get(s.plan.chip.name), s.plan.path
    recipe = RECIPES.get(path)
    if chip is None or (path != "plain/16" and recipe is None):
        return None
    specs = utils.gpu_name_to_specs[chip]
    dtype = {"plain/16": torch.bfloat16, "mx/fp4": torch.float4_e2m1fn_x2}.get(
        path, torch.float8_e4m3fn
    )
    scaled = recipe if recipe == "nvfp4" else None
    m, k, n = s.op.m, s.op.k, s.op.n
    time = float(utils.get_inference_gemm_time_sympy(m, k, n, dtype, scaled, chip))
    if recipe and not s.quantized:
        traffic = utils.get_inference_tensor_memory_traffic_ovhd_s(specs, m, k, "input", recipe)
        time += sum(float(t) for t in traffic)
    return time


def main() -> None:
    import numpy as np
    import torch
    from torchao.testing.training import roofline_utils

    logging.disable(logging.WARNING)
    groups = grouped(samples(read_points(POINTS)))
    left: dict[tuple[str, str], list[float]] = {}
    for residual in residuals(groups, fitted_groups(), "machine"):
        left.setdefault(residual.sample.group, []).append(residual.predicted)
    header = ("machine", "path", "n", "lowprec", "left out", "roofline", "GenZ rule", "torchao")
    print("median absolute error, %")
    print("{:<10}{:<12}{:>5}{:>9}{:>10}{:>10}{:>11}{:>9}".format(*header))
    for group, data in groups.items():
        measured = np.array([s.seconds for s in data])
        columns: list[list[float | None]] = [
            [priced(s.op, s.plan, quantized=s.quantized).seconds.total for s in data],
            list(left[group]),
            [roofline(s) for s in data],
            [genz(s) for s in data],
            [torchao(s, roofline_utils, torch) for s in data],
        ]
        cells = []
        for column in columns:
            if column[0] is None:
                cells.append("-")
                continue
            errors = np.abs(np.array(column, dtype=float) / measured - 1)
            cells.append(f"{100 * np.median(errors):.1f}")
        print("{:<10}{:<12}{:>5}{:>9}{:>10}{:>10}{:>11}{:>9}".format(*group, len(data), *cells))


if __name__ == "__main__":
    main()
