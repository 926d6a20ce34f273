"""lowprec: number formats, what they cost a model in accuracy, and what they buy a machine.

Names that need torch load it at first use; `format` and everything about files does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lowprec.errors import LowprecError
from lowprec.spec import list_formats
from lowprec.spec import load_format as format  # noqa: A004 - the public name is lp.format
from lowprec.spec import load_quantizer as quantizer
from lowprec.spec import load_recipe as recipe

__version__ = "0.1.0"

_LAZY = {
    "backend": "lowprec.kernels",
    "cast": "lowprec.kernels",
    "decode": "lowprec.kernels",
    "dequantize": "lowprec.kernels",
    "encode": "lowprec.kernels",
    "fake_quantize": "lowprec.kernels",
    "quantize": "lowprec.kernels",
    "QTensor": "lowprec.kernels",
    "coverage": "lowprec.nn",
    "trace": "lowprec.nn",
    "unwrap": "lowprec.nn",
    "wrap": "lowprec.nn",
    "estimate": "lowprec.perf",
    "machine": "lowprec.perf",
    "evaluate": "lowprec.studies",
    "study": "lowprec.studies",
}

__all__ = ["LowprecError", "format", "list_formats", "quantizer", "recipe", *sorted(_LAZY)]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'lowprec' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
