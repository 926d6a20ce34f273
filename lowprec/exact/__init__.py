"""The slow oracle: every answer of the numerics contract in Fractions and integers.

It reads the docstrings of `lowprec.spec` and nothing else: no floating-point operation decides
anything here, and the kernels share no code with it.
"""

from lowprec.exact.block import Block, fake_quantize, quantize_block
from lowprec.exact.check import check_facts, conformance
from lowprec.exact.round import encode, project
from lowprec.exact.scale import block_scale, tensor_scale
from lowprec.exact.values import Value, code_of, exact, identical, value, value_table

__all__ = [
    "Block",
    "Value",
    "block_scale",
    "check_facts",
    "code_of",
    "conformance",
    "encode",
    "exact",
    "fake_quantize",
    "identical",
    "project",
    "quantize_block",
    "tensor_scale",
    "value",
    "value_table",
]
