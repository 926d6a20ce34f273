"""lowprec: number formats, what they cost a model in accuracy, and what they buy a machine.

Every name is loaded at its first use: `format` and all that reads files without torch, the rest
with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Each public name: its module, and its name there.
_HOME = {
    "Backend": ("lowprec.kernels", "Backend"),
    "Calibration": ("lowprec.nn", "Calibration"),
    "LowprecError": ("lowprec.errors", "LowprecError"),
    "Packed": ("lowprec.kernels", "Packed"),
    "QTensor": ("lowprec.kernels", "QTensor"),
    "backend": ("lowprec.kernels", "backend"),
    "calibrate": ("lowprec.nn", "calibrate"),
    "cast": ("lowprec.kernels", "cast"),
    "coverage": ("lowprec.nn", "coverage"),
    "datapath": ("lowprec.spec", "load_datapath"),
    "decode": ("lowprec.kernels", "decode"),
    "dequantize": ("lowprec.kernels", "dequantize"),
    "dot": ("lowprec.kernels", "dot"),
    "encode": ("lowprec.kernels", "encode"),
    "estimate": ("lowprec.perf", "estimate"),
    "evaluate": ("lowprec.studies", "evaluate"),
    "fake_quantize": ("lowprec.kernels", "fake_quantize"),
    "format": ("lowprec.spec", "load_format"),
    "list_datapaths": ("lowprec.spec", "list_datapaths"),
    "list_formats": ("lowprec.spec", "list_formats"),
    "list_machines": ("lowprec.perf", "list_machines"),
    "load_checkpoint": ("lowprec.checkpoints", "load_checkpoint"),
    "load_training_state": ("lowprec.nn.training.state", "load_training_state"),
    "load_workload": ("lowprec.perf", "load_workload"),
    "machine": ("lowprec.perf", "machine"),
    "matmul": ("lowprec.kernels", "matmul"),
    "pack": ("lowprec.kernels", "pack"),
    "propose": ("lowprec.proposal.package", "propose"),
    "quantize": ("lowprec.kernels", "quantize"),
    "quantize_optimizer": ("lowprec.nn.training.optimizer", "quantize_optimizer"),
    "quantize_packed": ("lowprec.kernels", "quantize_packed"),
    "quantizer": ("lowprec.spec", "load_quantizer"),
    "recipe": ("lowprec.spec", "load_recipe"),
    "save_checkpoint": ("lowprec.checkpoints", "save_checkpoint"),
    "study": ("lowprec.studies", "study"),
    "trace": ("lowprec.nn", "trace"),
    "training_state": ("lowprec.nn.training.state", "training_state"),
    "unpack": ("lowprec.kernels", "unpack"),
    "unwrap": ("lowprec.nn", "unwrap"),
    "wrap": ("lowprec.nn", "wrap"),
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("lowprec.nn")
    if name not in _HOME:
        raise AttributeError(f"module 'lowprec' has no attribute {name!r}")
    module, there = _HOME[name]
    value = getattr(import_module(module), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "nn"})
