"""A format as plain data, for `lowprec formats`."""

from __future__ import annotations

from typing import Any

from lowprec.spec import BlockFormat, FloatFormat, Format, list_formats, load_facts


def format_row(fmt: Format | BlockFormat) -> dict[str, Any]:
    """A format's line in the list of all."""
    if isinstance(fmt, BlockFormat):
        element = fmt.element
        return {
            "name": fmt.name,
            "bits": fmt.bits_per_element,
            "kind": f"block {_granularities(fmt)}",
            "max": float(element.max),
            "element": element.name,
            "scale": fmt.scale.name,
        }
    kind = getattr(fmt, "kind", "")
    return {"name": fmt.name, "bits": fmt.bits, "kind": kind, "max": float(fmt.max)}


def describe(fmt: Format | BlockFormat) -> dict[str, Any]:
    """A format as plain data: parameters, derived facts, source, and the values of a scalar
    format of at most 8 bits as [code point, value] pairs."""
    from lowprec.exact.values import value_table

    data = {key: value for key, value in fmt.to_json().items() if key != "values"}
    if isinstance(fmt, BlockFormat):
        data = {key: value for key, value in data.items() if key in ("name", "block")}
        data |= {"granularities": _granularities(fmt)}
        data |= {key: part.name for key, part in fmt.parts.items()}
        element: Format = fmt.element
        data["bits_per_element"] = fmt.bits_per_element
    else:
        element = fmt
    data |= {"max": float(element.max), "min": float(element.min), "emax": element.emax}
    if isinstance(element, FloatFormat):
        data |= {
            "emin": element.emin,
            "min_normal": float(element.min_normal_exact),
            "min_positive": float(element.min_positive_exact),
        }
    data |= {"digest": fmt.digest, "source": _source(fmt.name)}
    if element.bits <= 8:
        digits = -(-element.bits // 4)
        table = enumerate(value_table(element))
        data["values"] = [[f"0x{code:0{digits}x}", _number(value)] for code, value in table]
    return data


def _granularities(fmt: BlockFormat) -> str:
    """Elements per scale from the coarsest level to the finest: ``tensor/16``, ``64/8/4``."""
    blocks = [*([fmt.outer.block] if fmt.outer else []), fmt.block]
    blocks += [level.block for level in fmt.inner]
    return "/".join(b if isinstance(b, str) else "x".join(map(str, b)) for b in blocks)


def _source(name: str) -> str | None:
    return load_facts(name).source if name in list_formats() else None


def _number(value: Any) -> float | str:
    number = float(value)
    return number if number == number and abs(number) != float("inf") else str(number)
