"""Speed of the kernels against the copy of the same tensor and against other libraries.

    python benchmarks/kernels.py [--elements N ...] [--rounds R] [--threads T] [--only REGEX]
        [--peers] [--json]

CPU time of the process (all threads). Every case is timed right after an uncounted run of itself,
and its base (copy_ into an existing tensor, or clone for results that are allocated) right after
that, small tensors several times in a row: the ratio is the median over rounds of these pairs.
Work on the sibling of a hyperthreaded core slows computing and not copying: measure on an idle
machine. "peak": memory at the highest beyond what was there before, in sizes of the tensor. Peers
run where they are installed; "agrees": the share of their values that equal ours.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from lowprec import kernels, quantizer
from lowprec.kernels import cpu
from lowprec.kernels.codec import values_of
from lowprec.spec.block import BlockFormat

sys.path.insert(0, str(Path(__file__).parent))
from peers.kernels import peers_of

CASTS = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int8")
BLOCKS = ("mxfp8_e4m3/floor", "mxfp6_e3m2/floor", "mxfp4/floor", "mxint8/floor", "nvfp4/amax")
LONG = ("float8_e4m3fn/amax:channel", "int8/amax:channel", "int8/amax:tensor")
CODED = ("float8_e4m3fn", "int8", "mxfp8_e4m3/floor", "mxfp4/floor", "nvfp4/amax")
RANDOM = ("float8_e4m3fn/cast/stochastic:16", "mxfp4/floor/stochastic:16")
# From here on a tensor is in no cache.
LARGE = 1 << 25
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """What is run, and how many times the base's time it may take at most (None: no bar)."""

    name: str
    run: Run
    base: str = "copy_"
    bar: float | None = None


@dataclass(frozen=True)
class Row:
    name: str
    elements: int
    milliseconds: float
    ratio: float
    base: str
    bar: float | None
    peak: float | None


@dataclass(frozen=True)
class Peer:
    name: str
    ours: str
    elements: int
    milliseconds: float
    times_slower: float
    agrees: float
    bar: float


def cases(x: Tensor, out: Tensor) -> Iterator[Case]:
    large = x.numel() >= LARGE
    for name in (*CASTS, *BLOCKS, *LONG):
        bar = None if name in LONG else 1.2 if large else 2.0
        yield Case(f"{name}, out=", lambda name=name: fake(x, name, out=out), bar=bar)
        yield Case(f"{name}, new", lambda name=name: fake(x, name), "clone", 1.2 if large else None)
    for name in (*BLOCKS, LONG[0]):
        bar = 1.5 if large and name in BLOCKS else None
        yield Case(
            f"{name}, dim 0, out=", lambda name=name: fake(x, name, axis=0, out=out), bar=bar
        )
    in_place = x.clone()
    yield Case("mxfp8_e4m3/floor, in place", lambda: fake(in_place, BLOCKS[0], out=in_place))
    for name in RANDOM:
        q = quantizer(name)
        yield Case(
            f"{name}, seed, out=",
            lambda q=q: cpu.fake_quantize(x, q, -1, out, seed=1),
            bar=2.0 if large else None,
        )
    for name in CODED:
        yield from coded(x, out, name, 1.5 if large else None)


def fake(x: Tensor, name: str, axis: int = -1, out: Tensor | None = None) -> Tensor:
    return kernels.fake_quantize(x, name, axis=axis, out=out)


def coded(x: Tensor, out: Tensor, name: str, bar: float | None) -> Iterator[Case]:
    """To packed codes and back."""
    q = quantizer(name)
    is_block = isinstance(q.format, BlockFormat)
    element, block = (q.format.element, q.format.block) if is_block else (q.format, "tensor")
    table = torch.zeros(256)
    table[: 1 << element.bits] = values_of(torch.arange(1 << element.bits), element).float()
    codes, scales, outer = cpu.quantize(x, q, -1)
    whole = scales if outer is None else scales * outer

    yield Case(f"{name}, quantize to packed codes", lambda: kernels.quantize_packed(x, q), bar=bar)
    yield Case(
        f"{name}, dequantize, out=",
        lambda: cpu.dequantize(codes, table, whole, -1, block, out, element.bits),
        bar=bar,
    )
    yield Case(
        f"{name}, dequantize, new",
        lambda: cpu.dequantize(codes, table, whole, -1, block, bits=element.bits),
        "clone",
    )


def seconds(run: Run, times: int = 1) -> float:
    start = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - start) / times


