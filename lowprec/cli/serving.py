"""`lowprec serve`: a model under load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowprec.cli.app import Json, RecipeText
from lowprec.cli.throughput import load_level
from lowprec.cli.workloads import symbolic_workload
from lowprec.errors import LowprecError

if TYPE_CHECKING:
    from lowprec.perf.serving import Served, Service, Traffic

app = typer.Typer()


@app.command()
def serve(
    model: Annotated[
        str, typer.Argument(help="A shipped workload, a W.json, or a model to trace.")
    ],
    recipe: RecipeText,
    machine: Annotated[list[str], typer.Option(help="A machine's name or .toml; repeatable.")],
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Users at a time; repeatable [16].")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Requests per second, in place of users.")
    ] = None,
    input: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    output: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 1024,
    spread: Annotated[float, typer.Option(help="Lengths go down to 1 - spread of those.")] = 0.2,
    parallel: Annotated[str | None, typer.Option(help="Layout over chips, such as tp=8.")] = None,
    prefill: Annotated[
        str | None, typer.Option(help="Copies that prefill apart, such as '2 x tp=4'.")
    ] = None,
    decode: Annotated[str | None, typer.Option(help="And those that decode.")] = None,
    backend: Annotated[str, typer.Option(help="vllm, sglang or trtllm.")] = "vllm",
    system: Annotated[str | None, typer.Option(help="System whose links the chips use.")] = None,
    level: Annotated[str, typer.Option(help="bound or kernel.")] = "kernel",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Event by event, with percentiles.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time to first token, time per output token and throughput of a served model."""
    from lowprec.perf import machine as load_machine
    from lowprec.perf.serving import Service, Traffic
    from lowprec.report.text import print_json, show_rows
    from lowprec.spec.load import build

    if rate is not None and concurrency:
        raise LowprecError("--rate: expected either --rate or --concurrency")
    if (prefill is None) != (decode is None) or (prefill and parallel):
        raise LowprecError("--prefill: expected together with --decode, and without --parallel")
    if prefill and (simulate or rate is not None):
        raise LowprecError("--prefill: expected with --concurrency and without --simulate")
    work = symbolic_workload(model)
    loads = (
        [{"rate": rate}] if rate is not None else [{"concurrency": c} for c in concurrency or [16]]
    )
    found = []
    for name in machine:
        chip = load_machine(name)

        def service(plan: str | None, chip: Any = chip) -> Service:
            return Service(
                work, recipe, chip, parallel=plan, backend_name=backend, level=load_level(level),
                system=system,
            )  # fmt: skip

        for load in loads:
            asked = {"input": input, "output": output, "spread": spread} | load
            traffic = build(Traffic, asked, "traffic")
            if prefill and decode:
                found.append(_apart(service, prefill, decode, traffic))
            else:
                found.append(_served(service(parallel), traffic, simulate))
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        show_rows([_row(each) for each in found], as_json=False)


def _served(server: Service, traffic: Traffic, simulated: bool) -> Served:
    from lowprec.perf.serving import simulate, static

    return simulate(server, traffic) if simulated else static(server, traffic)


def _apart(service: Any, prefill: str, decode: str, traffic: Traffic) -> Served:
    from lowprec.perf.serving import Disaggregated, disaggregated

    (many, one), (more, other) = _pool(prefill, "--prefill"), _pool(decode, "--decode")
    pools = Disaggregated(prefill=many, decode=more)
    return disaggregated(service(one), service(other), pools, traffic)


def _pool(text: str, option: str) -> tuple[int, str]:
    count, times, plan = text.partition(" x ")
    if not times or not count.strip().isdecimal() or int(count) < 1:
        raise LowprecError(f"{option}: expected such as '2 x tp=4', got {text!r}")
    return int(count), plan


def _row(found: Served) -> dict[str, Any]:
    from lowprec.report.text import engineering

    return {
        "machine": found.machine,
        "parallel": found.parallel,
        "batch": f"{found.batch:.3g}",
        "TTFT ms": _milliseconds(found.ttft),
        "TPOT ms": _milliseconds(found.tpot),
        "90 %": f"{found.low * 1e3:.3g} to {found.high * 1e3:.3g}",
        "tokens/s/chip": engineering(found.tokens_per_second_per_chip),
        "calibration": found.calibration,
    }


def _milliseconds(times: Any) -> str:
    """The median, and where they differ the 90th and 99th percentile."""
    every = (times.p50, times.p90, times.p99)
    return " / ".join(f"{1e3 * t:.4g}" for t in (every if times.p99 > times.p50 else every[:1]))
