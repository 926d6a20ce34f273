"""The schedules of a model: its operations at all sizes, from a few passes on the meta device."""

from __future__ import annotations

from collections.abc import Sequence

from lowprec.nn.tracing.laws import Record, UnlikeError, checkpoints, holds, laws
from lowprec.spec.law import Sizes
from lowprec.spec.schedule import (
    PASSES,
    AnyOp,
    Attention,
    Pass,
    Schedule,
    Template,
    fold,
    kind_of_pass,
    layer_of,
    sparse,
)


def schedules(
    whole: Record, short: Record, twins: dict[str, str], place: Sizes, ops: tuple[AnyOp, ...]
) -> tuple[Schedule, ...]:
    """A schedule for each kind of pass, one for several kinds where the same laws hold.

    `whole` records a pass of the model, `short` one of its distinct layers, of which `twins` names
    the likes of the others; `ops` is what `whole` recorded at `place`, and has to come out.
    UnlawfulError: some size follows no law.
    """
    windows = {op.window for op in ops if isinstance(op, Attention) and op.window}
    caps = [window - 1 for window in windows]
    found: dict[Pass, list[Template]] = {}
    for kind in ("extend", "decode", "prefill", "start"):
        points = checkpoints(kind, caps)
        recorded = [short(point) for point in points]
        known = (
            each
            for each in found.values()
            if all(holds(each, r, p) for r, p in zip(recorded, points, strict=True))
        )
        found[kind] = next(known, None) or laws(short, kind, windows)
    here = kind_of_pass(place.tokens, place.context)
    made = []
    for kind, law in found.items():
        same = tuple(other for other in PASSES if found[other] is law)
        if kind == next(k for k in found if k in same):
            point = place if here in same else checkpoints(kind, caps)[0]
            full = ops if here in same else whole(point)
            made.append(fold(_spread(law, full, short(point), twins), same))
            _check(made[-1], full, point)
    return tuple(made)


def _check(schedule: Schedule, ops: tuple[AnyOp, ...], point: Sizes) -> None:
    for made, op in zip(schedule.ops(schedule.at(point)), ops, strict=True):
        if made != op:
            raise UnlikeError(op.path)


def _spread(
    law: Sequence[Template],
    full: Sequence[AnyOp],
    short: Sequence[AnyOp],
    twins: dict[str, str],
) -> list[Template]:
    """`law`, which is of the operations `short` of the distinct layers, for all of `full`."""
    of_layer: dict[str, list[Template]] = {}
    for each, op in zip(law, short, strict=True):
        of_layer.setdefault(_layer(op.path), []).append(each)
    taken: dict[str, int] = {}
    found = []
    for op in full:
        layer = _layer(op.path)
        candidates = of_layer.get(twins.get(layer, layer), [])
        index = taken[layer] = taken.get(layer, -1) + 1
        if index >= len(candidates):
            raise UnlikeError(op.path)
        found.append(sparse(candidates[index] | {"path": op.path}))
    return found


def _layer(path: str) -> str:
    found = layer_of(path)
    return "" if found is None else f"{found[0]}{found[1]}"
