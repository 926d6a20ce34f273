"""The answers of a reference (its functions, in Python or C) to the questions of a vector set."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from lowprec.proposal.vectors import VectorSet
from lowprec.spec import BlockFormat, Quantizer

Functions = Any  # a module, or a class with the same names


def number(code: int, fmt: str) -> float:
    """The value of a code point of float32, float64 or bfloat16."""
    match fmt:
        case "bfloat16":
            return float(struct.unpack("<f", struct.pack("<I", code << 16))[0])
        case "float32":
            return float(struct.unpack("<f", struct.pack("<I", code))[0])
    assert fmt == "float64"
    return float(struct.unpack("<d", struct.pack("<Q", code))[0])


def same(a: float, b: float) -> bool:
    """Equality that tells -0 from +0 and takes NaN for NaN."""
    return struct.pack("<d", a) == struct.pack("<d", b) or (a != a and b != b)


def function_name(found: VectorSet) -> str:
    """inner-0-scale is inner_a in a reference, outer-scale is outer."""
    names = {"outer-scale": "outer", "outlier-element": "outlier"}
    if found.part.startswith("inner-"):
        return f"inner_{chr(ord('a') + int(found.part.split('-')[1]))}"
    return names.get(found.part, found.part)


def differences(found: VectorSet, functions: Functions, quantizer: Quantizer) -> list[str]:
    """Every row that the reference answers otherwise."""
    if found.kind == "quantize":
        return list(_quantize(found, functions, quantizer))
    name = function_name(found)
    if found.kind == "decode":
        decode = getattr(functions, f"decode_{name}")
        wide = found.column("value")
        return [
            f"{found.name} {code:#x}: {decode(code)}"
            for (code,), (y,) in zip(found.column("code").words, wide.words, strict=True)
            if not same(decode(code), number(y, wide.format))
        ]
    if found.kind == "stochastic" and quantizer.projection.bits is None:
        return []
    encode = getattr(functions, f"encode_{name}")
    return list(_encode(found, encode))


def _encode(found: VectorSet, encode: Callable[..., int]) -> Iterator[str]:
    x, code = found.column("x"), found.column("code")
    random = found.column("random").words if found.kind == "stochastic" else None
    for i, ((question,), (answer,)) in enumerate(zip(x.words, code.words, strict=True)):
        bits = () if random is None else random[i]
        given = encode(number(question, x.format), *bits)
        if given != answer:
            yield f"{found.name} {found.why[i]} {question:#x} {bits}: {given:#x} not {answer:#x}"


# Block quantization: a row is a tensor, which a reference takes block by block.


def _quantize(found: VectorSet, functions: Functions, quantizer: Quantizer) -> Iterator[str]:
    for i in range(found.rows):
        row = {column.name: column.words[i] for column in found.columns}
        given = _tensor(row, functions, quantizer)
        for name, words in given.items():
            if name != "value" and words != row[name]:
                yield f"{found.why[i]} {name}: {words} not {row[name]}"
        if not _is_lost(row, quantizer):
            wanted = [number(code, "float32") for code in row["value"]]
            pairs = zip(given["value"], wanted, strict=True)
            if not all(same(a, b) for a, b in pairs):
                yield f"{found.why[i]} value: {given['value']} not {wanted}"


def _is_lost(row: dict[str, Any], quantizer: Quantizer) -> bool:
    """Whether the codes do not say that the values are NaN: no part has a code for it."""
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    finite = all(number(code, "float32") - number(code, "float32") == 0 for code in row["x"])
    # An outermost scale that is given knows nothing of the data.
    given = quantizer.rule in ("static", "fixed")
    if given and fmt.outer is None:
        return not finite and not fmt.element.has_nan
    outer = fmt.outer is not None and fmt.outer.scale.has_nan and not given
    return not finite and not (fmt.scale.has_nan or outer)


def _tensor(row: dict[str, Any], functions: Functions, quantizer: Quantizer) -> dict[str, Any]:
    fmt = quantizer.format
    assert isinstance(fmt, BlockFormat)
    rows, columns = row["shape"]
    x = [number(code, "float32") for code in row["x"]]
    given = [number(row["given"][0], "float32")] if "given" in row else []
    found: dict[str, Any] = {"code": [0] * len(x), "value": [0.0] * len(x)}
    outer = []
    if fmt.outer is not None:
        outer = [functions.outer_scale(x, *given)]
        given = []
        found["outer"] = (functions.encode_outer(outer[0]),)
        if fmt.offset is not None:
            outer.append(functions.outer_offset_scale(x))
            found["outer_offset"] = (functions.encode_outer(outer[1]),)
    for members in _members(fmt, rows, columns):
        numbers = [0.0 if at is None else x[at] for at in members]
        more = [*outer, *given]
        if "random" in row:
            more.append([0 if at is None else row["random"][at] for at in members])
        block = functions.quantize_block(numbers, *more)
        values = functions.dequantize_block(block, *outer)
        for at, code, y in zip(members, block["code"], values, strict=True):
            if at is not None:
                found["code"][at], found["value"][at] = code, y
        for key in block.keys() - {"code"}:
            code = block[key]
            found[key] = (*found.get(key, ()), *(code if isinstance(code, list) else [code]))
    return found | {"code": tuple(found["code"])}


def _members(fmt: BlockFormat, rows: int, columns: int) -> Iterator[list[int | None]]:
    """The flat places of every block's numbers; None fills the rows of a short tile."""
    if fmt.block == "tensor":
        yield list(range(rows * columns))
        return
    high, wide = 1, columns
    if not isinstance(fmt.block, str):
        high, wide = (fmt.block[0] if len(fmt.block) == 2 else 1), fmt.block[-1]
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            width = wide if high > 1 else min(wide, columns - left)
            yield [
                r * columns + c if c < columns else None
                for r in range(top, min(top + high, rows))
                for c in range(left, left + width)
            ]
