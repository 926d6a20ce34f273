"""Block formats: every rule, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import torch
from pydantic import ValidationError
from torch import Tensor

from lowprec import exact, kernels
from lowprec.eval import hard_inputs
from lowprec.eval.conformance.comparison import Comparison, Step, compare
from lowprec.eval.conformance.scalars import DETERMINISTIC, scalar_steps
from lowprec.spec.block import BlockFormat
from lowprec.spec.format import FloatFormat
from lowprec.spec.quantizer import GIVEN_RULES, RULES, Quantizer

# Elements that one rule is tried on along one axis; of rules that try several scales, fewer.
ELEMENTS = 900
LARGEST_ROW = 515


def quantizers(fmt: BlockFormat) -> list[Quantizer]:
    """Every rule that the format takes."""
    found = []
    for rule in RULES[1:]:
        with suppress(ValidationError):
            fixed = 0.37 if rule == "fixed" else None
            found.append(Quantizer(format=fmt, rule=rule, fixed=fixed))
    return found


def block_steps(fmt: BlockFormat) -> Iterator[Step]:
    elements = dict.fromkeys([fmt.element, *([fmt.outlier.element] if fmt.outlier else [])])
    for part in dict.fromkeys([*elements, *fmt.parts.values()]):
        yield from scalar_steps(part, scale=part not in elements)
    every = quantizers(fmt)
    for q in every:
        for axis in (-1, 0):
            yield partial(_values, q, axis)
        yield partial(_wide, q)
        yield partial(_stored, q)
        yield partial(_stored_codes, q)
    if not isinstance(fmt.block, str) and len(fmt.block) == 2:
        yield partial(_tiles, every[0])
    for projection in DETERMINISTIC[1:]:
        yield partial(_elements, every[0].model_copy(update={"projection": projection}))


def effort(q: Quantizer) -> int:
    """About how much longer the oracle takes than for a rule that tries one scale."""
    scale = q.format.scale
    if q.rule == "mse":
        return 12 if isinstance(scale, FloatFormat) and scale.precision == 1 else 60
    return 6 if q.rule == "four_over_six" else 1


def _rows(q: Quantizer, axis: int) -> list[Tensor]:
    """Rows of every kind, every second one along one axis, the others along the other; of rules
    that take long the first kinds along one axis, the last along the other."""
    costly = effort(q) > 1
    width = hard_inputs.width_for(q.format, 35 if costly else LARGEST_ROW)
    groups = [g[1 + axis :: 2] if len(g) > 1 else g for g in hard_inputs.breaking(width)]
    most = max(3, ELEMENTS // (width * effort(q)))
    each, more = divmod(most, len(groups))
    groups = [g[: each + (i < more)] for i, g in enumerate(groups[:: 1 if axis else -1])]
    groups = [g for g in groups if len(g)]
    return groups if reaches_across(q.format) else [torch.cat(groups)]


def reaches_across(fmt: BlockFormat) -> bool:
    """Whether rows share a scale, so that one NaN would leave nothing else to see."""
    levels = (fmt.block, fmt.outer.block if fmt.outer else fmt.block)
    return any(b == "tensor" or (not isinstance(b, str) and len(b) > 1) for b in levels)


def static_scale(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor | None:
    """Outermost scales for the rule static, not all of them suitable."""
    if q.rule != "static":
        return None
    fmt, shape = q.format, tuple(x.shape)
    coarse = hard_inputs.coarsest(fmt)
    size = () if fmt.outer and coarse == "tensor" else fmt.scale_shape(shape, axis, coarse)
    return torch.rand(size, generator=torch.Generator().manual_seed(5)) - 0.05


def fake(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor:
    return kernels.fake_quantize(x, q, axis, scale=static_scale(x, q, axis))


def expected(x: Tensor, q: Quantizer, axis: int = -1) -> Tensor:
    """What the oracle says of `fake`."""
    scale = static_scale(x, q, axis)
    values = exact.fake_quantize(
        x.flatten().tolist(),
        tuple(x.shape),
        q,
        axis,
        scale=None if scale is None else scale.flatten().tolist(),
        arithmetic=exact.FLOAT64 if x.dtype == torch.float64 else exact.FLOAT32,
    )
    return torch.tensor(values, dtype=x.dtype).view(x.shape)


def _against_oracle(q: Quantizer, axis: int, groups: list[Tensor]) -> Comparison:
    total = Comparison()
    for rows in groups:
        x = rows if axis == -1 else rows.T
        title = f"{q.spell()} along {axis}"
        total += compare(title, fake(x, q, axis), expected(x, q, axis), x)
    return total


def _values(q: Quantizer, axis: int) -> Comparison:
    return _against_oracle(q, axis, _rows(q, axis))


def _wide(q: Quantizer) -> Comparison:
    return _against_oracle(q, -1, hard_inputs.wide(9 if effort(q) < 12 else 3))


def _tiles(q: Quantizer) -> Comparison:
    """Two tiles in the direction that is not blocked, where `breaking` has but one."""
    size = (min(q.format.block[0], LARGEST_ROW) + 3, 12)
    x = torch.randn(size, generator=torch.Generator().manual_seed(3))
    return sum((_against_oracle(q, axis, [x]) for axis in (-1, 0)), Comparison())


def _elements(q: Quantizer) -> Comparison:
    groups = hard_inputs.breaking(hard_inputs.width_for(q.format, 19))
    few = [g[:1] for g in groups]
    return _against_oracle(q, -1, few if reaches_across(q.format) else [torch.cat(few)])


def _stored(q: Quantizer) -> Comparison:
    """Codes and scales are the oracle's, dequantize gives the values of fake_quantize, and the
    size is the format's to the bit."""
    fmt = q.format
    total = Comparison()
    groups = hard_inputs.breaking(hard_inputs.width_for(fmt, LARGEST_ROW))
    groups = [g for g in groups if g.isfinite().all() or _stores_nan(q)]
    for axis in (-1, 0):
        for rows in groups if reaches_across(fmt) else [torch.cat(groups)]:
            x = rows if axis == -1 else rows.T
            stored = kernels.quantize(x, q, axis, scale=static_scale(x, q, axis))
            title = f"{q.spell()} along {axis}: dequantize"
            total += compare(title, stored.dequantize(), fake(x, q, axis), x)
            size = torch.tensor([stored.nbytes, *stored.scales.shape])
            shape = tuple(x.shape)
            bits = fmt.storage_bits_of(shape, axis)
            wanted = torch.tensor([-(-bits // 8), *fmt.scale_shape(shape, axis)])
            total += compare(f"{q.spell()}: sizes", size, wanted, torch.tensor(0))
    return total


def _stores_nan(q: Quantizer) -> bool:
    """Whether what says NaN has a code for it: the scales, or the element where they are given."""
    scales = [q.format.scale, *(level.scale for level in q.format.inner)]
    return all(f.has_nan for f in ([q.format.element] if q.rule in GIVEN_RULES else scales))


def _stored_codes(q: Quantizer) -> Comparison:
    """Every code of a small tensor, of elements, scales and what else blocks have."""
    fmt = q.format
    width = hard_inputs.width_for(fmt, 35 if effort(q) > 1 else LARGEST_ROW)
    x = torch.cat([g[:1] for g in hard_inputs.breaking(width)[:2]])
    scale, shape = static_scale(x, q), tuple(x.shape)
    stored = kernels.quantize(x, q, scale=scale)
    flat = None if scale is None else scale.flatten().tolist()
    blocks = list(exact.quantize_blocks(x.flatten().tolist(), shape, q, scale=flat))
    found, wanted = [], []
    for at, (members, _, block) in enumerate(blocks):
        found += stored.codes.flatten()[members].tolist()
        wanted += block.codes
        found.append(int(stored.scales.flatten()[at]))
        wanted.append(exact.code_of(block.scale, fmt.scale))
        if stored.offset is not None:
            found.append(int(stored.offset.flatten()[at]))
            wanted.append(exact.code_of(block.offset, fmt.zero_point or fmt.offset))
        if fmt.outlier is not None:
            none = (1 << fmt.outlier.index_bits) - 1
            found.append(int(stored.outlier.flatten()[at]))
            wanted.append(none if block.outlier is None else block.outlier)
    # The parts of an inner level follow one another as their blocks do.
    for i, level in enumerate(fmt.inner):
        found += stored.inner[i].flatten().tolist()
        wanted += [exact.code_of(u, level.scale) for _, _, b in blocks for u in b.inner[i]]
    if fmt.outer is not None:
        rows, columns = fmt.block_sizes(shape, block=fmt.outer.block)
        outer = {(m[0] // width // rows, m[0] % width // columns): b.outer for m, _, b in blocks}
        found += stored.outer_scale.double().flatten().tolist()
        wanted += [float(each.scale) for each in outer.values()]
        if fmt.offset is not None:
            found += stored.outer_offset.double().flatten().tolist()
            wanted += [float(each.offset) for each in outer.values()]
    pair = [torch.tensor(t, dtype=torch.float64) for t in (found, wanted)]
    return compare(f"{q.spell()}: codes", *pair, torch.tensor(0))
