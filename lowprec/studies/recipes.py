"""What a record says of a recipe, and whether it fits a model."""

from __future__ import annotations

from lowprec.spec.recipe import Recipe


def format_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of all formats that a recipe names, by name."""
    quantizers = [q for rule in recipe.rules for q in (rule.weight, rule.activation) if q]
    return {q.format.name: q.format.digest for q in quantizers}
