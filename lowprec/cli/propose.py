"""`lowprec propose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lowprec.cli.app import Json

app = typer.Typer()


@app.command()
def propose(
    study: Annotated[Path, typer.Argument(help="A study's folder, as lowprec study writes it.")],
    fmt: Annotated[str, typer.Option("--format", help="The format: my.toml, a name, name/rule.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    baseline: Annotated[
        str | None, typer.Option(help="The format that it is held against.")
    ] = None,
    level: Annotated[str, typer.Option(help="Vectors: smoke, standard or full.")] = "standard",
    as_json: Json = False,
) -> None:
    """Write the package that a vendor receives: document, definitions, references, vectors,
    Verilog and records."""
    from lowprec.proposal.package import propose as build
    from lowprec.report.text import print_json

    folder = build(study, fmt, out, baseline, level, _say)  # type: ignore[arg-type]
    if as_json:
        print_json({"folder": str(folder), "document": str(folder / "proposal.pdf")})
    else:
        print(f"{folder / 'proposal.pdf'}, and how to check it in {folder / 'README.md'}")


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr)
