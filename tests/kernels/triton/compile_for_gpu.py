"""Compiles the kernels for NVIDIA architectures (90, 100) and looks at the instructions: run by
test_triton.py, since the interpreter must not have been chosen."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lowprec import quantizer
from lowprec.kernels.triton.launch import EXACT
from lowprec.kernels.triton.matmul import _TRITON, _side_numbers, matmul_kernel
from lowprec.kernels.triton.numbers import numbers
from lowprec.kernels.triton.quantize import quantize_kernel


def compiled(kernel: object, types: dict[str, str], constants: dict[str, object], arch: int) -> str:
    names = kernel.arg_names  # type: ignore[attr-defined]
    signature = {name: types.get(name, "constexpr") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    fixed |= {(names.index(n),): None for n in names if n not in types and n not in constants}
    source = ASTSource(kernel, signature, fixed)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=EXACT).asm["ptx"]


def check(ptx: str) -> None:
    lines = [line.strip() for line in ptx.splitlines()]
    assert not [line for line in lines if ".ftz" in line or "approx" in line or ".full." in line]


def quantize(name: str, codes: bool, arch: int) -> None:
    types = {"x": "*bf16", "out": "*u8" if codes else "*bf16", "rows": "i32", "columns": "i32"}
    types |= {"scales": "*u8"} if codes else {}
    n = numbers(quantizer(name))
    types |= {"outer": "*fp32"} if n.has_outer else {}
    types |= {"random": "*i64"} if n.element.rounding == "stochastic" else {}
    constants = {"n": n, "block": n.block, "wide": 32, "blocks": 64, "writes_codes": codes}
    ptx = compiled(quantize_kernel, types, constants, arch)
    check(ptx)
    assert "fma" not in ptx


def matmul(a: str, w: str, arch: int) -> None:
    pair = [_side_numbers(quantizer(name)) for name in (a, w)]
    types = {"x": "*u8", "w": "*u8", "x_scales": "*u8", "w_scales": "*u8", "y": "*fp32"}
    types |= {"M": "i32", "N": "i32", "K": "i32"}
    types |= {"x_outer": "*fp32", "w_outer": "*fp32"} if pair[0].has_outer else {}
    float16 = next(t for t in _TRITON.values() if str(t) == "fp16")
    constants = {
        "a": pair[0], "b": pair[1], "step": pair[0].block, "wide": max(pair[0].block, 16),
        "dtype": float16, "tile_m": 64, "tile_n": 64,
    }  # fmt: skip
    ptx = compiled(matmul_kernel, types, constants, arch)
    check(ptx)
    assert "fma.rn.f32" in ptx
    assert "mma" in ptx


if __name__ == "__main__":
    for arch in map(int, sys.argv[1:]):
        quantize("mxfp8_e4m3/rceil/stochastic:8", False, arch)
        quantize("nvfp4/amax", True, arch)
        matmul("nvfp4/amax", "nvfp4/amax", arch)
