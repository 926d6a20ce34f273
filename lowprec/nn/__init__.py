"""Models under a recipe: wrapped modules, what they cover, and the workload a model performs."""

from lowprec.nn.coverage import Coverage, Entry, coverage
from lowprec.nn.hf import trace
from lowprec.nn.linear import Quantized, QuantizedLinear
from lowprec.nn.wrap import unwrap, wrap

__all__ = [
    "Coverage",
    "Entry",
    "Quantized",
    "QuantizedLinear",
    "coverage",
    "trace",
    "unwrap",
    "wrap",
]
