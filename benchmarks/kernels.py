"""Speed of fake quantization against the copy of the same tensor and against other libraries.

    python benchmarks/kernels.py [--elements N ...] [--rounds R] [--threads T] [--peers]

Prints CPU time (of all threads) as medians over interleaved rounds in one process, and its
multiples of copy_ into an existing tensor and of clone. Peers run where they are installed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lowprec import kernels

FORMATS = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float6_e2m3fn",
    "float4_e2m1fn",
    "int8",
    "mxfp8_e4m3/floor",
    "mxfp6_e3m2/floor",
    "mxfp4/rceil",
    "mxint8/floor",
    "nvfp4/amax",
    "float8_e4m3fn/amax:channel",
    "int8/amax:channel",
    "int8/amax:tensor",
)
Case = Callable[[], object]


def ours(x: Tensor, out: Tensor) -> Iterator[tuple[str, Case]]:
    yield "copy_", lambda: out.copy_(x)
    yield "clone", lambda: x.clone()
    for name in FORMATS:
        yield f"{name}, out=", lambda name=name: kernels.fake_quantize(x, name, out=out)
        yield f"{name}, new", lambda name=name: kernels.fake_quantize(x, name)
        if "/" in name and not name.endswith("tensor"):
            yield (
                f"{name}, dim 0, out=",
                lambda name=name: kernels.fake_quantize(x, name, axis=0, out=out),
            )
    in_place = x.clone()
    yield (
        "mxfp8_e4m3/floor, in place",
        lambda: kernels.fake_quantize(in_place, "mxfp8_e4m3/floor", out=in_place),
    )


def peers(x: Tensor) -> Iterator[tuple[str, Case]]:
    yield "torch .to(float8_e4m3fn) and back", lambda: x.to(torch.float8_e4m3fn).to(torch.float32)
    try:
        import ml_dtypes

        array = x.numpy()
        yield (
            "ml_dtypes float8_e4m3fn and back",
            lambda: array.astype(ml_dtypes.float8_e4m3fn).astype("float32"),
        )
    except ImportError:
        print("ml_dtypes: not installed")
    try:
        import gfloat
        from gfloat.formats import format_info_ocp_e4m3

        if x.numel() <= 1 << 22:
            numbers = x.double().numpy()
            yield (
                "gfloat round_ndarray OCP E4M3",
                lambda: gfloat.round_ndarray(format_info_ocp_e4m3, numbers),
            )
    except ImportError:
        print("gfloat: not installed")
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
    except ImportError:
        print("torchao: not installed")
        return
    yield (
        "torchao MXFP8, quantized and back",
        lambda: MXTensor.to_mx(x, torch.float8_e4m3fn, 32).dequantize(torch.float32),
    )


def medians(cases: list[tuple[str, Case]], rounds: int) -> dict[str, float]:
    """CPU seconds of each case, each run right after an uncounted one."""
    times: dict[str, list[float]] = {name: [] for name, _ in cases}
    for _ in range(rounds):
        for name, run in cases:
            run()  # its memory is then as much in the caches as it can be
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 18, 1 << 22, 1 << 26])
    parser.add_argument("--rounds", type=int, default=0, help="default: by the size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s); {kernels.backend()}")
    for elements in arguments.elements:
        columns = 1 << (int(math.log2(elements)) // 2)
        x = torch.randn(elements // columns, columns)
        cases = [*ours(x, torch.empty_like(x)), *(peers(x) if arguments.peers else ())]
        taken = medians(cases, arguments.rounds or max(5, (1 << 24) // elements))
        print(f"\n{tuple(x.shape)} float32{'':22} ms   x copy_  x clone   Gel/s")
        for name, seconds in taken.items():
            ratios = [f"{seconds / taken[limit]:9.2f}" for limit in ("copy_", "clone")]
            rate = x.numel() / seconds / 1e9
            print(f"{name:38} {seconds * 1e3:9.3f}{''.join(ratios)} {rate:8.2f}")


if __name__ == "__main__":
    main()
