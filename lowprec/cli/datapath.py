"""`lowprec datapath`: what a multiply-add unit computes, and what it costs in gates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli import what_if
from lowprec.cli.app import Json
from lowprec.errors import LowprecError, unknown

if TYPE_CHECKING:
    from lowprec.rtl.cost import Cost
    from lowprec.rtl.unit import Unit
    from lowprec.spec import BlockFormat, Datapath, Format


app = typer.Typer()


@app.command()
def datapath(
    name: Annotated[str, typer.Argument(help="A datapath or a format, by name or .toml file.")],
    inputs: Annotated[
        str | None, typer.Option(help="Formats of both operands, A or A,B [the first input].")
    ] = None,
    lanes: Annotated[int | None, typer.Option(min=1, help="Products per pass [the step].")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The datapath or format to compare with.")
    ] = None,
    synth: Annotated[bool, typer.Option("--synth", help="Synthesise, too; needs yosys.")] = False,
    rtl: Annotated[Path | None, typer.Option(help="Folder where the Verilog goes.")] = None,
    machine: Annotated[
        str | None, typer.Option(help="The machine to have it in place of a datapath of its own.")
    ] = None,
    replace: Annotated[
        str | None, typer.Option(help="That datapath, whose unit is the baseline.")
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Add it, with that datapath left as it is.")
    ] = False,
    area: Annotated[float, typer.Option(help="Area for it, in areas of the old units.")] = 1.0,
    power: Annotated[float, typer.Option(help="Power for it, in what the old units draw.")] = 1.0,
    model: Annotated[
        str | None, typer.Option(help="A workload's name or W.json: its throughput, too.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences that it decodes.")] = 64,
    recipe: Annotated[str, typer.Option(help="What of the model is in which format.")] = "",
    as_json: Json = False,
) -> None:
    """Show a datapath's numerics and its cost by component, alone and over a baseline.

    Gates are NAND2 equivalents, without pipeline registers. Of a format the unit is what today's
    tensor cores would be for it.
    """
    from lowprec.report.text import plain, print_json, show_rows

    if machine is None and (replace or model or beside or recipe):
        raise LowprecError("--replace, --beside, --model and --recipe: expected --machine, too")
    ours = _chosen(name, inputs, lanes)
    theirs = _chosen(baseline, None, lanes) if baseline else None
    data: dict[str, Any] = {"numerics": _numerics(ours), "model": _model(ours)}
    if theirs is not None:
        data["baseline"] = {"numerics": _numerics(theirs), "model": _model(theirs)}
    if rtl is not None:
        data["verilog"] = str(_write(ours, rtl))
    if synth:
        data["synthesis"] = _synthesis(ours, theirs)
    if machine is not None:
        if theirs is None or replace is None:
            raise LowprecError("--machine: needs --replace, and --baseline for the unit that goes")
        old = theirs.path
        swap = what_if.swapped(ours, old, machine, replace, area=area, power=power, keep=beside)
        data["machine"] = what_if.rates(swap)
        if model:
            data["machine"] |= what_if.throughput(swap, machine, model, batch, recipe)
    if as_json:
        print_json(data)
        return
    for key, value in data["numerics"].items():
        print(f"{key:12} {plain(value)}")
    print("\nmodelled, gates per lane")
    show_rows(_rows(data["model"], data.get("baseline", {}).get("model")), as_json=False)
    if synth:
        print("\nsynthesised, gates per lane")
        show_rows(_rows(*data["synthesis"]), as_json=False)
    if machine is not None:
        print(f"\nin {machine} {'beside' if beside else 'in place of'} {replace}")
        for key, value in data["machine"].items():
            print(f"{key:24} {plain(value)}")
    if rtl is not None:
        print(f"\nVerilog: {data['verilog']}")


class Chosen:
    """A datapath with the formats of its operands. shared: the block format of both, if a unit
    reads more of it than elements and a scale."""

    def __init__(
        self,
        path: Datapath,
        a: Format,
        b: Format,
        lanes: int | None,
        shared: BlockFormat | None = None,
    ) -> None:
        from lowprec.spec.default_datapath import passes

        self.path, self.a, self.b, self.shared = path, a, b, shared
        self.lanes = lanes or path.step or 8
        scales = path.scaling.formats if path.scaling else (None,)
        self.scale = shared.scale if shared and path.scaling else scales[0]
        self.passes = passes(shared) if shared else 1

    def unit(self) -> Unit:
        from lowprec.rtl import dot_unit, format_unit

        if self.shared is not None:
            return format_unit(self.shared, self.lanes)
        return dot_unit(self.path, self.a, self.b, self.lanes, scale=self.scale)


def _chosen(name: str, inputs: str | None, lanes: int | None) -> Chosen:
    from lowprec.spec import Format, load_format

    path, element, shared = _load(name)
    pair = [load_format(each.strip(), "--inputs") for each in (inputs or "").split(",") if each]
    scalars = [each for each in pair if isinstance(each, Format)]
    if len(scalars) < len(pair) or len(pair) > 2:
        raise LowprecError(f"--inputs {inputs!r}: expected one or two scalar formats")
    if scalars and shared is not None:
        raise LowprecError(f"--inputs {inputs!r}: {name} is a format; expected a datapath's name")
    a, b = (scalars * 2)[:2] if scalars else (element, element)
    return Chosen(path, a, b, lanes, shared)


def _load(name: str) -> tuple[Datapath, Format, BlockFormat | None]:
    """The datapath, what it multiplies by default, and the block format if it shares more than a
    scale."""
    from lowprec.spec import (
        BlockFormat,
        list_datapaths,
        list_formats,
        load_datapath,
        load_format,
        read_toml,
    )
    from lowprec.spec.default_datapath import default_datapath, goes_beyond_scales

    is_file = name.endswith(".toml")
    if name in list_datapaths() or (is_file and "addition" in read_toml(Path(name))):
        path = load_datapath(name)
        return path, path.inputs[0], None
    try:
        fmt = load_format(name)
    except LowprecError as error:
        if is_file or "unknown format" not in str(error):
            raise
        known = [*list_datapaths(), *list_formats()]
        raise unknown("datapath or format", name, known) from None
    if not isinstance(fmt, BlockFormat):
        return default_datapath(fmt), fmt, None
    shared = fmt if goes_beyond_scales(fmt) else None
    return default_datapath(fmt), fmt.element, shared


def _numerics(chosen: Chosen) -> dict[str, Any]:
    from lowprec.spec import CodebookFormat

    path, addition = chosen.path, chosen.path.addition
    found = {
        "datapath": path.name,
        "a": chosen.a.name,
        "b": chosen.b.name,
        **({"read as": path.inputs[0].name} if isinstance(chosen.a, CodebookFormat) else {}),
        "lanes": chosen.lanes,
        "accumulator": path.accumulator.name,
        "addition": addition.kind,
        **{k: v for k, v in addition.to_json().items() if k != "kind" and v is not None},
        "result": path.result.name if path.result else path.accumulator.name,
        "rounding": path.rounding,
        **({"passes": f"{chosen.passes}, of elements and offsets"} if chosen.passes > 1 else {}),
    }
    if path.scaling is not None and chosen.scale is not None:
        per = f"{chosen.scale.name} per {path.scaling.block}, {path.scaling.position}"
        found["scale"] = per + (f", groups of {path.scaling.group}" if path.scaling.group else "")
    if path.promotion is not None:
        found["promotion"] = f"{path.promotion.format.name} every {path.promotion.interval}"
    return found


def _model(chosen: Chosen) -> dict[str, Any]:
    from lowprec.perf.datapath_cost import structural_cost

    found = structural_cost(
        chosen.path, chosen.a, chosen.b, chosen.lanes, chosen.scale, chosen.shared
    )
    return {
        "components": {k: v / found.lanes for k, v in found.components.items()},
        "gates": found.gates_per_lane,
        "low": found.low / found.lanes,
        "high": found.high / found.lanes,
        "transistors": found.transistors / found.lanes,
        "delay": found.delay,
        "passes": chosen.passes,
    }


def _synthesis(ours: Chosen, theirs: Chosen | None) -> list[dict[str, Any]]:
    from lowprec.rtl.cost import cost

    chosen = [each for each in (ours, theirs) if each is not None]
    return [_measured(cost(each.unit())) | {"passes": each.passes} for each in chosen]


def _measured(cost: Cost) -> dict[str, Any]:
    return {
        "components": cost.by_component(),
        "gates": cost.gates_per_lane,
        "transistors": cost.transistors_per_lane,
        "delay": cost.synthesis.delay,
        "depth": cost.synthesis.depth,
    }


def _write(chosen: Chosen, folder: Path) -> Path:
    unit = chosen.unit()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{unit.name}.v"
        path.write_text(unit.verilog())
    except OSError as error:
        raise LowprecError(f"--rtl {folder}: {error.strerror}") from None
    return path


def _rows(ours: dict[str, Any], theirs: dict[str, Any] | None = None) -> list[dict[str, str]]:
    """A line per component, then the whole, what it takes in time, and products per gate."""
    names = dict.fromkeys([*ours["components"], *(theirs["components"] if theirs else [])])

    def row(name: str, mine: float, other: float | None, digits: int = 0) -> dict[str, str]:
        cells = {"": name, "unit": f"{mine:,.{digits}f}"}
        if other is not None:
            cells |= {"baseline": f"{other:,.{digits}f}"}
            cells |= {"ratio": f"{mine / other:.2f}" if other else ""}
        return cells

    def both(name: str, key: str, digits: int = 0) -> dict[str, str]:
        return row(name, ours[key], theirs[key] if theirs else None, digits)

    rows = [
        row(n, ours["components"].get(n, 0), theirs["components"].get(n, 0) if theirs else None)
        for n in names
    ]
    rows.append(both("gates", "gates"))
    rows += [both(f"gates, {k} of 90 %", k) for k in ("low", "high") if k in ours]
    rows += [both("transistors", "transistors"), both("delay in FO4", "delay")]
    per_gate = [1000 / x["gates"] / x["passes"] if x else None for x in (ours, theirs)]
    rate = row("products per 1000 gates", per_gate[0] or 0.0, per_gate[1], 2)
    return [*rows, rate]
