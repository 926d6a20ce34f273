"""The roofline of one operation: seconds by resource, and the datapath that runs it.

Time of a kernel = max(compute, memory) + launch. A matmul adds
  quantize    a kernel of its own that reads the activation in the workload's type and writes it
              quantized (weights are quantized beforehand): its bytes over the memory bandwidth,
              and its launch. A format with a scale per tensor has to see the whole tensor before
              it writes the first element, so it reads it twice, in two kernels.
  dequantize  only where no datapath multiplies the operands as stored: every element is
              converted once, inside the matmul, on the vector units, in one operation, and one
              more to multiply by a scale that changes along K. The vector units do half their
              FP32 FLOP/s of these operations (an FMA is two FLOP). Assumed: no overlap with the
              matmul, and enough reuse on chip that nothing is converted twice.
Bytes count every operand once, scales included, each tensor rounded up to whole bytes.
Vector operations and gathers cost their bytes and no launch: they are assumed to be fused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from lowprec.perf.datapath import Choice, Operand, choose, is_block_scaled, same_encoding
from lowprec.perf.hardware import Machine
from lowprec.perf.validation.point import Calibration
from lowprec.spec import Attention, BlockFormat, Embedding, Format, Matmul, Rule, Spec, Vector

Resource = Literal["compute", "memory", "launch", "quantize", "dequantize", "network"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)


class Seconds(Spec):
    """Seconds that each resource is needed for; compute and memory overlap, the rest adds up."""

    compute: float = 0.0
    memory: float = 0.0
    launch: float = 0.0
    quantize: float = 0.0
    dequantize: float = 0.0
    network: float = 0.0

    def parts(self) -> dict[Resource, float]:
        """Summands of `total`: of compute and memory the longer one (a tie is memory), else 0."""
        hidden = "memory" if self.compute > self.memory else "compute"
        return {name: 0.0 if name == hidden else getattr(self, name) for name in RESOURCES}

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    @property
    def binding(self) -> Resource:
        """The largest summand."""
        parts = self.parts()
        return max(RESOURCES, key=parts.__getitem__)


@dataclass(frozen=True)
class Cost:
    """One operation: its work, the seconds, and the datapath unless it has no matmul.

    low, high: seconds that the measured time lies between in 90 % of cases, by what `calibration`
    says of the constants. A bound has no upper end.
    """

    choice: Choice | None
    flops: float
    bytes: float
    seconds: Seconds
    low: float
    high: float
    calibration: Calibration


def bound(choice: Choice | None, flops: float, moved: float, seconds: Seconds) -> Cost:
    """The cost that nothing is faster than."""
    return Cost(choice, flops, moved, seconds, seconds.total, math.inf, "spec only")


@dataclass(frozen=True)
class Chips:
    """`count` chips that share every operation evenly and exchange nothing: `count` times the
    rates and the bandwidth. Each launches every kernel."""

    machine: Machine
    count: int

    def streaming(self, nbytes: float) -> float:
        return nbytes / (self.machine.memory.bandwidth.value * self.count)

    def computing(self, choice: Choice, flops: float) -> float:
        return flops / (choice.datapath.rate.value * self.count)

    def converting(self, operations: float) -> float:
        return operations / (self.machine.vector.rate.value / 2 * self.count)

    @property
    def launch(self) -> float:
        return self.machine.launch.value


def cost(
    op: Matmul | Attention | Vector | Embedding, rule: Rule | None, chips: Chips, dtype: Format
) -> Cost:
    """The cost of `op` under the recipe's `rule` (None: everything in `dtype`)."""
    match op:
        case Matmul():
            return _matmul(op, rule, chips, dtype)
        case Attention():
            return _attention(op, rule, chips, dtype)
        case Vector():
            moved = nbytes(dtype, (op.read,)) + nbytes(dtype, (op.written,))
        case Embedding():
            moved = 2 * nbytes(dtype, (op.rows, op.width))
    return bound(None, 0, moved, Seconds(memory=chips.streaming(moved)))


def operands(op: Matmul, rule: Rule | None, dtype: Format) -> tuple[Operand, Operand]:
    """Formats of x_MK and w_NK. A product of two activations is no module's, so no rule's."""
    if rule is None or not op.weight:
        return dtype, dtype
    activation = rule.activation.format if rule.activation else dtype
    return activation, rule.weight.format if rule.weight else dtype


