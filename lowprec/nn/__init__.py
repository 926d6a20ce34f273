"""Models under a recipe: emulated modules, what they cover, and the workload a model performs."""

from lowprec.nn import matmul as _matmul  # noqa: F401 - registers its handlers
from lowprec.nn.calibration import Calibration, calibrate
from lowprec.nn.coverage import Coverage, Entry, coverage
from lowprec.nn.emulation import Emulated
from lowprec.nn.hf import trace
from lowprec.nn.wrap import unwrap, wrap

__all__ = [
    "Calibration",
    "Coverage",
    "Emulated",
    "Entry",
    "calibrate",
    "coverage",
    "trace",
    "unwrap",
    "wrap",
]
