"""Recipe: which operand of which operation of which module uses which quantizer and datapath."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lowprec.spec.approximation import Approximation, Estimate
from lowprec.spec.base import Count, Spec
from lowprec.spec.datapath import Datapath
from lowprec.spec.quantizer import Quantizer
from lowprec.spec.training import Delayed, InputGradient, WeightGradient
from lowprec.spec.transform import Transform

Operation = Literal[
    "linear", "conv", "attention", "matmul", "embedding", "norm", "softmax", "elementwise", "add"
]
Phase = Literal["prefill", "decode"]

# What a rule may say of each operation. linear: every matmul with a weight, of a Linear, a Conv1D,
# a router, an expert. matmul: a product of two activations outside of attention.
OPERANDS: dict[str, tuple[str, ...]] = {
    "linear": ("weight", "activation", "output"),
    "conv": ("weight", "activation", "output"),
    "attention": ("query", "key", "probability", "value", "output", "key_cache", "value_cache"),
    "matmul": ("left", "right", "output"),
    "embedding": ("weight", "output"),
    "norm": ("input", "output"),
    "softmax": ("input", "output"),
    "elementwise": ("input", "output"),
    "add": ("input", "output"),
}
APPROXIMATED = ("attention", "norm", "softmax", "elementwise")
QUANTIZED = tuple(dict.fromkeys(name for names in OPERANDS.values() for name in names))
# A rule that names no operation speaks of these, where it names an operand that they alone have.
_IMPLIED: dict[str, tuple[str, ...]] = {
    "linear": ("weight", "activation"),
    "conv": ("weight", "activation"),
    "attention": ("query", "key", "probability", "value", "key_cache", "value_cache"),
    "matmul": ("left", "right"),
}


class Rule(Spec):
    """What happens in the modules whose dotted path matches `match` (``*``, ``?``, ``[...]``).

    operation: the rule speaks of it alone; without one, of the matmuls that its operands belong to
    (weight and activation: linear and conv; query, key, probability, value and caches: attention;
    left and right: matmul), never of an embedding or a vector operation. layers: first and last
    number in the path, such as ``model.layers.7.mlp``. phase: prefill or decode alone.
    A transform is linear's; a rule that has one and names no operation does not speak of conv.
    An operand left out stays in the model's own dtype. keep=True keeps all, on purpose: the
    coverage then says "kept by rule" and not "no rule".
    datapath: the arithmetic of the forward matmuls. kv_block: attention sums over that many keys
    at a time, as FlashAttention does. approximation: how the vector unit estimates 2^x, 1/x and
    1/sqrt(x) in a norm, softmax, elementwise operation or attention. seed: of stochastic rounding.
    """

    match: Annotated[str, Field(min_length=1, max_length=200)]
    operation: Operation | None = None
    layers: tuple[int, int] | None = None
    phase: Phase | None = None
    weight: Quantizer | None = None
    activation: Quantizer | None = None
    output: Quantizer | None = None
    query: Quantizer | None = None
    key: Quantizer | None = None
    probability: Quantizer | None = None
    value: Quantizer | None = None
    key_cache: Quantizer | None = None
    value_cache: Quantizer | None = None
    left: Quantizer | None = None
    right: Quantizer | None = None
    input: Quantizer | None = None
    keep: bool = False
    datapath: Datapath | None = None
    transform: Transform | None = None
    delayed: Delayed | None = None
    input_gradient: InputGradient | None = None
    weight_gradient: WeightGradient | None = None
    kv_block: Count | None = None
    approximation: Approximation | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0

    @model_validator(mode="after")
    def _says_something(self) -> Rule:
        named = [name for name, _ in self.quantizers()]
        tables = (self.input_gradient, self.weight_gradient, self.approximation)
        if self.keep == bool(named or self.datapath or any(tables)):
            raise ValueError(
                f"rule {self.match!r} needs weight, activation or another operand, or else "
                "keep = true, not both"
            )
        if self.operation:
            wrong = [name for name in named if name not in OPERANDS[self.operation]]
            if wrong:
                raise ValueError(
                    f"rule {self.match!r}: {self.operation} has no operand {wrong[0]!r}; expected "
                    + ", ".join(OPERANDS[self.operation])
                )
        elif not any(self.speaks_of(operation) for operation in OPERANDS):
            raise ValueError(
                f"rule {self.match!r}: {', '.join(named) or 'datapath'} of which operation? name it"
            )
        if self.transform is not None:
            self._check_transform(self.transform)
        if self.delayed is not None:
            self._check_delayed()
        if self.approximation is not None and self.operation not in APPROXIMATED:
            raise ValueError(
                f"rule {self.match!r}: approximation: expected operation " + ", ".join(APPROXIMATED)
            )
        return self

    def _check_delayed(self) -> None:
        found = [quantizer for _, quantizer in self.quantizers()]
        for table in filter(None, (self.input_gradient, self.weight_gradient)):
            found += [value for _, value in table if isinstance(value, Quantizer)]
        static = [quantizer for quantizer in found if quantizer.rule == "static"]
        if not static:
            raise ValueError(f"rule {self.match!r}: delayed needs an operand whose scale is static")
        for quantizer in static:
            if not quantizer.is_per_tensor:
                raise ValueError(
                    f"rule {self.match!r}: delayed scales are of a whole tensor, and "
                    f"{quantizer.format.name!r} has others"
                )

    def _check_transform(self, transform: Transform) -> None:
        if self.keep or not self.speaks_of("linear"):
            raise ValueError(f"rule {self.match!r}: transform is for linear, not kept")
        if self.delayed or self.input_gradient or self.weight_gradient:
            raise ValueError(
                f"rule {self.match!r}: transform is for inference: not with delayed, "
                "input_gradient or weight_gradient"
            )
        if transform.gptq and (self.weight is None or self.weight.projection.bits is not None):
            raise ValueError(f"rule {self.match!r}: gptq needs weight, its rounding not stochastic")

    def matches(self, path: str) -> bool:
        return fnmatchcase(path, self.match) and self._in_layers(path)

    def speaks_of(self, operation: str, phase: str | None = None) -> bool:
        """Whether the rule, where its path matches, decides about `operation` in `phase`."""
        if self.phase is not None and phase is not None and phase != self.phase:
            return False
        if self.operation is not None:
            return operation == self.operation
        if self.keep:
            return True
        if operation == "conv" and self.transform is not None:
            return False
        names = _IMPLIED.get(operation, ())
        backward = self.input_gradient is not None or self.weight_gradient is not None
        return any(getattr(self, name) is not None for name in names) or (
            operation == "linear" and backward
        )

    def quantizers(self) -> Iterator[tuple[str, Quantizer]]:
        """Every operand of the forward pass that is quantized, with its quantizer."""
        for name in QUANTIZED:
            if (quantizer := getattr(self, name)) is not None:
                yield name, quantizer

    def _in_layers(self, path: str) -> bool:
        if self.layers is None:
            return True
        number = next((int(part) for part in path.split(".") if part.isdecimal()), None)
        return number is not None and self.layers[0] <= number <= self.layers[1]


class Recipe(Spec):
    """Ordered rules; of those that match a module's path, the first that speaks of an operation
    decides about it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=80)]
    rules: Annotated[tuple[Rule, ...], Field(min_length=1, max_length=1000)]

    def rule_for(
        self,
        path: str,
        operation: str = "linear",
        phase: str | None = None,
        parameter: str = "weight",
    ) -> Rule | None:
        """The rule for an operation of the module at `path`, or None: it is kept.

        parameter: the name of the weight; one of another name than ``weight``, such as an expert's
        ``down_proj``, is also matched by its own path.
        """
        paths = (path,) if parameter == "weight" else (path, f"{path}.{parameter}".lstrip("."))
        for rule in self.rules:
            if any(map(rule.matches, paths)) and rule.speaks_of(operation, phase):
                return rule
        return None

    def unused(self, paths: list[str]) -> list[Rule]:
        """Rules that match none of `paths` (whether or not an earlier rule would win)."""
        return [rule for rule in self.rules if not any(map(rule.matches, paths))]

    @property
    def needs_calibration(self) -> bool:
        """Whether a rule has static scales that no history gives, or a calibrated transform."""
        return any(
            (rule.delayed is None and any(q.rule == "static" for _, q in rule.quantizers()))
            or (rule.transform is not None and rule.transform.calibrated)
            for rule in self.rules
        )

    def spell(self) -> str:
        """The text form in full: ``lm_head: keep; *: weight=mxfp4/floor/nearest-even/SatFinite``.

        `load_recipe` reads it back to equal rules where formats and datapaths are built in.
        """
        return "; ".join(f"{r.match}: {' '.join(_spell(r, {'match'}))}" for r in self.rules)


def _spell(spec: Spec, without: set[str]) -> Iterator[str]:
    """``key=value`` of every field that is not its default; ``outer.inner=value`` of a table's."""
    for name, field in type(spec).model_fields.items():
        value: Any = getattr(spec, name)
        if name in without or value == field.default:
            continue
        if value is True:
            yield name
        elif isinstance(value, Quantizer | Estimate):
            yield f"{name}={value.spell()}"
        elif isinstance(value, Datapath):
            yield f"{name}={value.name}"
        elif isinstance(value, Spec):
            yield from [f"{name}.{part}" for part in _spell(value, set())] or [name]
        elif isinstance(value, tuple):
            yield f"{name}={'-'.join(map(str, value))}"
        else:
            yield f"{name}={value}"
