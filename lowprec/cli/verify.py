"""`lowprec verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowprec.cli.app import Json

app = typer.Typer()


@app.command()
def verify(
    package: Annotated[Path, typer.Argument(help="A proposal, or a folder of vectors.")],
    results: Annotated[Path, typer.Argument(help="A folder of answers: NAME.csv, .hex, ...")],
    as_json: Json = False,
) -> None:
    """Compare someone's answers with a package's vectors and say what they do otherwise. A
    package's files are first checked against its manifest. Exit code 1 on a difference."""
    from lowprec.proposal.verify import check_manifest
    from lowprec.proposal.verify import verify as compare
    from lowprec.report.text import print_json

    files = check_manifest(package)
    if files is not None and not as_json:
        print("\n".join(files.sentences))
    verdicts = compare(package, results)
    if as_json:
        sets = [
            {
                "set": v.name,
                "rows": v.rows,
                "answered": v.answered,
                "wrong": len(v.wrong),
                "diagnoses": list(v.diagnoses),
            }
            for v in verdicts
        ]
        print_json({"files": files.to_json() if files else None, "sets": sets})
    else:
        print("\n".join(line for verdict in verdicts for line in verdict.sentences))
    if any(verdict.wrong for verdict in verdicts):
        raise typer.Exit(1)