def nbytes(fmt: Operand, shape: tuple[int, ...]) -> int:
    """Bytes of one tensor blocked along its last axis, scales included, rounded up."""
    if isinstance(fmt, BlockFormat):
        return -(-fmt.storage_bits_of(shape) // 8)
    return -(-math.prod(shape) * fmt.storage_bits // 8)


def _matmul(op: Matmul, rule: Rule | None, chips: Chips, dtype: Format) -> Cost:
    x, w = operands(op, rule, dtype)
    choice = choose(chips.machine.datapaths, x, w, dtype, chips.machine.name)
    copies = op.distinct_weights if op.weight else op.batch
    x_bytes = op.batch * nbytes(x, (op.m, op.k))
    moved = x_bytes + copies * nbytes(w, (op.n, op.k)) + op.batch * nbytes(dtype, (op.m, op.n))
    converted = 0.0
    if not choice.native:
        converted = op.batch * op.m * op.k * conversions(x, dtype)
        converted += copies * op.n * op.k * conversions(w, dtype)
    seconds = Seconds(
        compute=chips.computing(choice, op.flops),
        memory=chips.streaming(moved),
        launch=chips.launch,
        quantize=_quantize(op, x, x_bytes, chips, dtype),
        dequantize=chips.converting(converted),
    )
    return bound(choice, op.flops, moved, seconds)


def conversions(fmt: Operand, dtype: Format) -> int:
    """Vector operations that turn one element into `dtype`."""
    return 0 if same_encoding(fmt, dtype) else 1 + is_block_scaled(fmt)


def _quantize(op: Matmul, x: Operand, x_bytes: int, chips: Chips, dtype: Format) -> float:
    if same_encoding(x, dtype):
        return 0.0
    whole = isinstance(x, BlockFormat) and (
        x.block == "tensor" or (x.outer is not None and x.outer.block == "tensor")
    )
    kernels = 2 if whole else 1
    read = kernels * op.batch * nbytes(dtype, (op.m, op.k))
    return chips.streaming(read + x_bytes) + kernels * chips.launch


def cache_formats(rule: Rule | None, dtype: Format) -> tuple[Operand, Operand]:
    """Formats that keys and values are stored in."""
    key = rule.key_cache.format if rule and rule.key_cache else dtype
    value = rule.value_cache.format if rule and rule.value_cache else dtype
    return key, value


def attention_operands(
    rule: Rule | None, dtype: Format
) -> tuple[tuple[Operand, Operand], tuple[Operand, Operand]]:
    """Formats of the two products, query by key and probability by value. A key or value that the
    rule does not quantize is multiplied as its cache stores it."""
    key, value = cache_formats(rule, dtype)
    if rule is None:
        return (dtype, key), (dtype, value)
    query = rule.query.format if rule.query else dtype
    probability = rule.probability.format if rule.probability else dtype
    return (
        (query, rule.key.format if rule.key else key),
        (probability, rule.value.format if rule.value else value),
    )


def cache_bytes(op: Attention, rule: Rule | None, dtype: Format) -> int:
    """Bytes of the keys and values that `op` reads."""
    key, value = cache_formats(rule, dtype)
    rows = op.batch * op.kv_heads * op.keys
    values = 0 if op.value_in_key else nbytes(value, (rows, op.value_dim))
    return nbytes(key, (rows, op.head_dim)) + values


def stored_bytes(op: Attention, rule: Rule | None, dtype: Format) -> int:
    """Bytes that the cache keeps of those positions: of latent attention the latent, in the format
    of the keys."""
    if op.cached is None:
        return cache_bytes(op, rule, dtype)
    return nbytes(cache_formats(rule, dtype)[0], (op.batch * op.keys, op.cached))


def _attention(op: Attention, rule: Rule | None, chips: Chips, dtype: Format) -> Cost:
    """The two products have equal FLOP where head_dim is value_dim; each runs on the datapath of
    its operands, and the reported one is the slower. What has to be converted is every stored key
    or value, once."""
    machine = chips.machine
    pairs = op.flops / (op.head_dim + op.value_dim)
    stored = op.batch * op.kv_heads * op.keys
    choices, compute, converted = [], 0.0, 0.0
    for (a, b), width in zip(
        attention_operands(rule, dtype), (op.head_dim, op.value_dim), strict=True
    ):
        choice = choose(machine.datapaths, a, b, dtype, machine.name)
        choices.append(choice)
        compute += chips.computing(choice, pairs * width)
        if not choice.native:
            converted += stored * width * conversions(b, dtype)
    moved = cache_bytes(op, rule, dtype) + nbytes(dtype, (op.q_elements,))
    seconds = Seconds(
        compute=compute,
        memory=chips.streaming(moved),
        launch=chips.launch,
        dequantize=chips.converting(converted),
    )
    slower = min(choices, key=lambda choice: (choice.native, choice.datapath.rate.value))
    return bound(slower, op.flops, moved, seconds)
