"""The reference of exactly one quantizer, and perhaps a datapath: one Python file, one C header.

What is emitted is what the format needs and no more; the templates are in ``templates/``.
"""

from __future__ import annotations

import math
import re
from typing import Any

from lowprec.errors import LowprecError
from lowprec.exact.scale import largest_value
from lowprec.proposal.reference.dots import INTEGERS_C, check_c, dot_context
from lowprec.proposal.reference.parts import Part, part
from lowprec.proposal.reference.words import layout, listed_c, listed_py, number_c, summary
from lowprec.spec import (
    BlockFormat,
    Datapath,
    FloatFormat,
    Format,
    IntFormat,
    Projection,
    Quantizer,
)
from lowprec.spec.format import floor_log2, pow2
from lowprec.spec.quantizer import GIVEN_RULES, POWER_OF_TWO_RULES, SEARCHING_RULES


def python_reference(quantizer: Quantizer, datapath: Datapath | None = None) -> str:
    """The source of a Python file without imports but of the standard library.

    LowprecError for formats whose values float64 does not hold, codebooks of more than 256 values
    and stochastic rounding onto codebooks.
    """
    return _rendered("reference.py.jinja", quantizer, datapath)


def c_reference(quantizer: Quantizer, datapath: Datapath | None = None) -> str:
    """The source of a C99 header with the same functions, each named NAME_function.

    LowprecError as for `python_reference`, and for a datapath whose sums a double does not hold.
    """
    if datapath is not None:
        check_c(datapath)
    return _rendered("reference.h.jinja", quantizer, datapath)


def c_name(quantizer: Quantizer) -> str:
    """The prefix of the header's functions: the format's name as an identifier of C."""
    return re.sub(r"\W", "_", quantizer.format.name)


def _rendered(template: str, quantizer: Quantizer, datapath: Datapath | None) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("lowprec.proposal.reference"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=False,
        autoescape=False,
    )
    environment.globals |= {"hex": hex, "layout": layout}
    is_c = template.endswith(".h.jinja")
    environment.globals["listed"] = listed_c if is_c else listed_py
    environment.globals["integer_c"] = INTEGERS_C.__getitem__
    environment.filters["num"] = number_c
    text = environment.get_template(template).render(context(quantizer, datapath))
    # Templates leave more empty lines than one reads well.
    return re.sub(r"\n{3,}", "\n\n" if is_c else "\n\n\n", text).rstrip("\n") + "\n"


def context(quantizer: Quantizer, datapath: Datapath | None = None) -> dict[str, Any]:
    """What the templates ask for."""
    fmt = quantizer.format
    parts = _parts(quantizer)
    found: dict[str, Any] = {
        "target": quantizer.spell(),
        "name": c_name(quantizer),
        "summary": summary(quantizer),
        "parts": list(parts.values()),
        "codebooks": any(p.format.kind == "codebook" for p in parts.values()),  # type: ignore[attr-defined]
        "random_bits": quantizer.projection.bits,
        "path": None,
        "block": isinstance(fmt, BlockFormat),
        **{name: parts.get(name) for name in _NAMES},
    }
    found |= dot_context(datapath) if datapath else {}
    return found | (_block(quantizer, fmt, parts) if isinstance(fmt, BlockFormat) else {})


_NAMES = ("element", "scale", "outer", "zero_point", "offset", "outlier")


def _parts(quantizer: Quantizer) -> dict[str, Part]:
    fmt = quantizer.format
    if not isinstance(fmt, BlockFormat):
        return {"element": part("element", fmt, quantizer.projection)}
    named: dict[str, tuple[Format, Projection]] = {"element": (fmt.element, quantizer.projection)}
    onto_scale = Projection()
    if fmt.outlier is not None:
        named["outlier"] = (fmt.outlier.element, quantizer.projection)
    named["scale"] = (fmt.scale, onto_scale)
    for i, level in enumerate(fmt.inner):
        named[f"inner_{chr(ord('a') + i)}"] = (level.scale, onto_scale)
    if fmt.zero_point is not None:
        named["zero_point"] = (fmt.zero_point, onto_scale)
    if fmt.offset is not None:
        named["offset"] = (fmt.offset, onto_scale)
    if fmt.outer is not None:
        named["outer"] = (fmt.outer.scale, onto_scale)
    return {name: part(name, f, projection) for name, (f, projection) in named.items()}


