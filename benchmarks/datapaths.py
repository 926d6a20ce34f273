"""What datapaths cost: lp.matmul's product against the float32 matmul of the same threads.

    python benchmarks/datapaths.py [--rounds 5] [--threads 1] [--big] [--only NAME] [--json FILE]

Operands are quantized beforehand. Both run in one process, in turns; CPU time (all threads),
medians over the rounds and the median of the rounds' ratios. --big: 2048 x 4096 x 4096 beside
2048 x 576 x 1536 (M, K, N). Exit code 1 if a datapath with a bar takes more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import lowprec as lp
from lowprec.kernels.matmul_core import multiply
from lowprec.spec import Aligned, Datapath, Tree, load_datapath, load_format

SMALL, BIG = (2048, 576, 1536), (2048, 4096, 4096)
# Most times the float32 matmul, where there is a bar.
BARS = {"hopper_fp8": 12.0, "fp22 every 32": 2.0, "fp22 every 128": 2.0}
BUILT_IN = (
    "hopper_fp8", "hopper_fp8_deepseek", "blackwell_tcgen05_fp8", "blackwell_mxf8",
    "blackwell_nvf4", "hopper_bf16", "hopper_fp16", "ampere_fp16", "volta_fp16", "cdna3_fp16",
    "cdna3_fp8", "tpu_bf16", "ampere_int8",
)  # fmt: skip


def chunked(interval: int) -> Datapath:
    """float32 sums in the order of k, added to an accumulator of 14 bits every so many products."""
    promotion = {"interval": interval, "format": load_format("float22_e8m13")}
    return Datapath(
        name="chunked", inputs=(load_format("float8_e4m3fn"),), addition=Tree(kind="tree"), step=1,
        accumulator=load_format("float32"), promotion=promotion,
    )  # fmt: skip


def exact_chunks(fmt: str) -> Datapath:
    """Exact sums of 32 products, added to an accumulator of 14 bits."""
    return Datapath(
        name="exact_chunks", inputs=(load_format(fmt),), addition=Aligned(kind="aligned"), step=32,
        accumulator=load_format("float22_e8m13"),
    )  # fmt: skip


def cases() -> dict[str, Datapath]:
    return {
        **{name: load_datapath(name) for name in BUILT_IN},
        "fp22 every 32": chunked(32),
        "fp22 every 128": chunked(128),
        "exact 32 of e2m1, fp22": exact_chunks("float4_e2m1fn"),
        "exact 32 of e4m3, fp22": exact_chunks("float8_e4m3fn"),
    }


def operands(path: Datapath, shape: tuple[int, int, int]) -> tuple[Any, ...]:
    """x, w and scales of one."""
    m, k, n = shape
    g = torch.Generator().manual_seed(0)
    fmt = path.inputs[0]
    factor = 20.0 if fmt.kind == "int" else 1.0
    x, w = (lp.cast(factor * torch.randn(rows, k, generator=g), fmt) for rows in (m, n))
    if path.scaling is None:
        return x, w, None
    blocks = -(-k // path.scaling.block)
    return x, w, (torch.ones(m, blocks), torch.ones(n, blocks))


def measure(path: Datapath, shape: tuple[int, int, int], rounds: int) -> dict[str, float]:
    x, w, scales = operands(path, shape)
    formats = (path.inputs[0],) * 2
    plain, emulated = [], []
    for _ in range(rounds + 1):
        start = time.process_time()
        F.linear(x, w)
        middle = time.process_time()
        if multiply(x, w, path, formats, scales) is None:
            raise SystemExit(f"{path.name}: not in the CPU core ({lp.backend()})")
        plain.append(middle - start)
        emulated.append(time.process_time() - middle)
    times = list(zip(plain[1:], emulated[1:], strict=True))  # the first round warms up
    return {
        "float32_s": statistics.median(a for a, _ in times),
        "datapath_s": statistics.median(b for _, b in times),
        "ratio": statistics.median(b / a for a, b in times),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--only", help="datapaths whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table("datapath", "M x K x N", "float32, s", "datapath, s", "ratio", "bar")
    results = []
    for shape in (SMALL, BIG) if options.big else (SMALL,):
        for name, path in cases().items():
            if options.only and options.only not in name:
                continue
            found = measure(path, shape, options.rounds)
            bar = BARS.get(name)
            results.append({"datapath": name, "shape": shape, "bar": bar, **found})
            numbers = f"{found['float32_s']:.3f}", f"{found['datapath_s']:.3f}"
            ratio, limit = f"{found['ratio']:.2f}", "" if bar is None else f"{bar:g}"
            table.add_row(name, " x ".join(map(str, shape)), *numbers, ratio, limit)
    Console().print(table)
    print(f"backend: {lp.backend()}; {options.threads} thread(s)")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return int(any(r["bar"] is not None and r["ratio"] > r["bar"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
