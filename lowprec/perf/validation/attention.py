"""Rows of attention: prefill and decode, by batch, length, heads and the formats of both."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lowprec.errors import LowprecError
from lowprec.perf.accelerator import Machine
from lowprec.perf.hardware import machine as load_machine
from lowprec.perf.kernel.attention import attention
from lowprec.perf.validation.formats import operands_of
from lowprec.perf.validation.gemm import answer
from lowprec.perf.validation.point import Point, Prediction
from lowprec.perf.validation.text import need, sizes
from lowprec.spec import Attention, Format, Rule, load_recipe

_WORDS = re.compile(
    r"attention|flash_?(?:attn|mla|infer)|\bsdpa\b|\bmha\b|\bmla\b|\bgqa\b", re.IGNORECASE
)
_BACKWARD = re.compile(r"backward|\bbwd", re.IGNORECASE)
_FORWARD = re.compile(r"forward|\bfwd", re.IGNORECASE)
_WHOLE = re.compile(r"non-?_?causal|bidirectional|causal ?[=:] ?(?:false|0)", re.IGNORECASE)
_NAMES = {
    "B": ("b", "batch", "bs"),
    "S": ("s", "seq", "seqlen", "context", "isl"),
    "Hq": ("hq", "h", "heads", "num_heads", "nheads"),
}
_DIMS = ("d", "head_dim", "headdim", "dh", "head_size", "hdim")
_KV_HEADS = ("hkv", "kv_heads", "hk", "num_kv_heads", "nheads_kv", "nheads_k")
# Multi-head latent attention of DeepSeek-V2 and V3 (arXiv 2405.04434): latent and rotary widths.
LATENT, ROTARY, HEAD = 512, 64, 128


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row of attention ran."""

    op: Attention
    rule: Rule | None
    machine: Machine
    dtype: Format


def predict(point: Point) -> Prediction | None:
    """The point's value and interval; None if it is no attention."""
    found = measured(point)
    if found is None:
        return None
    return answer(point, attention(found.op, found.rule, found.machine, found.dtype))


def measured(point: Point) -> Measured | None:
    """The operation of the row; None if it is no attention. LowprecError: what the row lacks."""
    if not _WORDS.search(point.what) or "proj" in point.what or point.level.startswith("e2e"):
        return None
    machine = load_machine(point.hw)
    found = sizes(point.shape)
    size = need(found, _NAMES, point.shape)
    if _BACKWARD.search(point.what):
        raise LowprecError(f"what: {point.what!r}: expected the forward pass")
    decode = bool(re.search(r"decode|generation|one token", point.what, re.IGNORECASE))
    prefill = bool(re.search(r"prefill|context|causal", point.what, re.IGNORECASE))
    if not decode and not prefill and _FORWARD.search(point.what):
        prefill = bool(re.search("causal", _words(point), re.IGNORECASE))
        if not prefill:
            raise LowprecError(f"what: {point.what!r} says neither causal nor non-causal")
    if decode == prefill and not decode:
        raise LowprecError(f"what: {point.what!r} says neither prefill nor decode")
    op = _op(point, found, size, decode)
    rule, dtype = _formats(point.format, machine)
    return Measured(op, rule, machine, dtype)


def _op(point: Point, found: dict[str, int], size: dict[str, int], decode: bool) -> Attention:
    heads, length = size["Hq"], size["S"]
    latent = "mla" in f"{point.what} {point.format} {point.shape}".lower()
    dim = next((found[s] for s in _DIMS if found.get(s)), None)
    if latent:
        kv_heads = 1 if decode else heads
        width, value = (LATENT + ROTARY, LATENT) if decode else (HEAD + ROTARY, HEAD)
    elif dim is None:
        raise LowprecError(f"shape: {point.shape!r} gives no head dimension (expected D=...)")
    else:
        width = value = dim
        kv_heads = next((found[s] for s in _KV_HEADS if found.get(s)), heads)
    if heads % kv_heads:
        raise LowprecError(f"shape: {point.shape!r}: {heads} heads do not share {kv_heads} evenly")
    return Attention(
        kind="attention",
        path="attention",
        batch=size["B"],
        heads=heads,
        kv_heads=kv_heads,
        queries=1 if decode else length,
        keys=length + 1 if decode else length,
        head_dim=width,
        value_dim=value,
        causal=decode or not _WHOLE.search(_words(point)),
        window=found.get("window"),
        value_in_key=latent and decode,
    )


def _words(point: Point) -> str:
    return f"{point.what} {point.shape} {point.conditions}"


def _formats(name: str, machine: Machine) -> tuple[Rule | None, Format]:
    """The rule of "attn bfloat16, kv fp8" and the like; one name alone is of both."""
    text = name.lower()
    parts = dict(re.findall(r"\b(attn|attention|mma|kv|q)\b[ :=_-]*(?:cache )?([a-z0-9_]+)", text))
    if match := re.search(r"(\w+) (?:kv|cache)", text):
        parts.setdefault("kv", match[1])
    product = next((parts[k] for k in ("attn", "attention", "mma", "q") if k in parts), None)
    cache = parts.get("kv")
    if product is None:
        product = cache if cache and not re.search("mma", text) else "bfloat16"
        if cache is None:
            product = cache = text
    operands = operands_of(product, machine)
    rule = {"match": "*"}
    if _is_eight(cache or product, machine):
        rule |= dict.fromkeys(("key_cache", "value_cache"), "float8_e4m3fn/cast")
    if _is_eight(product, machine):
        rule |= dict.fromkeys(("query", "probability", "key", "value"), "float8_e4m3fn/cast")
    dtype = operands.dtype
    return (
        load_recipe({"name": "row", "rules": [rule]}).rules[0] if len(rule) > 1 else None,
        dtype,
    )


def _is_eight(name: str, machine: Machine) -> bool:
    """Whether the name is 8-bit floating point; LowprecError for what is neither that nor 16."""
    x = operands_of(name, machine).x
    bits = x.bits if isinstance(x, Format) else x.element.bits
    if bits not in (8, 16):
        raise LowprecError(f"format: attention in {name!r} is not modelled; expected 8 or 16 bits")
    return bits == 8
