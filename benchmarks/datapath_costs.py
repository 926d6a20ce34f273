"""Synthesises a spread of dot-product units, for the constants of `lowprec.perf.datapath_cost`.

    python benchmarks/datapath_costs.py [PART/PARTS]

writes benchmarks/datapath_costs.csv: one line per unit, gates in NAND2 equivalents by component.
Results are cached, so that it can be stopped and goes on. Needs yosys and the extra rtl.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lowprec.rtl.synth import COMPONENTS, synthesise
from lowprec.rtl.unit import dot_unit
from lowprec.spec import Aligned, Datapath, Format, IntFormat, Scaling, load_format
from lowprec.spec.default_datapath import default_datapath

FILE = Path(__file__).with_suffix(".csv")


class Point(NamedTuple):
    """window: fraction bits of the sum, or 0 for an exact one. group: as `Scaling.group`, or 0."""

    element: str
    window: int
    lanes: int
    scale: str = ""
    group: int = 0
    accumulator: str = "float32"


def points() -> Iterator[Point]:
    """Precision and exponent range, window, lanes, scales and accumulators, each varied alone."""
    for lanes in (8, 4, 16):
        for window in (25, 13, 0):
            for element in ("float8_e4m3fn", "float4_e2m1fn", "float6_e3m2fn", "float8_e5m2"):
                yield Point(element, window, lanes)
        yield Point("int8", 0, lanes, accumulator="int32")
        yield Point("int4", 0, lanes, accumulator="int32")
        yield Point("float4_e2m1fn", 35, lanes, "float8_e8m0fnu", lanes)
        yield Point("float4_e2m1fn", 35, lanes, "float8_e4m3fn", lanes)
        yield Point("float8_e4m3fn", 25, lanes, "float8_e8m0fnu")
    for window in (25, 10, 18, 0):
        yield Point("float6_e2m3fn", window, 8)
        yield Point("float8_e3m4", window, 8)
        yield Point("float4_e3m0", window, 8)
    for window in (18, 30):
        for element in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
            yield Point(element, window, 8)
    for element in ("bfloat16", "float16", "tfloat32"):
        yield Point(element, 25, 8)
    yield Point("float16", 13, 8)
    yield Point("float16", 0, 4)
    yield Point("float8_e4m3fn", 13, 8, accumulator="float16")
    yield Point("bfloat16", 25, 4)
    yield Point("float8_e4m3fn", 25, 32)
    yield Point("float4_e2m1fn", 0, 32)
    yield Point("int8", 0, 32, accumulator="int32")
    yield Point("float6_e2m3fn", 25, 16, "float8_e8m0fnu", 16)
    yield Point("float4_e1m2", 25, 8)
    yield Point("int6", 0, 8, accumulator="int32")
    for element in ("ternary", "iq4_nl", "nf4", "hifloat8", "posit8_2", "ufloat8_e4m3"):
        yield Point(element, 25, 8)
    yield Point("hifloat8", 13, 4)
    yield Point("iq4_nl", 18, 16)


def datapath(point: Point) -> Datapath:
    """The point as a datapath; codebooks are looked up as values of its input."""
    element, accumulator = _scalar(point.element), _scalar(point.accumulator)
    whole = point.accumulator.startswith("int")
    scaling = None
    if point.scale:
        scaling = Scaling(
            formats=(_scalar(point.scale),),
            block=point.lanes,
            position="inside",
            group=point.group or None,
        )
    return Datapath(
        name="point",
        inputs=default_datapath(element).inputs if element.kind == "codebook" else (element,),
        accumulator=accumulator,
        addition=Aligned(kind="aligned", fraction_bits=point.window or None),
        step=point.lanes,
        rounding="nearest-even" if whole or not point.window else "toward-zero",
        overflow="wrap" if whole else "infinity",
        scaling=scaling,
    )


def _scalar(name: str) -> Format:
    if name == "int32":
        return IntFormat(name=name, kind="int", bits=32)
    found = load_format(name)
    assert isinstance(found, Format)
    return found


def measure(point: Point) -> dict[str, Any]:
    """One line of the file."""
    unit = dot_unit(datapath(point), point.element, point.element)
    found = synthesise(unit.verilog(), unit.name)
    by = found.by_component()
    gates = {f"gates_{name}": round(by.get(name, 0.0), 1) for name in (*COMPONENTS, "other")}
    totals = {"gates": round(found.gates, 1), "transistors": found.transistors}
    return {**point._asdict(), **gates, **totals, "depth": found.depth, "delay": found.delay}


def main() -> None:
    part, parts = map(int, (sys.argv[1:] or ["1/1"])[0].split("/"))
    lines = []
    for point in list(dict.fromkeys(points()))[part - 1 :: parts]:
        lines.append(measure(point))
        print(*(f"{k} {v}" for k, v in lines[-1].items()), flush=True)
    if parts == 1:
        with FILE.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
