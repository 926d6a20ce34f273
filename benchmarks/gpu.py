"""On a GPU: the bits of the compiled definition and of the Triton kernels against the CPU's, their
bandwidth against copy_, and the block-scaled matmul against torch's of bfloat16.

    python benchmarks/gpu.py [--elements N] [--json]

The CPU's bits are those that the tests hold to the oracle; of matmuls, those of
`triton.datapath_of`. The bar is 85 % of copy_. Exit code 1 where a bit differs. Without a GPU it
says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from lowprec import kernels, quantizer

FORMATS = (
    "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int8", "mxfp8_e4m3/floor",
    "mxfp6_e3m2/rceil", "mxfp4/even", "mxint8/floor", "nvfp4/amax", "float8_e4m3fn/amax:channel",
)  # fmt: skip
# Matmuls whose sums are exact, so that every bit is known.
MATMULS = (
    ("mxfp4/floor", "mxfp4/floor"), ("nvfp4/amax", "nvfp4/amax"), ("mxint8/floor", "mxfp4/rceil"),
    ("mxfp6_e2m3/floor", "mxfp6_e2m3/floor"), ("int8/amax:channel", "int4/amax:channel"),
)  # fmt: skip
SIZE = 4096
BAR = 0.85


def hard_inputs() -> Tensor:
    """Random patterns (all exponents), numbers of like size, and every bfloat16."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=generator)
    wild = bits.to(torch.int32).view(torch.float32)
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).float()
    spread = torch.randint(-140, 120, (4096, 1), generator=generator)
    tame = torch.randn(4096, 256, generator=generator) * 2.0**spread
    return torch.cat([wild, every, tame.flatten()]).view(-1, 256)


def differing_bits(name: str, device: torch.device, function: Callable[..., Tensor]) -> int:
    fmt = quantizer(name).format
    whole = getattr(fmt, "outer", None) is not None or getattr(fmt, "block", "") == "tensor"
    x = hard_inputs()[-4096:] if whole else hard_inputs()
    return differing(function(x.to(device), name).cpu(), kernels.fake_quantize(x, name))


def differing(there: Tensor, here: Tensor) -> int:
    both_nan = there.isnan() & here.isnan()
    return int(((there.view(torch.int32) != here.view(torch.int32)) & ~both_nan).sum())


def matmul_row(a: str, w: str, device: torch.device) -> dict[str, object]:
    """Its differing bits on small operands of all magnitudes, and its speed on large ones."""
    from lowprec.kernels import triton

    x, weight = hard_inputs()[-256:], torch.randn(192, 256, generator=torch.Generator())
    path = triton.datapath_of(quantizer(a), quantizer(w))
    here = kernels.matmul(x, weight, a=a, w=w, datapath=path)
    there = triton.matmul(x.to(device), weight.to(device), a=a, w=w).cpu()
    big = torch.randn(SIZE, SIZE, device=device)
    codes = triton.quantize(big, a), triton.quantize(big, w)
    taken = seconds(lambda: triton.matmul(*codes))
    narrow = big.bfloat16()
    return {
        "matmul": f"{a} x {w}",
        "differing_bits": differing(there, here),
        "flops_per_second": 2 * SIZE**3 / taken,
        "of_bfloat16": seconds(lambda: narrow @ narrow.mT) / taken,
    }


def row(by: str, name: str, x: Tensor, copy: float, taken: float, bits: int) -> dict[str, object]:
    return {
        "by": by,
        "quantizer": name,
        "differing_bits": bits,
        "seconds": taken,
        "bytes_per_second": 2 * x.nbytes / taken,
        "of_copy": copy / taken,
    }


def seconds(run: Callable[[], object], rounds: int = 20) -> float:
    run()
    taken = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return statistics.median(taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing is measured", file=sys.stderr)
        return 0
    device = torch.device("cuda")
    x = torch.randn(arguments.elements // 4096, 4096, device=device)
    out = torch.empty_like(x)
    copy = seconds(lambda: out.copy_(x))
    from lowprec.kernels import triton

    rows = []
    for name in FORMATS:
        taken = seconds(lambda name=name: kernels.fake_quantize(x, name, out=out))
        bits = differing_bits(name, device, kernels.fake_quantize)
        rows.append(row("compile", name, x, copy, taken, bits))
        taken = seconds(lambda name=name: triton.fake_quantize(x, name))
        bits = differing_bits(name, device, triton.fake_quantize)
        rows.append(row("triton", name, x, copy, taken, bits))
    matmuls = [matmul_row(a, w, device) for a, w in MATMULS]
    if arguments.json:
        found = {"device": torch.cuda.get_device_name(), "copy": copy, "rows": rows}
        print(json.dumps(found | {"matmuls": matmuls}))
    else:
        print(f"{torch.cuda.get_device_name()}, {x.numel():,} float32, copy_ {copy * 1e3:.3f} ms")
        show(rows, matmuls)
    return int(any(each["differing_bits"] for each in (*rows, *matmuls)))


def show(rows: list[dict[str, object]], matmuls: list[dict[str, object]]) -> None:
    for each in rows:
        print(
            f"{each['by']:8} {each['quantizer']:30} {each['differing_bits']:6} bits differ  "
            f"{each['bytes_per_second'] / 1e9:8.0f} GB/s  {each['of_copy']:.2f} of copy_ "
            f"({'meets' if each['of_copy'] >= BAR else 'misses'} {BAR})"
        )
    for each in matmuls:
        print(
            f"triton   {each['matmul']:40} {each['differing_bits']:6} bits differ  "
            f"{each['flops_per_second'] / 1e12:8.0f} TFLOP/s  "
            f"{each['of_bfloat16']:.2f} times torch's bfloat16"
        )


if __name__ == "__main__":
    sys.exit(main())
