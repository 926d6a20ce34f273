"""The fast path: projection and block quantization of torch tensors."""

from lowprec.kernels.api import cast, decode, encode, fake_quantize, quantize, quantize_packed
from lowprec.kernels.core import Backend, backend
from lowprec.kernels.dot import dot
from lowprec.kernels.matmul import matmul
from lowprec.kernels.packing import Packed, pack, pack_bits, unpack, unpack_bits
from lowprec.kernels.qtensor import QTensor, dequantize

__all__ = [
    "Backend",
    "Packed",
    "QTensor",
    "backend",
    "cast",
    "decode",
    "dequantize",
    "dot",
    "encode",
    "fake_quantize",
    "matmul",
    "pack",
    "pack_bits",
    "quantize",
    "quantize_packed",
    "unpack",
    "unpack_bits",
]
