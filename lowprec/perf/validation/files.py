"""Validation files: CSV, or Parquet where pyarrow is there, in any of four layouts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.served import fields_of_bulk

_TEXT = ("id", "hw", "what", "shape", "format", "unit", "level", "conditions", "source",
         "source_group", "note")  # fmt: skip
_LONGEST = 1 << 24  # characters of one field
_AIC = {"system", "gemm_dtype", "m", "n", "k"}
_AITER = {"gfx", "cu_num", "fmt", "M", "N", "K"}
_SERVED = {"system", "backend", "model_path", "mode", "isl", "osl", "conc"}
_POINT = {"hw", "what", "shape", "format", "unit"}
_LAYOUTS = (_POINT, _AIC, _AITER, _SERVED)
# What rows of served points measured; where both columns are there, or none, the first is asked.
_METRICS = {"TPOT": "silicon_tpot_ms", "TTFT": "silicon_ttft_ms"}
_POOL = ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_STAGES = ("pp_size", "prefill_pp_size", "decode_pp_size")
_MANY = 10**6  # from here on no count is one of a server
_COUNTS = {"isl", "osl", "conc"}.union(
    f"{p}{n}" for p in ("", "prefill_", "decode_") for n in _POOL
)


def read_points(path: str | Path) -> Iterator[Point]:
    """The points of a file in its order. Columns: those of `Point`; or system, stack, gemm_dtype,
    m, n, k, latency_us; or system, backend, model_path, precision, mode, isl, osl, conc and the
    numbers of chips (AIConfigurator, served points); or gfx, cu_num, fmt, M, N, K, us (aiter).

    A served point is one of its time per output token, or of that to the first one where the file
    has silicon_ttft_ms alone.

    LowprecError: no such file, or other columns.
    """
    path = Path(path)
    rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    for number, row in enumerate(rows):
        yield _point(row, number)


def has_points(path: Path) -> bool:
    """Whether the columns of a CSV file are those of measurements of this model."""
    with path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file:
        columns = set(next(csv.reader(file), ()))
    return any(columns >= known for known in _LAYOUTS)


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    """Bytes that are no UTF-8 stand as ``\\xb5``: such a row is answered like any other."""
    csv.field_size_limit(_LONGEST)
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file:
            rows = csv.DictReader(file)
            rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            _layout(set(rows.fieldnames or ()), path)
            yield from rows
    except OSError as error:
        raise LowprecError(f"{path}: {error.strerror}") from None
    except csv.Error as error:
        raise LowprecError(f"{path}: line {rows.line_num + 1}: {error}") from None


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]
    except ImportError:
        raise LowprecError(f"{path}: reading Parquet takes pyarrow: pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: {error}") from None
    _layout(set(table.column_names), path)
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _layout(columns: set[str], path: Path) -> None:
    """LowprecError if the columns are those of no layout: what lacks of the one that is nearest."""
    if any(columns >= known for known in _LAYOUTS):
        return
    near = max(_LAYOUTS, key=lambda known: len(known & columns) / len(known))
    missing = ", ".join(sorted(near - columns))
    raise LowprecError(
        f"{path}: columns: expected {', '.join(sorted(near))}; missing {missing} (got "
        f"{', '.join(sorted(columns)) or 'none'})"
    )


def _point(row: Mapping[str, Any], number: int) -> Point:
    columns = set(row)
    ident = _text(row.get("id")) or str(number)
    if columns >= _AIC:
        return Point(
            id=ident,
            hw=_text(row["system"]),
            what="linear layer GEMM",
            shape=f"M={row['m']} N={row['n']} K={row['k']}",
            format=_text(row["gemm_dtype"]),
            unit="us",
            level="kernel",
            value=_number(row.get("latency_us")),
            conditions="CUDA graph; weights rotated to defeat L2; dynamic quantisation inside",
            source=_text(row.get("stack")),
            source_group=f"aic-gemm-{row['system']}",
        )
    if columns >= _AITER:
        return Point(
            id=ident,
            hw=f"{row['gfx']}/{row['cu_num']}",
            what="tuned GEMM (aiter)",
            shape=f"M={row['M']} N={row['N']} K={row['K']}",
            format=_text(row["fmt"]),
            unit="us",
            level="kernel",
            value=_number(row.get("us")),
            conditions="best of kernels; operands pre-quantised",
            source_group=f"aiter-{row['gfx']}-{row['cu_num']}-{row['fmt']}",
        )
    if columns >= _SERVED:
        return _served(row, ident)
    text = {name: _text(row.get(name)) for name in _TEXT}
    chips = _number(row.get("chips"))
    return Point(**text | {"id": ident}, chips=chips or 1, value=_number(row.get("value")))


def _served(row: Mapping[str, Any], ident: str) -> Point:
    there = [metric for metric, column in _METRICS.items() if column in row]
    metric = (there or ["TPOT"])[0]
    # The words of the other tables say "nan" of what is not there.
    fields = {name: _text(value) or "nan" for name, value in row.items()}
    for name in _COUNTS & fields.keys():
        count = _number(row[name])
        fields[name] = fields[name] if count and count in range(_MANY) else ""
    stages = {row.get(name) for name in _STAGES} - {None, ""}
    words = fields_of_bulk(fields)
    return Point(
        id=ident,
        hw=fields["system"],
        what=f"{fields['model_path']} {fields['mode']} {metric}",
        shape="several pipeline stages" if any(map(_several, stages)) else words["shape"],
        format=words["format"],
        unit="ms",
        level="e2e inference",
        value=_number(row.get(_METRICS[metric])),
        conditions=words["conditions"],
        source_group=f"aic-e2e-{fields['system']}",
    )


def _several(stages: Any) -> bool:
    return (_number(stages) or 1) != 1


def _text(value: Any) -> str:
    text = "" if value is None else str(value).strip()
    return "" if text.lower() == "nan" else text


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number == number else None
