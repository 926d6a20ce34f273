"""`lowprec vectors`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowprec.cli.app import Json

app = typer.Typer()


@app.command()
def vectors(
    name: Annotated[str, typer.Argument(help="A quantizer, format or datapath; or a .toml file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    level: Annotated[str, typer.Option(help="smoke, standard or full.")] = "smoke",
    as_json: Json = False,
) -> None:
    """Write conformance vectors: hex text, JSON and npz, each question with its exact answer."""
    from lowprec.proposal.vectors import generate, load_target, write
    from lowprec.report.text import show_rows

    sets = generate(load_target(name), level)  # type: ignore[arg-type]
    write(sets, out)
    show_rows([{"set": s.name, "rows": s.rows, "target": s.target} for s in sets], as_json)
