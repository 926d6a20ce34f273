"""The fast path: projection and block quantization of torch tensors."""

from lowprec.kernels.api import cast, decode, encode, fake_quantize, quantize
from lowprec.kernels.core import Backend, backend
from lowprec.kernels.qtensor import QTensor, dequantize

__all__ = [
    "Backend",
    "QTensor",
    "backend",
    "cast",
    "decode",
    "dequantize",
    "encode",
    "fake_quantize",
    "quantize",
]
