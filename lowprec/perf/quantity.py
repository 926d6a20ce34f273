"""A number of a machine with where it comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lowprec.spec import Spec

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=10)]
WHAT_IF = "what-if: set by hand"


class Claim(Spec):
    """What another source says of the same quantity."""

    value: Positive
    source: Text


class Quantity(Spec):
    """A value in SI base units, and why to believe it.

    kind: "datasheet" (the vendor prints it), "measured" (a device reports or shows it), "derived"
    (computed from other values; the note says how) or "assumed" (a stated guess). Where sources
    disagree, `disputed` keeps what the others say.
    """

    value: Positive
    kind: Literal["datasheet", "measured", "derived", "assumed"]
    source: Text
    note: str | None = None
    disputed: tuple[Claim, ...] = ()

    @classmethod
    def what_if(cls, value: float) -> Quantity:
        """A value that somebody sets, to see what it would change; not validated (a sweep makes
        many), so the caller sees to it that it is positive."""
        return cls.model_construct(value=float(value), kind="assumed", source=WHAT_IF)