def measured(case: Case, base: Run, times: int) -> tuple[float, float]:
    """Seconds of the case, and their ratio to the base's, both as warm as a run before makes them;
    means of so many runs, as one of a small tensor is as short as what goes on beside it."""
    case.run()
    taken = seconds(case.run, times)
    base()
    return taken, taken / seconds(base, times)


def interleaved(
    every: list[Case], bases: dict[str, Run], rounds: int, times: int
) -> list[tuple[float, float]]:
    found: list[list[tuple[float, float]]] = [[] for _ in every]
    for _ in range(rounds):
        for case, pairs in zip(every, found, strict=True):
            pairs.append(measured(case, bases[case.base], times))
    return [
        (statistics.median(t for t, _ in pairs), statistics.median(r for _, r in pairs))
        for pairs in found
    ]


def peak(run: Run) -> int | None:
    """Bytes of memory that are in use during a run beyond those before it; None off Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = run()
        highest = _status("VmHWM")
    except OSError:
        return None
    del result
    return max(highest - before, 0)


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def run(
    elements: int, rounds: int | None, only: str, with_peers: bool
) -> tuple[list[Row], list[Peer]]:
    shape = (math.isqrt(elements) // 32 * 32, -1)
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0)).view(shape)
    out = torch.empty_like(x)
    bases: dict[str, Run] = {"copy_": lambda: out.copy_(x), "clone": x.clone}
    ours = [Case("copy_", bases["copy_"]), Case("clone", bases["clone"])]
    ours += [case for case in cases(x, out) if re.search(only, case.name)]
    rounds = rounds or max(5, min(31, (1 << 25) // elements))
    times = max(1, (1 << 22) // elements)
    rows = [
        Row(c.name, elements, 1e3 * t, r, c.base, c.bar, _relative(peak(c.run), x))
        for c, (t, r) in zip(ours, interleaved(ours, bases, rounds, times), strict=True)
    ]
    return rows, _peers(x, rows, rounds) if with_peers else []


def _relative(found: int | None, x: Tensor) -> float | None:
    # Pages that other things touch meanwhile would be all there is of a small tensor.
    return None if found is None or x.numel() < LARGE else found / x.nbytes


def _peers(x: Tensor, rows: list[Row], rounds: int) -> list[Peer]:
    mine = {row.name: row.milliseconds for row in rows}
    found = []
    for name, ours, call, most in peers_of(x):
        if x.numel() > most or f"{ours}, new" not in mine:
            continue
        values, expected = call(), fake(x, ours)
        agrees = float((values == expected).float().mean())
        del values, expected
        slow = statistics.median(1e3 * seconds(call) for _ in range(max(3, min(rounds, 7))))
        bar = 5.0 if "/" in ours else 3.0
        ratio = slow / mine[f"{ours}, new"]
        found.append(Peer(name, ours, x.numel(), slow, ratio, agrees, bar))
    return found


def show(rows: list[Row], peers: list[Peer]) -> None:
    print(f"\n{rows[0].elements} elements, float32")
    print(f"{'':44} {'ms':>9} {'ratio':>6}  {'of':6} {'bar':>4}       {'Gel/s':>6} {'peak':>5}")
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:.1f}"
        verdict = "" if row.bar is None else "ok" if row.ratio <= row.bar else "OVER"
        memory = "" if row.peak is None else f"{row.peak:.2f}"
        rate = row.elements / row.milliseconds / 1e6
        print(
            f"{row.name:44} {row.milliseconds:9.3f} {row.ratio:6.2f}  {row.base:6} {bar:>4} "
            f"{verdict:5} {rate:6.2f} {memory:>5}"
        )
    for p in peers:
        right = p.agrees == 1.0
        verdict = "ok" if p.times_slower >= (p.bar if right else 1) else "UNDER"
        print(
            f"{p.name:44} {p.milliseconds:9.3f}  {p.times_slower:6.1f} times the time of {p.ours} "
            f"(bar {p.bar if right else 1:.0f}) {verdict}; agrees in {p.agrees:.2%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, nargs="+", default=[1 << 18, 1 << 26])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has a match")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", action="store_true", help="one object with every row instead")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if kernels.backend().name != "core":
        parser.exit(1, f"no core to measure: {kernels.backend().reason}\n")
    results = [
        run(n, arguments.rounds, arguments.only, arguments.peers) for n in arguments.elements
    ]
    if arguments.json:
        rows = [asdict(row) for found, _ in results for row in found]
        peers = [asdict(p) for _, found in results for p in found]
        print(json.dumps({"torch": torch.__version__, "rows": rows, "peers": peers}, indent=2))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s); {kernels.backend()}")
    for rows, peers in results:
        show(rows, peers)


if __name__ == "__main__":
    main()
