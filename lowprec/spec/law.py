"""A size as a law: a polynomial in the batch, the new tokens and the context of a pass.

Written as ``4096*batch*tokens + 64``; ``min(context, 127)`` is what a sliding window of 128 leaves
of the context. A plain integer is a law as well.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import NamedTuple

from lowprec.errors import LowprecError, did_you_mean

Law = int | str
_FACTOR = re.compile(r"(?P<number>-?\d+)|(?P<name>[a-z]+)|min\((?P<capped>[a-z]+), (?P<cap>\d+)\)")


class Sizes(NamedTuple):
    """What a law is of: a pass of `batch` sequences with `tokens` new tokens each behind
    `context` cached ones, which computes the logits of `logits` positions per sequence."""

    batch: int
    tokens: int
    context: int
    logits: int


class Factor(NamedTuple):
    """One of the `Sizes`, by its place among them, or a cap on it."""

    size: int
    cap: int | None = None

    def at(self, sizes: Sizes) -> int:
        value = sizes[self.size]
        return value if self.cap is None else min(value, self.cap)

    def __str__(self) -> str:
        name = Sizes._fields[self.size]
        return name if self.cap is None else f"min({name}, {self.cap})"


Monomial = tuple[Factor, ...]


def evaluate(law: Law, sizes: Sizes) -> int:
    """The size at `sizes`. LowprecError: `law` is none."""
    if isinstance(law, int):
        return law
    terms = _parse(law)
    return sum(count * prod(f.at(sizes) for f in factors) for count, factors in terms)


def spell(terms: list[tuple[int, Monomial]]) -> Law:
    """The law that is the sum of `terms`: a plain integer where nothing varies."""
    terms = [(count, factors) for count, factors in terms if count]
    if all(not factors for _, factors in terms):
        return sum(count for count, _ in terms)
    return " + ".join(_term(count, factors) for count, factors in terms)


def _term(count: int, factors: Monomial) -> str:
    names = [str(factor) for factor in factors]
    return "*".join([str(count), *names] if count != 1 or not names else names)


@lru_cache(maxsize=1 << 16)
def _parse(law: str) -> tuple[tuple[int, Monomial], ...]:
    return tuple(_parsed(term, law) for term in law.split(" + "))


def _parsed(term: str, law: str) -> tuple[int, Monomial]:
    count, factors = 1, []
    for text in term.split("*"):
        found = _FACTOR.fullmatch(text)
        if found is None:
            raise LowprecError(f"{law!r} is no law: {text!r}: expected such as 64*batch*tokens + 1")
        if found["number"]:
            count *= int(found["number"])
            continue
        name = found["name"] or found["capped"]
        if name not in Sizes._fields:
            raise LowprecError(f"{law!r} is no law: {name}{did_you_mean(name, Sizes._fields)}")
        cap = int(found["cap"]) if found["cap"] else None
        factors.append(Factor(Sizes._fields.index(name), cap))
    return count, tuple(factors)
