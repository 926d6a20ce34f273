"""Matmul times: lowprec's kernel level, the plain roofline and two peers on the same points.

    python benchmarks/perf_peers.py     # needs torch and torchao; a minute

torchao: its inference roofline (torchao.testing.training.roofline_utils, run as installed) on the
chips and formats that it has. GenZ: the package itself, which is not on the index: a checkout of
abhibambhaniya/GenZ-LLM-Analyzer (@091bdd0 was run) and what it imports on PYTHONPATH; "-" without
it. Its operator and its own table of chips are asked, with one number of bits for all operands, as
it has them. lowprec twice: with the shipped constants, which were fitted to these points, and with
the point's machine left out of the fit.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
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
# The chips of GenZ's Systems/system_configs.py; of Blackwell it has no B200.
GENZ = {"a100": "A100_80GB_GPU", "h100_sxm": "H100_GPU", "b200": "GB200", "mi300x": "MI300X"}
RECIPES = {"tensor/fp8": "tensorwise", "token/fp8": "rowwise", "mx/fp4": "nvfp4"}


def roofline(s: Sample) -> float:
    """lowprec's level "bound"."""
    rule = Rule.model_construct(
        activation=Quantizer.model_construct(format=s.plan.x),
        weight=Quantizer.model_construct(format=s.plan.w),
    )
    found = cost(s.op, rule, Chips(s.plan.machine, 1), s.plan.dtype).seconds
    return found.total - (found.quantize if s.quantized else 0.0)


def genz() -> Callable[[Sample], float | None]:
    """What GenZ says of a sample; None where it has no such chip, or is not there."""
    found = importlib.util.find_spec("GenZ")
    if found is None or found.origin is None:
        return lambda _: None
    operators, systems, units = (
        importlib.import_module(f"GenZ.{name}") for name in ("operators", "system", "unit")
    )
    chips: dict[str, Any] = {}
    exec((Path(found.origin).parents[1] / "Systems" / "system_configs.py").read_text(), chips)

    def seconds(s: Sample) -> float | None:
        name = GENZ.get(s.plan.chip.name)
        if name is None:
            return None
        chip = chips["system_configs"][name]
        system = systems.System(
            flops=chip["Flops"], offchip_mem_bw=chip["Memory_BW"], bits=_bits(s.plan.path)
        )
        gemm = operators.GEMM(["gemm", 1, s.op.n, s.op.m, s.op.k, 0, 3], (1.0, 1.0, 1.0))
        return 1e-3 * float(gemm.get_roofline(system, units.Unit())["Latency (msec)"])

    return seconds


def _bits(path: str) -> str:
    """GenZ's word for the operands of a path."""
    kind, _, fmt = path.partition("/")
    return {"plain": "bf16", "weight": f"int{fmt}"}.get(kind, fmt)


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
    peer = genz()
    header = ("machine", "path", "n", "lowprec", "left out", "roofline", "GenZ", "torchao")
    print("median absolute error, %")
    print("{:<10}{:<12}{:>5}{:>9}{:>10}{:>10}{:>11}{:>9}".format(*header))
    for group, data in groups.items():
        # Without what the way of timing added, which no model of a kernel has.
        measured = np.array([s.seconds - s.dispatch for s in data])
        columns: list[list[float | None]] = [
            [priced(s.op, s.plan, quantized=s.quantized).seconds.total for s in data],
            [t - s.dispatch for t, s in zip(left[group], data, strict=True)],
            [roofline(s) for s in data],
            [peer(s) for s in data],
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
