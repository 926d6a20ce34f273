"""The file of a search: which layers, which quantizers, under which budget."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.errors import LowprecError
from lowprec.spec.base import Spec
from lowprec.spec.load import build, read_toml
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.text import load_quantizer
from lowprec.studies.study import Accuracy, Name, Size

Limit = Annotated[float, Field(gt=0)]


class Budget(Spec):
    """What an assignment may use; one assignment is sought for each of `limits`.

    bits: the mean bits per element, scales included, of all searched weights, and the same again
    of all searched activations. bytes: of the searched weights. seconds: of one forward pass of
    the whole model on `machine`, as `lowprec.estimate` has it, with what is not searched in
    bfloat16; `batch` sequences of `tokens` new tokens behind `context` cached ones.
    """

    kind: Literal["bits", "bytes", "seconds"] = "bits"
    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]
    machine: Name | None = None
    batch: Size = 1
    tokens: Size = 1
    context: Annotated[int, Field(ge=0, le=1 << 24)] = 0

    @model_validator(mode="after")
    def _possible(self) -> Budget:
        if (self.kind == "seconds") != (self.machine is not None):
            raise ValueError("machine goes with kind = 'seconds', and that with a machine")
        return self


class FormatSpace(Spec):
    """Block formats to try: signed floats of `exponent` and `significand` bits (0 exponent bits:
    integers), all finite, of that `bias` (the usual 2^(e-1) - 1 if left out), in blocks of that
    many, with these scales. scales: ``scale format/rule``, or ``scale format+outer/rule`` with an
    outer scale per tensor. bits: the most bits per element. keep: how many of the best, by the
    Fisher proxy, are measured."""

    exponent: Annotated[tuple[Annotated[int, Field(ge=0, le=8)], ...], Field(min_length=1)]
    significand: Annotated[tuple[Annotated[int, Field(ge=0, le=10)], ...], Field(min_length=1)]
    bias: tuple[int, ...] = ()
    block: Annotated[tuple[Size, ...], Field(min_length=1)]
    scales: Annotated[tuple[Name, ...], Field(min_length=1)]
    bits: Limit
    keep: Annotated[int, Field(ge=1)] = 3


class Search(Spec):
    """A search on the linear layers of one model whose paths match `modules` but none of `keep`.

    choices: the quantizers that an operand may have, spelled as in recipes. uniform: further ones
    that are compared, everywhere the same. accuracy: the scored windows are held out; the search
    sees the `calibration` windows behind them. random: how many random assignments of the same
    budget are compared. sensitivity: the quantizer that is measured layer by layer.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)]
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    accuracy: Accuracy
    modules: Name = "*"
    keep: tuple[Name, ...] = ("lm_head",)
    operands: Annotated[
        tuple[Literal["weight", "activation"], ...], Field(min_length=1, max_length=2)
    ] = ("weight", "activation")
    choices: tuple[Quantizer, ...] = ()
    uniform: tuple[Quantizer, ...] = ()
    budget: Budget | None = None
    formats: FormatSpace | None = None
    random: Annotated[int, Field(ge=0, le=100)] = 2
    sensitivity: Quantizer | None = None

    @model_validator(mode="after")
    def _possible(self) -> Search:
        if self.accuracy.perplexity_only:
            raise ValueError("accuracy.perplexity_only: a search compares KL divergences")
        return self

    def combinations(self, quantizers: tuple[Quantizer, ...]) -> list[dict[str, int]]:
        """By operand the number of its quantizer: all that one layer may be given."""
        numbers = range(len(quantizers))
        return [
            dict(zip(self.operands, some, strict=True))
            for some in product(numbers, repeat=len(self.operands))
        ]


def load_search(path: str | Path) -> Search:
    """The search in a TOML file; LowprecError names file and key. Formats of one's own, as in
    ``mine.toml/amax``, are looked for beside it."""
    data = read_toml(Path(path))
    where, folder = str(path), Path(path).parent
    tables: dict[str, type[Spec]] = {
        "accuracy": Accuracy, "budget": Budget, "formats": FormatSpace
    }  # fmt: skip
    for key, cls in tables.items():
        if isinstance(data.get(key), dict):
            data[key] = build(cls, data[key], f"{where}: {key}")
    for key in ("choices", "uniform"):
        if isinstance(data.get(key), list):
            data[key] = [
                _quantizer(v, f"{where}: {key}.{i}", folder) for i, v in enumerate(data[key])
            ]
    if "sensitivity" in data:
        data["sensitivity"] = _quantizer(data["sensitivity"], f"{where}: sensitivity", folder)
    return build(Search, data, where)


def _quantizer(value: Any, where: str, folder: Path) -> Quantizer:
    if not isinstance(value, str):
        raise LowprecError(f"{where}: expected a text such as 'nvfp4/amax'")
    if ".toml/" in value and (folder / value.partition(".toml/")[0]).with_suffix(".toml").is_file():
        value = str(folder / value)
    return load_quantizer(value, where)
