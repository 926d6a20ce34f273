"""The slow oracle: every answer of the numerics contract in Fractions and integers.

It reads the docstrings of `lowprec.spec` and nothing else: no floating-point operation decides
anything here, and the kernels share no code with it.
"""

from lowprec.exact.arith import FLOAT32, FLOAT64, Arithmetic
from lowprec.exact.block import Block, fake_quantize, quantize_block, quantize_blocks
from lowprec.exact.check import check_facts, conformance
from lowprec.exact.dot import dot
from lowprec.exact.round import encode, project
from lowprec.exact.scale import Outer, candidates, outer_scales
from lowprec.exact.values import (
    TABLE_BITS,
    Value,
    code_of,
    exact,
    identical,
    value,
    value_table,
)

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "TABLE_BITS",
    "Arithmetic",
    "Block",
    "Outer",
    "Value",
    "candidates",
    "check_facts",
    "code_of",
    "conformance",
    "dot",
    "encode",
    "exact",
    "fake_quantize",
    "identical",
    "outer_scales",
    "project",
    "quantize_block",
    "quantize_blocks",
    "value",
    "value_table",
]
