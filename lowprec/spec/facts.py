"""Facts: what a format's source says of it, beside the parameters, to be tested against them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lowprec.spec.base import Spec

CodePoint = Annotated[str, Field(pattern=r"^0x[0-9A-Fa-f]{1,16}$")]


class Facts(Spec):
    """Figures as the source prints them. `codes` maps code points to values (NaN, Inf allowed)."""

    source: Annotated[str, Field(min_length=10)]
    note: str | None = None
    max: float | None = None
    min: float | None = None
    min_normal: float | None = None
    min_positive: float | None = None
    emax: int | None = None
    bits_per_element: float | None = None
    elements_per_scale: Annotated[int, Field(ge=1)] | None = None
    codes: dict[CodePoint, float] = Field(default_factory=dict)
