"""The command line: one function per command, everything heavy imported inside it."""

from __future__ import annotations

import logging
import signal
import sys

import typer

from lowprec.cli import (
    datapath,
    evaluation,
    formats,
    platforms,
    propose,
    results,
    serving,
    studies,
    throughput,
    validate,
    vectors,
    verify,
)
from lowprec.cli.app import app
from lowprec.errors import LowprecError

for _commands in (
    formats,
    studies,
    results,
    evaluation,
    throughput,
    validate,
    serving,
    datapath,
    vectors,
    verify,
    propose,
    platforms,
):
    app.add_typer(_commands.app)


def main() -> None:
    """The console script. Exit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."""
    # transformers imports torchao where there is one, which warns of parts that it lacks.
    for library in ("torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0
    except LowprecError as error:
        code = _fail(str(error))
    except typer.TyperException as error:
        code = _fail(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        code = 128 + signal.SIGINT
    sys.exit(code)


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"lowprec: error: {line}", file=sys.stderr)
    return 2
