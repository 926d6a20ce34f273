"""Vectors for units, and what the kernels and the oracle say of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lowprec.exact import Value, exact, identical, value, value_table
from lowprec.exact import dot as exact_dot
from lowprec.kernels.dot import dot
from lowprec.rtl import Unit, simulate
from lowprec.spec import Datapath
from lowprec.spec.format import FloatFormat, Format, IntFormat

Codes = NDArray[np.uint64]


def decode(codes: Codes, fmt: Format) -> NDArray[np.float64]:
    """Values of code points, from the fields."""
    codes = codes.astype(np.int64)
    if fmt.bits <= 8 or not isinstance(fmt, FloatFormat | IntFormat):
        return np.array([float(x) for x in value_table(fmt)])[codes]
    if isinstance(fmt, IntFormat):
        signed = np.where((codes >> (fmt.bits - 1)) & fmt.signed, codes - (1 << fmt.bits), codes)
        return np.ldexp(signed.astype(np.float64), fmt.exponent)
    magnitude = codes & ((1 << (fmt.bits - fmt.signed)) - 1)
    field, trailing = magnitude >> (fmt.precision - 1), magnitude & ((1 << (fmt.precision - 1)) - 1)
    hidden = field > 0 if fmt.subnormals else magnitude > 0
    t = trailing + np.where(hidden, 1 << (fmt.precision - 1), 0)
    lowest = 1 if fmt.subnormals else 0
    x = np.ldexp(t.astype(np.float64), np.maximum(field, lowest) - fmt.bias - fmt.precision + 1)
    assert fmt.nan != "negative-zero"
    x = np.where(magnitude > fmt.max_code, np.nan, x)
    x = np.where(magnitude == fmt.infinity_code, np.inf, x) if fmt.infinity else x
    return np.where(codes > magnitude, -x, x)


def encode(x: NDArray[np.float64], fmt: Format) -> Codes:
    """Code points of the nearest values, about: to put numbers near others."""
    if isinstance(fmt, IntFormat):
        k = np.clip(np.ldexp(x, -fmt.exponent), fmt.min_integer, fmt.max_integer)
        return k.astype(np.int64).astype(np.uint64) & np.uint64((1 << fmt.bits) - 1)
    if fmt.bits <= 8:
        table = decode(np.arange(fmt.code_points, dtype=np.uint64), fmt)
        order = np.argsort(table, kind="stable")
        order = order[np.isfinite(table[order])]
        return order[np.searchsorted(table[order], x).clip(0, len(order) - 1)].astype(np.uint64)
    assert isinstance(fmt, FloatFormat)
    size = np.minimum(np.abs(x), float(fmt.max_exact))
    e = np.where(size == 0, fmt.emin, np.maximum(np.frexp(size)[1] - 1, fmt.emin))
    steps = np.rint(np.ldexp(size, fmt.precision - 1 - e)).astype(np.int64)
    magnitude = ((e - fmt.emin).astype(np.int64) << (fmt.precision - 1)) + steps
    if not fmt.subnormals:
        magnitude = np.maximum(magnitude - (1 << (fmt.precision - 1)), 0)
    magnitude = np.minimum(magnitude, fmt.max_code)
    return (magnitude + np.where(x < 0, 1 << (fmt.bits - 1), 0)).astype(np.uint64)


def edge_codes(fmt: Format) -> Codes:
    """Zeros, ends, neighbours of ends, one, Inf, NaN."""
    if not isinstance(fmt, FloatFormat):
        top = fmt.code_points - 1
        found = {0, 1, 2, top // 2, top // 2 + 1, top - 1, top}
        return np.array(sorted(c for c in found if 0 <= c <= top), np.uint64)
    unit = 1 << (fmt.precision - 1)
    found = {0, 1, 2, unit - 1, unit, unit + 1, fmt.max_code - 1, fmt.max_code}
    found |= {fmt.bias * unit, fmt.bias * unit + 1, fmt.bias * unit - 1, fmt.infinity_code or 0}
    found |= {(1 << (fmt.bits - fmt.signed)) - 1}
    found = {c for c in found if 0 <= c < 1 << (fmt.bits - fmt.signed)}
    found |= {c + (1 << (fmt.bits - 1)) for c in found if fmt.signed}
    return np.array(sorted(found), np.uint64)


def _near(
    fmt: Format,
    shape: tuple[int, ...],
    spread: float,
    g: np.random.Generator,
    middle: float = 0.0,
) -> Codes:
    """Codes of numbers about 2^middle, or about a format's middle if it has no 1."""
    if isinstance(fmt, FloatFormat) and not fmt.emin <= 0 <= fmt.emax:
        middle = (fmt.emin + fmt.emax) / 2
    x = g.standard_normal(shape) * np.exp2(middle + np.round(g.uniform(-spread, spread, shape)))
    return encode(np.where(g.random(shape) < 0.1, 0.0, x), fmt)


def _any(fmt: Format, shape: tuple[int, ...], g: np.random.Generator) -> Codes:
    return g.integers(0, fmt.code_points, shape, dtype=np.uint64)


