"""Recipe: which operand of which module uses which quantizer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, model_validator

from lowprec.spec.base import Spec
from lowprec.spec.quantizer import Quantizer


class Rule(Spec):
    """Quantizers for the modules whose dotted path matches `match` (``*``, ``?``, ``[...]``).

    An operand left out stays in the model's own dtype. keep=True keeps both, on purpose: the
    coverage then says "kept by rule" and not "no rule".
    """

    match: Annotated[str, Field(min_length=1, max_length=200)]
    weight: Quantizer | None = None
    activation: Quantizer | None = None
    keep: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        if self.keep == (self.weight is not None or self.activation is not None):
            raise ValueError(
                f"rule {self.match!r} needs weight or activation, or else keep = true, not both"
            )
        return self

    def matches(self, path: str) -> bool:
        return fnmatchcase(path, self.match)


class Recipe(Spec):
    """Ordered rules; the first that matches a module's path wins."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=80)]
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=1000)]

    def rule_for(self, path: str) -> Rule | None:
        """The first rule that matches the module at `path`, or None: the module is kept."""
        return next((rule for rule in self.rules if rule.matches(path)), None)

    def unused(self, paths: list[str]) -> list[Rule]:
        """Rules that match none of `paths` (whether or not an earlier rule would win)."""
        return [rule for rule in self.rules if not any(map(rule.matches, paths))]

    def spell(self) -> str:
        """The text form in full: ``lm_head: keep; *: weight=mxfp4/floor/nearest-even/SatFinite``.

        `load_recipe` reads it back to equal rules where the formats are built in.
        """
        return "; ".join(f"{rule.match}: {_spell_operands(rule)}" for rule in self.rules)


def _spell_operands(rule: Rule) -> str:
    if rule.keep:
        return "keep"
    operands = {"weight": rule.weight, "activation": rule.activation}
    return " ".join(f"{name}={q.spell()}" for name, q in operands.items() if q is not None)
