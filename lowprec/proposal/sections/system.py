"""Sections 11 and 12: what the rest of the chip and of the system has to do, and the software."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from lowprec.errors import LowprecError
from lowprec.perf.collective import collective
from lowprec.perf.system import System
from lowprec.proposal.document import Absent, Block, Paragraph, Points, Section, Table
from lowprec.proposal.pricing import Pricing, Quote, scale_bits
from lowprec.proposal.sections import words
from lowprec.proposal.sections.storage import bits_of
from lowprec.proposal.subject import Proposal, Side
from lowprec.spec import BlockFormat, Datapath

LINE = 64  # bytes
TILE = (128, 128, 64)  # M, N, K of an operand tile in shared memory
PAYLOAD = 1 << 20  # elements that a collective carries, in the table


def hierarchy(p: Proposal, pricing: Pricing) -> Section:
    """Section 11."""
    sides = [side for side in (p.ours, p.baseline) if side is not None]
    blocks: list[Block] = [
        _packing(sides),
        *_operands(sides),
        *_links(p, pricing),
        Points(tuple(_changes(p))),
        Absent(
            "Register file, operand collectors and the floor plan: no record; the cost model ends "
            "at the unit's ports."
        ),
    ]
    return Section("Memory hierarchy, scale-up and network", tuple(blocks))


def _packing(sides: list[Side]) -> Table:
    m, n, k = TILE
    rows = [
        ("bits of an element's code", *(str(s.element.bits) for s in sides)),
        ("bits of scales per element", *(f"{scale_bits(s.format):g}" for s in sides)),
        ("elements after which codes end at a byte", *(str(_period(s, 8)) for s in sides)),
        (f"elements after which they end at {LINE} bytes",
         *(f"{_period(s, 8 * LINE):,}" for s in sides)),
        ("bytes of a block with its scale", *(_block_bytes(s) for s in sides)),
        (f"bytes of operand tiles {m}×{k} and {n}×{k}",
         *(f"{(m + n) * k * s.bits / 8:,.0f}" for s in sides)),
        ("elements that a MiB of SRAM holds", *(f"{(8 << 20) / s.bits:,.0f}" for s in sides)),
    ]  # fmt: skip
    return Table(
        "Packing: what memories and buses see.",
        ("", *(f"`{s.name}`" for s in sides)),
        tuple(rows),
        "computed from the formats' bits",
        right=frozenset(range(1, len(sides) + 1)),
    )


def _period(side: Side, bits: int) -> int:
    """Codes that are packed densely until one ends at a multiple of `bits`."""
    return lcm(side.element.bits, bits) // side.element.bits


def _block_bytes(side: Side) -> str:
    fmt = side.format
    if not isinstance(fmt, BlockFormat) or isinstance(fmt.block, str):
        return "–"
    size = 1
    for n in fmt.block:
        size *= n
    return f"{size * _inner(fmt) / 8:g}"


def _inner(fmt: BlockFormat) -> float:
    outer = 0.0
    if fmt.outer is not None and not isinstance(fmt.outer.block, str):
        size = 1
        for n in fmt.outer.block:
            size *= n
        outer = fmt.per_outer_bits / size
    return fmt.bits_per_element - outer


def _operands(sides: list[Side]) -> Iterator[Block]:
    """Bits that a unit reads per cycle."""
    rows = [
        (f"`{side.name}`", *_ports(side, side.unit, side.unit.step))
        for side in sides
        if side.unit is not None and side.unit.step is not None
    ]
    if rows:
        yield Table(
            "What the unit of section 5 reads per step, both operands.",
            ("format", "products", "bits of codes", "bits of scales", "bits per product"),
            tuple(rows),
            "the ports of the unit",
            right=frozenset({1, 2, 3, 4}),
        )


def _ports(side: Side, unit: Datapath, step: int) -> tuple[str, ...]:
    codes = 2 * step * side.element.bits
    scales = 2 * scale_bits(side.format) * step if unit.scaling else 0.0
    return (str(step), str(codes), f"{scales:g}", f"{(codes + scales) / step:g}")


def _links(p: Proposal, pricing: Pricing) -> Iterator[Block]:
    """What an exchange of activations takes, were it in the format."""
    machines = list(dict.fromkeys(q.machine.name for q in pricing.quotes))
    rows = []
    for name in machines:
        quote = next(q for q in pricing.quotes if q.machine.name == name)
        row = _exchange(p, quote)
        if row is not None:
            rows.append(row)
    if rows:
        heads = ["machine", "bfloat16", f"`{p.name}`"]
        heads += [f"`{p.baseline.name}`"] if p.baseline else []
        yield Table(
            f"An all-gather of {PAYLOAD:,} activations over 8 chips of the scale-up domain, "
            "modelled: microseconds. The codes are assumed to be quantized already; sums in an "
            "all-reduce would need a wider type.",
            tuple(heads),
            tuple(rows),
            "`lowprec.perf.collective`",
            right=frozenset(range(1, len(heads))),
        )


def _exchange(p: Proposal, quote: Quote) -> tuple[str, ...] | None:
    sizes = [16.0, p.ours.bits]
    if p.baseline is not None:
        sizes.append(bits_of(p.baseline.quantizer))
    try:
        system = System.of(quote.machine)
        found = [
            collective("all_gather", int(PAYLOAD * bits / 8), 8, system).seconds for bits in sizes
        ]
    except LowprecError:
        return None
    return (quote.machine.name, *(f"{seconds * 1e6:.1f}" for seconds in found))


def _changes(p: Proposal) -> Iterator[str]:
    """What to change in a chip."""
    bits = p.ours.element.bits
    if bits & (bits - 1):
        yield (
            f"**Alignment**: a code of {bits} bits crosses bytes and words; "
            f"a loader that takes {_period(p.ours, 8)} codes ({_period(p.ours, 8) * bits // 8} "
            "bytes) at a time, or a shared memory that stores them in wider containers, has to be "
            "chosen. In containers of 8 bits the format saves bandwidth from main memory only."
        )
    fmt = p.ours.format
    if isinstance(fmt, BlockFormat):
        path = f"a scale path of {scale_bits(fmt):g} bits per element beside the operands"
        yield f"**Scales**: {path}, delivered with the block that they belong to."
        if fmt.outer is not None:
            yield (
                f"**Second level**: the {fmt.outer.scale.name} scale "
                f"{words.block(fmt.outer.block)} multiplies the finished result, in the epilogue; "
                "the unit does not see it."
            )
    yield (
        "**Scale-up and network**: dispatch, all-gather and cache transfer carry codes and scales "
        "as they are stored, at the ratio of bits per element; reductions do not."
    )


def software(p: Proposal) -> Section:
    """Section 12."""
    fmt, shape = p.ours.format, words.shape(p.ours.element)
    how = p.ours.quantizer.projection.spell()
    rows = [
        ("convert", f"float32 and bfloat16 to {shape}, {how}; packed", "quantizer, epilogue"),
        ("convert back", f"{shape} to bfloat16, exact", "fallback, debugging"),
    ]
    if isinstance(fmt, BlockFormat):
        rows += [
            ("scale", f"float32 to {words.shape(fmt.scale)}, to nearest, saturating", "quantizer"),
            ("maximum", "largest magnitude over a block in registers", "quantizer"),
            ("multiply-accumulate", f"block-scaled, {words.block(fmt.block)}", "matmul, attention"),
        ]
    else:
        rows.append(("multiply-accumulate", "both operands in the format", "matmul, attention"))
    rows.append(("convert, stochastic", "with random bits as an operand", "gradients"))
    blocks: list[Block] = [
        Table(
            "Instructions that the format needs.",
            ("instruction", "what", "used by"),
            tuple(rows),
            "sections 2 to 5",
            wide=frozenset({1}),
        ),
        Points(tuple(_fusion(p)), numbered=False),
        Paragraph(
            "**Frameworks.** lowprec runs the format in PyTorch today: `lowprec.wrap` quantizes a "
            "model's operands bit for bit as this document says, from the file in `formats/`; that "
            "is what the accuracy records were measured with. `lowprec.kernels.triton` has Triton "
            "source of the quantizer and the block-scaled matmul, compiled for a format from the "
            "same file (one scale per block, perhaps under one per tensor), checked bit for bit "
            "and registered as operators that `torch.compile` and `torch.export` carry. A tensor "
            "type and serving engines are what adoption would need."
        ),
    ]
    return Section("Software", tuple(blocks))


def _fusion(p: Proposal) -> Iterator[str]:
    fmt = p.ours.format
    outer = isinstance(fmt, BlockFormat) and fmt.outer is not None
    yield (
        "**Where to quantize**: activations in the epilogue of what produces them (normalisation, "
        "activation function, attention), since a kernel of its own reads and writes every element "
        "once more; weights once, offline."
    )
    if outer:
        yield (
            "**The second-level scale** needs the largest magnitude of the whole tensor before the "
            "first block is written. Fused quantizers take it from an earlier step or from "
            "calibration; the records here computed it from the tensor itself."
        )
    if isinstance(fmt, BlockFormat):
        yield (
            "**Layout**: codes row-major along K; scales in 128×4 tiles as block-scaled tensor "
            "cores read them, or as the vendor declares. The vectors ask for codes and scales, "
            "block by block, not for a layout."
        )
    yield (
        "**Transposes**: blocks run along K, so that a transposed operand of the backward pass is "
        "quantized anew from the wide values."
        if isinstance(fmt, BlockFormat)
        else "**Transposes** keep their codes."
    )
