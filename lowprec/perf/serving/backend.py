"""What a serving library adds to the time of the kernels."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lowprec.errors import unknown
from lowprec.spec import Spec, read_toml
from lowprec.spec.load import build

FILE = Path(__file__).parent / "backends.toml"
_INTERVALS = ("interval", "first_interval")
Seconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0)]


class Backend(Spec):
    """A serving library.

    scale: seconds of kernels within a step over those of the kernels alone. quantizers: share of
    the separate quantizers' time that is left where they are part of the kernels before them.
    step: seconds that scheduling, launching and sampling add to every pass; sequence: and to every
    sequence of it. first, prompts, burst: a first token takes `first` seconds
    of the library's server, `prompts` times the pass of its prompt, and that of `burst` times the
    other users' prompts: load generators start all users at once, and they stay together.
    chunk: tokens of one pass at most, prompts included; mixed: whether prompts are
    processed together with running sequences, or in passes of their own; page: tokens of the KV
    cache that a sequence takes at a time. interval, first_interval:
    ratios of measured over predicted time per output token, and to the first, that 90 % of the
    points lie between; source: the points that the constants were fitted to.
    Of servers whose prefill and decode are apart, as shares of an answer's time: held: what a
    request waits for a place on one of many decoding servers that are all full, as they do not fill
    evenly; waits: what first tokens take at most beyond first_interval (95 % of the points).
    """

    name: str
    step: Seconds
    sequence: Seconds
    scale: Annotated[float, Field(gt=0)]
    quantizers: Annotated[float, Field(ge=0, le=1)]
    first: Seconds
    prompts: Seconds
    burst: Seconds
    chunk: Annotated[int, Field(ge=1)]
    mixed: bool
    page: Annotated[int, Field(ge=1)]
    interval: tuple[float, float]
    first_interval: tuple[float, float]
    held: Share
    waits: Share
    source: Annotated[str, Field(min_length=10)]


def backend(name: str | Backend) -> Backend:
    """A backend by name. LowprecError names the nearest one."""
    if isinstance(name, Backend):
        return name
    known = _all()
    if name not in known:
        raise unknown("backend", name, known)
    return known[name]


@cache
def _all() -> dict[str, Backend]:
    data = read_toml(FILE)
    return {
        name: build(
            Backend,
            {"name": name} | fields | {key: tuple(fields[key]) for key in _INTERVALS},
            f"{FILE}: {name}",
        )
        for name, fields in data.items()
    }
