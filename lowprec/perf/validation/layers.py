"""Rows that time the projections of one layer without giving M, N and K.

vidur's profiles name the projection of a model and its tensor-parallel degree; Transformer
Engine's give the widths of a layer whose linear layers are timed together, forward, or forward and
both gradients.
"""

from __future__ import annotations

import re

from lowprec.errors import LowprecError
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.matmul import priced
from lowprec.perf.kernel.plan import plan_of
from lowprec.perf.validation.formats import Operands, operands_of, quantized_before
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import in_unit, need, sizes
from lowprec.spec import Matmul

# Hidden and inner width, query and key heads, head width (the models' config.json).
MODELS = {
    "llama-2-70b": (8192, 28672, 64, 8, 128),
    "llama-2-7b": (4096, 11008, 32, 32, 128),
    "llama-3-8b": (4096, 14336, 32, 8, 128),
    "llama-3.1-8b": (4096, 14336, 32, 8, 128),
    "llama-3-70b": (8192, 28672, 64, 8, 128),
    "llama-3.1-70b": (8192, 28672, 64, 8, 128),
    "codellama-34b": (8192, 22016, 64, 8, 128),
    "internlm-20b": (5120, 13824, 40, 40, 128),
}
_PROJECTION = re.compile(
    r"^(?P<model>\S+?)(?:-hf)? (?P<name>attn_pre_proj|attn_post_proj|mlp_up_proj|mlp_down_proj)$"
)
_TOKENS = {"tokens": ("tokens", "m")}
_WIDTHS = {"hidden": ("hidden",), "inter": ("inter",), "M": ("m",)}
_LAYER = re.compile(r"transformer layer gemms", re.IGNORECASE)


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it names no projection or layer."""
    if match := _PROJECTION.match(point.what):
        size = need(sizes(point.shape), _TOKENS, point.shape)
        tensor = need({"tp": 1} | sizes(point.shape), {"tp": ("tp",)}, point.shape)["tp"]
        widths = _projection(match["model"], match["name"], tensor)
        return _sum(point, [(size["tokens"], *widths)])
    if _LAYER.search(point.what):
        return _sum(point, _layer(point))
    return None


def _projection(model: str, name: str, tensor: int) -> tuple[int, int]:
    """N and K on one of `tensor` devices."""
    known = MODELS.get(model.lower())
    if known is None:
        raise LowprecError(f"what: model {model!r} is not known; expected {', '.join(MODELS)}")
    hidden, inner, heads, kv_heads, width = known
    if heads % tensor:
        raise LowprecError(f"shape: tp={tensor} does not divide the {heads} heads of {model}")
    attention = heads * width // tensor
    return {
        "attn_pre_proj": (attention + 2 * max(kv_heads // tensor, 1) * width, hidden),
        "attn_post_proj": (hidden, attention),
        "mlp_up_proj": (2 * inner // tensor, hidden),
        "mlp_down_proj": (hidden, inner // tensor),
    }[name]


def _layer(point: Point) -> list[tuple[int, int, int]]:
    """M, N and K of the four linear layers, and of both gradients of each where they are timed."""
    found = sizes(re.sub(r"\b(hidden|inter) ", r"\1=", point.shape))
    size = need(found, _WIDTHS, point.shape)
    m, hidden, inner = size["M"], size["hidden"], size["inter"]
    forward = [
        (m, 3 * hidden, hidden),
        (m, hidden, hidden),
        (m, inner, hidden),
        (m, hidden, inner),
    ]
    if re.search(r"fprop|forward", point.what):
        return forward
    if "total" not in point.what:
        raise LowprecError(f"what: {point.what!r} says neither fprop nor total")
    return [step for m, n, k in forward for step in ((m, n, k), (m, k, n), (n, k, m))]


def _sum(point: Point, shapes: list[tuple[int, int, int]]) -> Prediction:
    machine = load_machine(point.hw)
    formats: Operands = operands_of(point.format, machine)
    before = quantized_before(point.conditions, point.note, f"{point.format} {point.what}")
    plan = plan_of(formats.x, formats.w, machine, formats.dtype)
    costs = [
        priced(
            Matmul(kind="matmul", path=point.what, m=m, n=n, k=k),
            plan,
            quantized=before is not False,
        )
        for m, n, k in shapes
    ]
    flops, moved = sum(c.flops for c in costs), sum(c.bytes for c in costs)
    times = [sum(c.seconds.total for c in costs), sum(c.low for c in costs)]
    times.append(sum(c.high for c in costs))
    value, *ends = (in_unit(point.unit, t, flops, moved) for t in times)
    return Prediction(value, min(ends), max(ends), point.unit, plan.level)
