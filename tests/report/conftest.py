"""A small report with every part, from made-up numbers that no test takes for measured ones."""

from __future__ import annotations

from typing import Any

import pytest

from lowprec.eval.training_report import chart
from lowprec.report.data import Candidate, Failed, Price, Report, Source
from lowprec.spec import Metric, Record, load_recipe

LOSS = {
    "float32": ("float32", 0.0),
    "bf16": ("bfloat16", 0.0001),
    "mxint8": ("mxint8/floor", 0.0085),
    "mxfp8 rceil": ("mxfp8_e4m3/rceil", 0.038),
    "fp8 channel": ("float8_e4m3fn/amax:channel", 0.032),
    "fp8 tensor": ("float8_e4m3fn/amax:tensor", 0.037),
    "int8 channel": ("int8/amax:channel", 0.03),
    "mxfp6_e2m3": ("mxfp6_e2m3/floor", 0.065),
    "mxfp6_e3m2": ("mxfp6_e3m2/floor", 0.171),
    "mxfp8_e5m2": ("mxfp8_e5m2/floor", 0.1705),
    "nvfp4": ("nvfp4/amax", 0.468),
    "mxfp4": ("mxfp4/floor", 1.638),
    "int4 </script> channel": ("int4/amax:channel", 3.5),
    "nvfp4 weights": ("*: weight=nvfp4/amax", 0.243),
}
COVERAGE = [
    {"modules": m, "count": 2, "share_of_flops": s, "weight": w, "activation": w, "reason": r}
    for m, s, w, r in (("a.*", 0.75, "x", ""), ("lm_head", 0.25, "kept", "kept by rule"))
]
SPEED = {32: 1.0, 16: 4.0, 8: 7.5, 6: 8.5, 4: 13.0}


def record(recipe: str, kl: float) -> Record:
    layers = [
        {"path": f"model.layers.{i}.{kind}", "weight_db": 20.0 + i, "activation_db": 18.0 - i}
        for i in range(6)
        for kind in ("self_attn.q_proj", "mlp.down_proj")
    ]
    names = {"kl": kl, "dnll": kl and kl - 0.002}
    names |= {"top1": 1 - kl / 4, "rms_dp": kl / 3, "ppl": 36 + kl}
    return Record(
        kind="accuracy",
        subject={"recipe": recipe},
        metrics={
            name: Metric(value=value, se=value / 50 if value > 0 else 0.001)
            for name, value in names.items()
        }
        | {"kl_median": Metric(value=kl / 2), "kl_p999": Metric(value=kl * 9)},
        details={
            "intervals": {name: [v - abs(v) / 9, v + abs(v) / 9] for name, v in names.items()},
            "layers": layers,
            "coverage": COVERAGE,
        },
        environment={},
    )


@pytest.fixture(scope="session")
def report() -> Report:
    candidates = tuple(
        Candidate(name, load_recipe(text), record(text, kl), (min(1, kl), kl / 9))
        for name, (text, kl) in LOSS.items()
    )
    prices = tuple(
        Price(
            c.name,
            model,
            machine,
            workload,
            scale * _speed(c),
            1,
            "memory",
            True,
            c.name in ("float32", "bf16", "mxint8", "nvfp4", "mxfp4"),
            c.name == "bf16",
        )
        for c in candidates
        for model in ("tiny", "huge")
        for machine, scale in (("b200", 1000.0), ("h100", 400.0))
        for workload in ("decode, batch 1", "prefill, batch 8")
    )
    return Report(
        title="A study of <formats> & rules",
        candidates=candidates,
        prices=prices,
        sources=(Source("b200", "memory.bandwidth", "7.7e12", "datasheet", "a page"),),
        shown=("huge", "b200", "decode, batch 1"),
        protocol=(("Text", "8 windows"),),
        digests=(("model", "ab" * 32),),
        failed=(Failed("int3", "its logits are <not> finite"),),
        sensitivity=tuple(
            {
                "path": f"model.layers.{layer}.{kind}",
                "operand": operand,
                "fisher": 0.001 * (layer + 1),
                "one": {"kl": 0.002 * (layer + 1)},
            }
            for layer in range(6)
            for kind in ("self_attn.q_proj", "mlp.down_proj")
            for operand in ("weight", "activation")
        ),
        searched=(
            {
                "name": "assigned-5",
                "how": "assigned",
                "bits": {"weight": 5.0, "activation": 4.9},
                "metrics": {"kl": {"value": 0.2, "interval": [0.18, 0.22]}},
            },
        ),
        tasks=(task("acc", 0.4, -0.05, 0.06), task("perplexity", 90.0, None, None)),
        training=tuple(
            {"recipe": name, "seeds": [0, 1], "diverged": 0, "nll": 1.3 + by, "difference": by,
             "interval": (by - 0.01, by + 0.01)}
            for name, by in (("bf16", 0.0), ("nvfp4", 0.02))
        ),
        curves=chart(CURVES, "bf16").to_dict(),
    )  # fmt: skip


CURVES = [
    {"recipe": name, "step": step, "nll": 5 / step + by, "nll_low": 4.9 / step + by,
     "nll_high": 5.1 / step + by, "difference": by, "low": by - 0.01, "high": by + 0.01}
    for name, by in (("bf16", 0.0), ("nvfp4", 0.02))
    for step in (1, 2, 3)
]  # fmt: skip


def task(metric: str, score: float, change: float | None, half: float | None) -> dict[str, Any]:
    asked = None if change is None else 0.03
    around = [None if v is None or half is None else (v - half, v + half) for v in (score, change)]
    return {
        "recipe": "nvfp4", "model": "tiny", "task": "arc_easy", "metric": metric, "score": score,
        "base": score + 0.05, "items": 100, "interval": around[0], "change": change,
        "change_interval": around[1],
        "lost": 9, "gained": 4, "p": asked, "holm": asked, "bh": asked,
    }  # fmt: skip


def _speed(candidate: Candidate) -> float:
    bits = candidate.bits[0] or 16
    return SPEED[max(b for b in SPEED if b <= bits)]
