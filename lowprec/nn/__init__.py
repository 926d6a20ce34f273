"""Models under a recipe: emulated modules, what they cover, and the workload a model performs."""

from lowprec.nn.attention.hf_cache import KVCache
from lowprec.nn.calibration.calibrate import Calibration, calibrate
from lowprec.nn.coverage import Coverage, Entry, coverage
from lowprec.nn.emulation import Emulated
from lowprec.nn.hf_trace import trace
from lowprec.nn.modules import *  # noqa: F403
from lowprec.nn.modules import __all__ as _modules
from lowprec.nn.operations import conv as _conv  # noqa: F401 - these register their handlers
from lowprec.nn.operations import embedding as _embedding  # noqa: F401
from lowprec.nn.operations import matmul as _matmul  # noqa: F401
from lowprec.nn.operations import recurrent as _recurrent  # noqa: F401
from lowprec.nn.operations import vector as _vector  # noqa: F401
from lowprec.nn.training.optimizer import optimizer_nbytes, quantize_optimizer
from lowprec.nn.training.state import load_training_state, training_state
from lowprec.nn.wrap import unwrap, wrap

__all__ = [
    "Calibration",
    "Coverage",
    "Emulated",
    "Entry",
    "KVCache",
    "calibrate",
    "coverage",
    "load_training_state",
    "optimizer_nbytes",
    "quantize_optimizer",
    "trace",
    "training_state",
    "unwrap",
    "wrap",
    *_modules,
]
