"""Training recipes: a recipe for the model, and what it says of optimizer and loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lowprec.errors import LowprecError, unknown
from lowprec.spec import Quantizer, Recipe, load_quantizer, load_recipe
from lowprec.spec.base import Spec
from lowprec.spec.load import build, data_dir, read_toml

Positive = Annotated[float, Field(gt=0)]


class OptimizerFormats(Spec):
    """The formats of optimizer states and weights between steps; see
    `lowprec.nn.quantize_optimizer`. What is left out stays float32."""

    states: dict[str, Quantizer] = {}  # noqa: RUF012 - pydantic copies defaults
    weight: Quantizer | None = None
    master: Quantizer | None = None


class LossScaling(Spec):
    """The loss is multiplied by a scale before the backward pass, its gradients divided by it
    before the step: torch.amp.GradScaler.

    A step whose gradients have Inf or NaN is skipped and multiplies the scale by `backoff_factor`;
    after `growth_interval` steps without one it is multiplied by `growth_factor`. Static: factors
    of 1, and steps are still skipped.
    """

    init_scale: Positive = 65536.0
    growth_factor: Annotated[float, Field(ge=1)] = 2.0
    backoff_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    growth_interval: Annotated[int, Field(ge=1)] = 2000


class TrainingRecipe(Spec):
    """One file under evals/recipes/train."""

    model: Recipe
    optimizer: OptimizerFormats | None = None
    loss_scaling: LossScaling | None = None

    @property
    def name(self) -> str:
        return self.model.name

    def spell(self) -> str:
        """In full, on one line."""
        words = [self.model.spell()]
        if self.optimizer:
            formats = {f"optimizer.{n}": q for n, q in self.optimizer.states.items()}
            formats |= {n: q for n in ("weight", "master") if (q := getattr(self.optimizer, n))}
            words += [f"{name}={quantizer.spell()}" for name, quantizer in formats.items()]
        if self.loss_scaling:
            words += [f"loss_scaling.{name}={value!r}" for name, value in self.loss_scaling]
        return " | ".join(words)


def list_training_recipes() -> list[str]:
    """Names of the shipped training recipes."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_training_recipe(source: str | Path) -> TrainingRecipe:
    """A training recipe by its name, or from a .toml file: the keys of a recipe, and the tables
    ``[optimizer]`` and ``[loss_scaling]``."""
    text = str(source)
    if not text.endswith(".toml"):
        if text not in list_training_recipes():
            raise unknown("training recipe", text, list_training_recipes())
        text = str(_folder() / f"{text}.toml")
    data = read_toml(text)
    optimizer, scaling = data.pop("optimizer", None), data.pop("loss_scaling", None)
    return TrainingRecipe(
        model=load_recipe(data, text),
        optimizer=None if optimizer is None else _formats(optimizer, f"{text}: optimizer"),
        loss_scaling=None
        if scaling is None
        else build(LossScaling, scaling, f"{text}: loss_scaling"),
    )


def _formats(table: dict[str, Any], where: str) -> OptimizerFormats:
    def loaded(value: Any, place: str) -> Any:
        if isinstance(value, str):
            return load_quantizer(value, place)
        if isinstance(value, dict):
            return {key: loaded(each, f"{place}.{key}") for key, each in value.items()}
        raise LowprecError(f"{place}: expected a quantizer, such as 'bfloat16/cast'")

    return build(
        OptimizerFormats, {key: loaded(v, f"{where}.{key}") for key, v in table.items()}, where
    )


def _folder() -> Path:
    return data_dir("evals") / "recipes" / "train"
