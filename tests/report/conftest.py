"""A small report with every part, from made-up numbers that no test takes for measured ones."""

from __future__ import annotations

import pytest

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
        Candidate(name, load_recipe(text), record(text, kl)) for name, (text, kl) in LOSS.items()
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
    )


def _speed(candidate: Candidate) -> float:
    bits = candidate.bits[0] or 16
    return SPEED[max(b for b in SPEED if b <= bits)]
