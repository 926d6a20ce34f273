"""Facts: what a format's source says of it, beside the parameters, to be tested against them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lowprec.spec.base import Spec

CodePoint = Annotated[str, Field(pattern=r"^0x[0-9A-Fa-f]{1,16}$")]


class ScalarFacts(Spec):
    """Figures as the source prints them. `codes` maps code points to values (NaN, Inf allowed)."""

    max: float | None = None
    min: float | None = None
    min_normal: float | None = None
    min_positive: float | None = None
    emax: int | None = None
    codes: dict[CodePoint, float] = Field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many figures there are."""
        stated = self.model_dump(exclude={"source", "note", "codes", "parts"})
        return sum(value is not None for value in stated.values()) + len(self.codes)


class Facts(ScalarFacts):
    """Of a block format the figures are the element's; `parts` has those of the other scalar
    formats, under the keys of `BlockFormat.parts`: ``[facts.parts."outlier.element"]``."""

    source: Annotated[str, Field(min_length=10)]
    note: str | None = None
    bits_per_element: float | None = None
    elements_per_scale: Annotated[int, Field(ge=1)] | None = None
    parts: dict[str, ScalarFacts] = Field(default_factory=dict)

    @property
    def count(self) -> int:
        return super().count + sum(part.count for part in self.parts.values())
