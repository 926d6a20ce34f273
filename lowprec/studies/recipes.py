"""What a record says of a recipe, and whether it fits a model."""

from __future__ import annotations

from lowprec.spec.recipe import Recipe


def format_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of all formats that a recipe names, by name."""
    quantizers = [q for rule in recipe.rules for q in (rule.weight, rule.activation) if q]
    return {q.format.name: q.format.digest for q in quantizers}


def is_random(recipe: Recipe) -> bool:
    """Whether its numbers depend on a seed: stochastic rounding, or a random rotation."""
    return any(
        (rule.transform is not None and rule.transform.rotation is not None)
        or any(q.projection.bits is not None for _, q in rule.quantizers())
        for rule in recipe.rules
    )


def reseeded(recipe: Recipe, by: int) -> Recipe:
    """The recipe with `by` added to the seeds of its roundings and rotations."""
    rules = []
    for rule in recipe.rules:
        changed: dict[str, object] = {"seed": rule.seed + by}
        if rule.transform is not None:
            seed = rule.transform.seed + by
            changed["transform"] = rule.transform.model_copy(update={"seed": seed})
        rules.append(rule.model_copy(update=changed))
    return recipe.model_copy(update={"rules": tuple(rules)})
