"""Published training steps, predicted: Megatron-LM's table, torchtitan's and torchao's runs."""

from __future__ import annotations

import re
from functools import cache

from lowprec.errors import LowprecError
from lowprec.perf.footprint import Schedule
from lowprec.perf.hardware import Machine, machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.training import Step, training_step
from lowprec.perf.validation.megatron import MODELS
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.workloads import load_workload

_TENSOR = "float8_e4m3fn/amax:tensor"
_ROW = "float8_e4m3fn/amax:channel"
# torchao's float8 training: all three products, gradients in E5M2 under scales of whole tensors;
# rowwise with the weight's gradient in high precision (gw_hp).
_RECIPES = {
    "bf16": "*: keep",
    "tensor": (
        f"lm_head: keep; *: weight={_TENSOR} activation={_TENSOR} "
        "input_gradient.gradient=float8_e5m2/amax:tensor "
        "weight_gradient.gradient=float8_e5m2/amax:tensor"
    ),
    "row": (
        f"lm_head: keep; *: weight={_ROW} activation={_ROW} input_gradient.gradient={_ROW} "
        f"weight_gradient.gradient={_ROW}"
    ),
    "row_gw_hp": (
        f"lm_head: keep; *: weight={_ROW} activation={_ROW} input_gradient.gradient={_ROW}"
    ),
}


def predict(point: Point) -> Prediction | None:
    """Seconds of an iteration or tokens per second and chip, with the 90 % interval; None if the
    row is no training step.

    LowprecError: a time to a target, which depends on convergence; a step that is not fused.
    """
    if "MLPerf training" in point.what:
        raise LowprecError("time to a target quality: the number of steps is not the model's")
    if "iteration" in point.what:
        return _megatron(point)
    if "FSDP" in point.what:
        return _fsdp(point)
    return None


def _megatron(point: Point) -> Prediction:
    name = point.what.split(" iteration")[0]
    if name not in MODELS:
        raise LowprecError(f"{name!r}: shapes and layout are not given by the row")
    model = MODELS[name]
    step = training_step(
        model.workload(),
        "*: keep",
        machine(point.hw),
        parallel=model.parallel(sequence="sequence parallel" in point.what),
        schedule=model.schedule(full="full recompute" in point.what),
        level="kernel",
    )
    return Prediction(step.seconds, step.low, step.high, "s", step.calibration)


def _fsdp(point: Point) -> Prediction:
    if "eager" in point.what:
        raise LowprecError("eager: elementwise operations are not fused, which is not modelled")
    if not re.search(r"llama-?3(\.1)?-8b", point.what, re.IGNORECASE):
        raise LowprecError(f"{point.what!r}: expected a Llama-3-8B")
    recipe = _recipe(point.format)
    software = "torchao" if "pytorch/ao" in point.source else "torchtitan"
    narrow = "all-gather" in point.format
    chip = _machine(point.hw)
    step = _llama(_RECIPES[recipe], chip, int(point.chips), narrow, software)
    rate = step.tokens_per_second_per_chip
    scale = rate * step.seconds
    return Prediction(rate, scale / step.high, scale / step.low, "tok/s/GPU", step.calibration)


def _recipe(text: str) -> str:
    if text == "bf16":
        return "bf16"
    if "rowwise" in text:
        return "row_gw_hp" if "gw_hp" in text else "row"
    if "fp8" in text:
        return "tensor"
    raise LowprecError(f"format {text!r}: expected bf16, fp8 tensorwise or rowwise")


@cache
def _llama(recipe: str, chip: Machine, chips: int, narrow: bool, software: str) -> Step:
    """8192 tokens per sequence, selective recomputation per operation, parameters sharded."""
    work = load_workload("llama-3.1-8b").at(batch=1, tokens=8192, context=0, logits="all")
    how = Schedule(
        recompute="operations",
        sharding="parameters",
        software=software,
        gather="float8_e4m3fn" if narrow else None,
    )
    return training_step(
        work, recipe, chip, parallel=Parallel(dp=chips), schedule=how, level="kernel"
    )


def _machine(hw: str) -> Machine:
    """Meta's H100 has HBM2e and fewer watts, between those of the SXM and NVL cards; torchtitan
    names no figure."""
    if "HBM2e" in hw:
        return machine("h100_sxm").what_if("memory.bandwidth", 2.4e12).what_if("power", 500.0)
    return machine(hw)
