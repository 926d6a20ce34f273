"""On a GPU: the bits of the compiled definition against the CPU's, and its bandwidth against copy_.

    python benchmarks/gpu.py [--elements N] [--json]

The CPU's bits are those that the tests hold to the oracle. The bar is 85 % of copy_. Exit code 1
where a bit differs. Without a GPU it says so and measures nothing.
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


def differing_bits(name: str, device: torch.device) -> int:
    fmt = quantizer(name).format
    whole = getattr(fmt, "outer", None) is not None or getattr(fmt, "block", "") == "tensor"
    x = hard_inputs()[-4096:] if whole else hard_inputs()
    there, here = kernels.fake_quantize(x.to(device), name).cpu(), kernels.fake_quantize(x, name)
    both_nan = there.isnan() & here.isnan()
    return int(((there.view(torch.int32) != here.view(torch.int32)) & ~both_nan).sum())


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
    rows = []
    for name in FORMATS:
        taken = seconds(lambda name=name: kernels.fake_quantize(x, name, out=out))
        rows.append(
            {
                "quantizer": name,
                "differing_bits": differing_bits(name, device),
                "seconds": taken,
                "bytes_per_second": 2 * x.nbytes / taken,
                "of_copy": copy / taken,
            }
        )
    if arguments.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "copy": copy, "rows": rows}))
    else:
        print(f"{torch.cuda.get_device_name()}, {x.numel():,} float32, copy_ {copy * 1e3:.3f} ms")
        for row in rows:
            print(
                f"{row['quantizer']:30} {row['differing_bits']:6} bits differ  "
                f"{row['bytes_per_second'] / 1e9:8.0f} GB/s  {row['of_copy']:.2f} of copy_ "
                f"({'meets' if row['of_copy'] >= BAR else 'misses'} {BAR})"
            )
    return int(any(row["differing_bits"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
