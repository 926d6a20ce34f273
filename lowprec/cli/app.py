"""The application: its errors and the options that commands share."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lowprec.errors import LowprecError, did_you_mean

# Looking through every installed package for plugins takes longer than most commands.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


class _Commands(TyperGroup):
    """Answers an unknown command with the nearest one, and a reader that went away with silence."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = did_you_mean(args[0], self.list_commands(ctx))
            raise LowprecError(f"unknown command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # As in `| head`: nothing more is written, at exit neither.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        return result


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Number formats: what they cost in accuracy and what they buy in throughput.",
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RecipeText = Annotated[
    str, typer.Option("--recipe", help="A .toml file, a shipped name, or the text of a recipe.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that compute cells [cores // threads].")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each of them.")]
Ray = Annotated[
    str | None, typer.Option(help="Compute cells on Ray: auto, or a cluster's address.")
]
Phase = Annotated[str | None, typer.Option(help="prefill or decode [decode].")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Prompt length of a prefill [2048].")]
Context = Annotated[int | None, typer.Option(min=0, help="Cached tokens of a decode [2048].")]
LevelName = Annotated[
    str, typer.Option(help="bound: the datasheet's roofline; kernel: what kernels make of it.")
]