def _block(quantizer: Quantizer, fmt: BlockFormat, parts: dict[str, Part]) -> dict[str, Any]:
    rule, m = quantizer.rule, largest_value(quantizer)
    length = None if isinstance(fmt.block, str) else math.prod(fmt.block)
    scale = fmt.scale
    inner = [
        {
            "name": f"inner_{chr(ord('a') + i)}",
            "size": int(level.block[0]),
            "count": -(-(length or 1) // int(level.block[0])),
            "part": parts[f"inner_{chr(ord('a') + i)}"],
            "emax": fmt.element.emax + sum(lower.scale.emax for lower in fmt.inner[i + 1 :]),
        }
        for i, level in enumerate(fmt.inner)
    ]
    keys = ["scale", *(level["name"] for level in inner)]
    keys += [key for key in ("zero_point", "offset", "outlier") if parts.get(key)]
    precision = _precision(fmt.element) if rule == "even" else 1
    span = fmt.element.max_exact - fmt.element.min_exact
    given_here = rule in GIVEN_RULES and fmt.outer is None
    return {
        "rule": rule,
        "static": rule == "static",
        "fixed": quantizer.fixed,
        "given_here": given_here,
        "power_rules": POWER_OF_TWO_RULES,
        "searching": rule in SEARCHING_RULES,
        "onto_scale": rule not in (*POWER_OF_TWO_RULES, "mse") and not given_here,
        "length": length,
        "length_note": f", {fmt.block[0]} rows of {fmt.block[1]}" if _is_tile(fmt) else "",
        "granularity": fmt.block,
        "m": _float32(m, "largest value"),
        "emax": floor_log2(m),
        "even_threshold": 1 - 2.0 ** -(precision + 1),
        "span": _float32(span, "range"),
        "scale_exponents": [floor_log2(scale.min_positive_exact), floor_log2(scale.max_exact)],
        "factors": _factors(scale),
        "has_range": rule == "minmax",
        "low_has_zero": fmt.offset is not None and fmt.offset.min_exact >= 0,
        "offset_largest": float(fmt.offset.max_exact) if fmt.offset else None,
        "outer_block": fmt.outer.block if fmt.outer else None,
        "outer_divisor": _outer_divisor(quantizer, fmt),
        "inner": inner,
        "index_bits": fmt.outlier.index_bits if fmt.outlier else None,
        "keys": [*keys, "code"],
    }


def _is_tile(fmt: BlockFormat) -> bool:
    return not isinstance(fmt.block, str) and len(fmt.block) == 2


def _float32(x: Any, what: str) -> float:
    from lowprec.exact import FLOAT32, project

    if project(x, FLOAT32.format) != x:
        raise LowprecError(f"no reference: the {what} {float(x)} is no float32")
    return float(x)


def _outer_divisor(quantizer: Quantizer, fmt: BlockFormat) -> float | None:
    """RN(M * R), or RN(D * R) under minmax."""
    from fractions import Fraction

    from lowprec.exact import FLOAT32

    if fmt.outer is None:
        return None
    reach = fmt.scale.max_exact
    if quantizer.rule == "four_over_six":
        reach = pow2(floor_log2(reach / Fraction(3, 2)))
    span = fmt.element.max_exact - fmt.element.min_exact
    factor = span if quantizer.rule == "minmax" else largest_value(quantizer)
    return float(FLOAT32.multiply(factor, reach))


def _factors(scale: Format) -> list[float]:
    powers_alone = isinstance(scale, FloatFormat) and scale.precision == 1
    steps = [0] if powers_alone else range(15, -1, -1)
    return [2.0, *((1 + j / 16) * 2.0**i for i in (0, -1, -2) for j in steps)]


def _precision(element: Format) -> int:
    if isinstance(element, FloatFormat):
        return element.precision
    assert isinstance(element, IntFormat)  # Quantizer sees to it.
    return element.bits - element.signed