def vectors(unit: Unit, cases: int, seed: int = 0) -> dict[str, Codes]:
    """A fifth each of codes of all kinds, of edges, of numbers near each other, of sums that
    cancel, so that the last bits show, and of sums at the accumulator's lower end."""
    g = np.random.default_rng(seed)
    path, fifth = unit.datapath, -(-cases // 5)
    kinds = ("any", "edge", "near", "cancel", "tiny")
    found = [_some(unit, kind, fifth, g) for kind in kinds]
    joined = {name: np.concatenate([f[name] for f in found])[:cases] for name in found[0]}
    if path.promotion is not None:
        joined["total"] = _drawn(path.output, "near", (cases,), 9, g)
        joined["total"][::3] = _any(path.output, (cases,), g)[::3]
    return joined


def _some(unit: Unit, kind: str, n: int, g: np.random.Generator) -> dict[str, Codes]:
    path, spread = unit.datapath, float(g.choice([1, 3, 8]))
    shape = (n, unit.lanes)
    found = {x: _drawn(f, kind, shape, spread, g) for x, f in (("a", unit.a), ("b", unit.b))}
    found["c"] = _drawn(path.accumulator, kind, (n,), 2 * spread, g)
    if unit.scale is not None and path.scaling is not None:
        same = max(1, path.scaling.block // unit.run) if path.scaling.position == "inside" else 1
        blocks = -(-unit.scales // same)
        for x in "ab":
            codes = _drawn(unit.scale, kind, (n, blocks), spread / 2, g)
            found[f"{x}_scale"] = np.repeat(codes, same, 1)[:, : unit.scales]
    for x in "ab":
        found |= {f"{x}_{name}": codes for name, codes in _drawn_shared(unit, n, g).items()}
    if kind == "cancel":
        _cancel(unit, found, g)
    if kind == "tiny" and isinstance(path.accumulator, FloatFormat):
        low = path.accumulator.emin - path.accumulator.precision + 4.0
        for x, fmt in (("a", unit.a), ("b", unit.b)):
            found[x] = _near(fmt, shape, spread, g, low / 2)
        found["c"] = np.where(g.random(n) < 0.5, 0, _near(path.accumulator, (n,), 4, g, low))
    return found


def _drawn_shared(unit: Unit, n: int, g: np.random.Generator) -> dict[str, Codes]:
    """Of one operand, what its elements share beside a scale."""
    fmt, found = unit.shared, {}
    if fmt is None:
        return found
    runs = -(-unit.lanes // unit.run)
    for at, level in enumerate(fmt.inner):
        count = max(1, unit.lanes // int(level.block[0]))
        found[f"inner{at}"] = _any(level.scale, (n, count), g)
    if fmt.zero_point is not None:
        found["zero_point"] = _any(fmt.zero_point, (n, runs), g)
    if fmt.outlier is not None:
        found["outlier"] = g.integers(0, unit.run + 1, (n, runs), dtype=np.uint64)
    if fmt.offset is not None:
        found["ones"] = g.integers(0, 2, n, dtype=np.uint64)
    if "a_outer" in unit.ports and fmt.outer is not None:
        found["outer"] = _drawn(fmt.outer.scale, "near", (n,), 3, g)
    return found


def operand(unit: Unit, given: dict[str, Codes], which: str) -> NDArray[np.float64]:
    """The values that the lanes of an operand have before its scale."""
    element, fmt = unit.a if which == "a" else unit.b, unit.shared
    x = decode(given[which], element)
    if fmt is None:
        return x
    lanes = np.arange(unit.lanes)
    if fmt.offset is not None:
        x = np.where(given[f"{which}_ones"][:, None] == 1, 1.0, x)
    if fmt.zero_point is not None:
        zeros = decode(given[f"{which}_zero_point"], fmt.zero_point)
        x = x - zeros[:, lanes // unit.run]
    if fmt.outlier is not None:
        here = given[f"{which}_outlier"][:, lanes // unit.run] == (lanes % unit.run)
        x = np.where(here, decode(given[which], fmt.outlier.element), x)
    for at, level in enumerate(fmt.inner):
        scales = decode(given[f"{which}_inner{at}"], level.scale)
        x = x * scales[:, lanes // int(level.block[0])]
    return x


def scale_of(unit: Unit, given: dict[str, Codes], which: str) -> NDArray[np.float64]:
    """The scales of an operand's runs."""
    assert unit.scale is not None
    s = decode(given[f"{which}_scale"], unit.scale)
    fmt = unit.shared
    if fmt is not None and fmt.outer is not None and f"{which}_outer" in given:
        s = s * decode(given[f"{which}_outer"], fmt.outer.scale)[:, None]
    if fmt is not None and fmt.offset is not None:
        s = np.where(given[f"{which}_ones"][:, None] == 1, -s, s)
    return s


def _drawn(
    fmt: Format, kind: str, shape: tuple[int, ...], spread: float, g: np.random.Generator
) -> Codes:
    if kind == "any":
        return _any(fmt, shape, g)
    if kind == "edge":
        codes = g.choice(edge_codes(fmt), shape)
        return np.where(g.random(shape) < 0.5, codes, _near(fmt, shape, spread, g))
    return _near(fmt, shape, spread, g)


def _cancel(unit: Unit, found: dict[str, Codes], g: np.random.Generator) -> None:
    """Half of the cases get a c near minus the sum of the products, half a lane near minus
    another one."""
    with np.errstate(all="ignore"):
        total = (operand(unit, found, "a") * operand(unit, found, "b")).sum(1)
        if unit.scale is not None and len(found["a_scale"].shape) > 1:
            for x in "ab":
                total = total * scale_of(unit, found, x)[:, 0]
        c = encode(-np.nan_to_num(total, posinf=1, neginf=-1), unit.datapath.accumulator)
    nudge = g.integers(0, 3, len(c)).astype(np.uint64)
    found["c"] = np.where(np.arange(len(c)) % 2 == 0, c ^ nudge, found["c"])
    if unit.lanes > 1:
        for x, fmt in (("a", unit.a), ("b", unit.b)):
            minus = x == "a" and isinstance(fmt, FloatFormat) and fmt.signed
            flip = np.uint64(1 << (fmt.bits - 1)) if minus else np.uint64(0)
            found[x][1::2, 1] = found[x][1::2, 0] ^ flip


def step_of(unit: Unit) -> Datapath:
    """One step of the unit's datapath and nothing around it."""
    scaling = unit.datapath.scaling
    outside = scaling is not None and scaling.position == "outside"
    update = {"promotion": None, "order": (), "scaling": None if outside else scaling}
    return unit.datapath.model_copy(update=update)


def _scales(unit: Unit, given: dict[str, Codes]) -> tuple[NDArray[np.float64], ...] | None:
    path = step_of(unit)
    if path.scaling is None or unit.scale is None:
        return None
    same = max(1, path.scaling.block // unit.run)
    return tuple(scale_of(unit, given, x)[:, ::same] for x in "ab")


def kernel_answers(unit: Unit, given: dict[str, Codes]) -> NDArray[np.float64]:
    """What `lowprec.kernels.dot` says that the accumulator is after the step."""
    a, b = operand(unit, given, "a"), operand(unit, given, "b")
    c, scales = decode(given["c"], unit.datapath.accumulator), _scales(unit, given)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (a, b, c, *(scales or ()))]
    d = dot(
        *tensors[:3],
        datapath=step_of(unit),
        formats=unit.carriers,
        scales=(tensors[3], tensors[4]) if scales else None,
    )
    return d.double().numpy()


def mismatches(unit: Unit, found: Codes, wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """Cases in which the code of d is not that of the wanted value, -0 and the NaN included."""
    fmt = unit.datapath.accumulator
    got = decode(found, fmt)
    same = (got == wanted) & (np.signbit(got) == np.signbit(wanted))
    if isinstance(fmt, FloatFormat):
        same |= np.isnan(wanted) & (found == fmt.nan_code)
    return np.flatnonzero(~same)


def _kept(x: Value, fmt: Format) -> Value:
    """What stands for Inf and NaN in an accumulator that lacks them."""
    if (x == x and abs(x) < np.inf) or not isinstance(fmt, FloatFormat) or fmt.infinity:
        return x
    if fmt.has_nan:
        return np.nan
    return exact(-fmt.max_exact if x < 0 else fmt.max_exact)


def oracle_mismatches(unit: Unit, given: dict[str, Codes], found: Codes) -> list[int]:
    """Cases in which `lowprec.exact.dot` says otherwise."""
    path, wrong = step_of(unit), []
    scales, values = _scales(unit, given), None
    if unit.shared is not None:
        values = operand(unit, given, "a"), operand(unit, given, "b")
    for k in range(len(found)):
        if values is None:
            pair = ("a", unit.a), ("b", unit.b)
            a, b = ([value(int(c), f) for c in given[x][k]] for x, f in pair)
        else:
            a, b = ([exact(x) for x in rows[k].tolist()] for rows in values)
        c = value(int(given["c"][k]), path.accumulator)
        factors = None if scales is None else (scales[0][k].tolist(), scales[1][k].tolist())
        want = exact_dot(a, b, c, path, unit.carriers, factors)
        if not identical(_kept(want, path.accumulator), value(int(found[k]), path.accumulator)):
            wrong.append(k)
    return wrong


def check(unit: Unit, cases: int, seed: int = 0, oracle: int = 24) -> None:
    """No case in which the unit and the kernels differ, nor of `oracle` cases unit and oracle; of
    values beyond float32, which the kernels do not take, of ten times as many."""
    given = vectors(unit, cases, seed)
    d = simulate(unit, given)["d"]
    scales = unit.datapath.scaling.formats if unit.datapath.scaling else ()
    if all(fmt.bits <= 32 for fmt in (*unit.carriers, *scales)):
        assert mismatches(unit, d, kernel_answers(unit, given)).tolist() == []
    else:
        oracle *= 10
    step = max(1, cases // oracle)
    few = {name: codes[::step] for name, codes in given.items()}
    assert oracle_mismatches(unit, few, d[::step]) == []
