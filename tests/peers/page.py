"""docs/conformance.md, from the comparisons. `python -m tests.peers.page` writes it anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from lowprec.exact import identical, value_table
from lowprec.spec import load_format
from tests.peers import blocks, documented, scalars
from tests.peers.case import Case, show
from tests.spec.test_p3109 import K3, number

COUNTS = "| inputs | agree | differ |\n|---|---|---|---|---|\n"
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
PEERS = ("compressed-tensors", "gfloat", "gguf", "ml_dtypes", "onnx", "torch", "torchao")
HEAD = """# Conformance

What other libraries answer, how often that is what `lowprec` answers, and why where it is not.
`tests/peers` computes this page and fails where it differs from what stands here, where a
difference has no reason, and where a reason has no difference. To write it anew:

    .venv/bin/python -m tests.peers.page

All of it is about peers: that the kernels equal the exact oracle, bit for bit, is tested for
every format and projection, and `lowprec check my.toml` does it for a format of your own. A NaN
equals any NaN here, and zeros have signs. Peers: {versions}.
"""
SCALARS = """
## Casts

Inputs: all 65,536 bfloat16, all 65,536 float16, {random:,} random float32 bit patterns, and around
values of the format and the middles between them, one ulp to either side. gfloat: the bfloat16
numbers and the middles, in five roundings.
"""
BLOCKS = """
## Blocks

Inputs: rows built to break scales (one ulp below powers of two, magnitudes over the whole range,
subnormals, ends of formats, zeros, NaN and Inf), all bfloat16 numbers in random order, random
bits, and blocks of like magnitude, ordinary and tiny. Formats with a scale per tensor or of 16
bits take those of the rows that have ordinary magnitudes. "bytes" are random bytes, as each side
reads them. Values of one block count one by one.
"""
P3109 = """
## IEEE P3109

The published value tables of 3 bits, which stand in the tests: {agree} of {total} code points of
{count} formats agree. With the folder of all tables in `LOWPREC_P3109_TABLES`,
`tests/spec/test_p3109.py` compares every one.
"""
RECORDED = """
## Recorded answers

Of libraries that the tests do not install, as recorded in 2026; and scale bytes of named maxima.
"""


@cache
def scalar_cases() -> list[Case]:
    parts = (scalars.of_ml_dtypes, scalars.of_torch, scalars.of_float64, scalars.of_onnx)
    return [case for part in (*parts, scalars.of_gfloat) for case in part()]


@cache
def block_cases() -> list[Case]:
    parts = (blocks.of_torchao, blocks.of_compressed_tensors, blocks.of_gguf, blocks.of_gfloat)
    return [case for part in parts for case in part()]


def page() -> str:
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PEERS)
    return "".join([
        HEAD.format(versions=versions),
        SCALARS.format(random=scalars.RANDOM), *tables(scalar_cases()),
        BLOCKS, *tables(block_cases()),
        p3109(),
        RECORDED, *recorded(),
    ])  # fmt: skip


def tables(cases: Iterable[Case]) -> Iterator[str]:
    for peer, group in groupby(sorted(cases, key=lambda c: c.peer.lower()), lambda c: c.peer):
        yield f"\n### {peer}\n\n| format | as here {COUNTS}"
        noted = []
        for case in group:
            total, wrong = case.x.numel(), int(case.differ.sum())
            yield f"| {case.what} | {case.rule} | {total:,} | {total - wrong:,} | {wrong:,} |\n"
            noted += [(r.why, case, n, e) for r, n, e in case.explained]
        yield from notes(noted)


def notes(noted: list[tuple[str, Case, int, str]]) -> Iterator[str]:
    """Every reason once, with its counts by format and the first example."""
    by_reason: dict[str, list[tuple[Case, int, str]]] = {}
    for why, *rest in noted:
        by_reason.setdefault(why, []).append(tuple(rest))
    yield "\n" if by_reason else ""
    for why, found in by_reason.items():
        counts = ", ".join(f"{case.what} {case.rule}: {n:,}" for case, n, _ in found)
        yield f"- It {why}. For example {found[0][2]}. ({counts})\n"


def p3109() -> str:
    pairs = [
        (ours, number(text))
        for name, table in K3.items()
        for ours, text in zip(value_table(load_format(name)), table.split(), strict=True)
    ]
    agree = sum(identical(ours, theirs) for ours, theirs in pairs)
    return P3109.format(agree=agree, total=len(pairs), count=len(K3))


def recorded() -> Iterator[str]:
    yield f"\n| peer | what: as here {COUNTS}"
    notes = []
    for each in documented.documented():
        wrong = each.different()
        total = len(each.inputs)
        yield f"| {each.peer} | {each.what} | {total} | {total - len(wrong)} | {len(wrong)} |\n"
        if each.why:
            of = ", ".join(map(show, wrong))
            notes.append(f"- {each.peer}, {each.what}: it {each.why}. ({of})\n")
    yield "\n"
    yield from notes


if __name__ == "__main__":
    PAGE.write_text(page())
