"""How published serving points were run, read from the words of their rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowprec.errors import LowprecError
from lowprec.perf.hardware import Machine
from lowprec.perf.parallel import Parallel
from lowprec.perf.validation.formats import e4m3_of
from lowprec.spec import Matmul, Recipe, Workload, load_recipe

_FP8 = "float8_e4m3fn/amax:tensor"
# Weight and activation of the matmuls that each mode quantizes, as the libraries' kernels do.
MODES = {
    "nvfp4": "weight=nvfp4/amax activation=nvfp4/amax",
    "fp8": f"weight={_FP8} activation={_FP8}",
    "fp8_block": "weight=float8_e4m3fn_128x128/amax activation=float8_e4m3fn_1x128/amax",
    "mxfp4": "weight=mxfp4/rceil activation=mxfp8_e4m3/rceil",
    "mxfp4_wo": "weight=mxfp4/rceil",
    "int4_wo": "weight=int4_g128_bfloat16/amax",
    "int8_wo": "weight=int8/amax:channel",
    "w4a8": f"weight=int4_g128_bfloat16/amax activation={_FP8}",
}


@dataclass(frozen=True)
class Layout:
    """Chips of one server as its source counts them."""

    tp: int
    dp: int | None
    moe_tp: int
    ep: int

    @classmethod
    def read(cls, text: str) -> Layout:
        """From such as ``tp8 dp1 moe_tp8 ep1``. LowprecError: another form."""
        found = re.search(r"tp(\S+) dp(\S+) moe_tp(\S+) ep(\S+)", text)
        if not found:
            raise LowprecError(f"{text!r}: expected such as 'tp8 dp1 moe_tp8 ep1'")
        tp, dp, moe_tp, ep = (_whole(value) for value in found.groups())
        if tp is None:
            raise LowprecError(f"{text!r}: tp is not given")
        return cls(tp, dp, moe_tp or 1, ep or 1)

    def plan(self) -> Parallel:
        """The chips that were really there.

        Where `dp` is given, rows whose experts count r x r on tp * dp = r * r chips come from runs
        of r chips (their names say tp4 ep4): both counts are r. So do those of r x r chips with
        r * r groups of experts on tp = dp = r.
        """
        tp, dp, ep = self.tp, self.dp or 1, self.ep
        if self.dp and self.moe_tp == ep > 1 and tp * dp == ep * ep:
            tp, dp = (ep, 1) if dp == 1 else (1, ep)
        elif self.dp and tp == dp > 1 and ep == tp * dp:
            dp, ep = 1, tp
        chips = tp * dp
        return Parallel(tp=tp, attention_dp=dp, ep=math.gcd(ep, chips))


def _whole(text: str) -> int | None:
    return int(float(text)) if re.fullmatch(r"[\d.]+", text) else None


@dataclass(frozen=True)
class Lengths:
    """Tokens in and out, and users at a time."""

    input: int
    output: int
    users: int

    @classmethod
    def read(cls, text: str) -> Lengths:
        """From such as ``ISL=1024 OSL=1024 conc=16``. LowprecError: another form."""
        found = re.search(r"ISL=?\s*(\d+) OSL=?\s*(\d+) (?:conc|bs)=(\d+)(?![\w.])", text)
        if not found:
            raise LowprecError(f"{text!r}: expected such as 'ISL=1024 OSL=1024 conc=16'")
        return cls(*map(int, found.groups()))


def mode_of(text: str, model: str, machine: Machine) -> str | None:
    """The mode of a format such as ``fp4 (gemm nvfp4)``; None: nothing is quantized.

    gpt-oss is published in MXFP4, which its rows call fp4 or fp8; machines that cannot multiply it
    convert the weights. LowprecError: a format that is none of the known ones.
    """
    if model.startswith("gpt-oss"):
        units = (fmt.name for path in machine.datapaths for fmt in path.operands)
        native = "float4_e2m1fn" in units
        return "mxfp4" if native else "mxfp4_wo"
    found = re.search(r"gemm (\w+)", text)
    name = found[1] if found else text.strip().lower()
    known = {
        "nan": None, "bf16": None, "w bf16 a bf16": None, "bfloat16": None, "fp4": "nvfp4",
        "int4 awq weight-only": "int4_wo", "w4a8 awq": "w4a8", "w int8 rowwise a bf16": "int8_wo",
        "w fp8 rowwise a fp8 rowwise": "fp8",
    }  # fmt: skip
    if name in known:
        return known[name]
    if name in MODES:
        return name
    raise LowprecError(f"format {text!r}: no known mode of serving libraries")


# Published FP8 checkpoints of these models have blocks of 128 x 128, whatever a row calls them.
_BLOCKS = ("deepseek", "kimi", "minimax", "qwen3-235b", "qwen3.5", "glm")
# Modes that these checkpoints use in the experts and feed-forward parts alone.
_EXPERTS_ALONE = ("nvfp4", "int4_wo", "mxfp4", "mxfp4_wo")


def recipe_of(mode: str | None, work: Workload, machine: Machine, backend: str) -> Recipe:
    """What the library quantizes: no head, no router; of mixtures of experts under 4 bits the
    feed-forward parts alone; the KV cache in FP8 with TensorRT-LLM and on Blackwell, as their
    published benchmarks run it."""
    if mode is None:
        return load_recipe("*: keep")
    if mode == "fp8" and work.model.lower().startswith(_BLOCKS):
        mode = "fp8_block"
    paths = [op.path for op in work.ops if isinstance(op, Matmul) and op.weight]
    sparse = any(op.experts > op.top_k for op in work.ops if isinstance(op, Matmul))
    kept = [("lm_head", "lm_head"), ("*.gate", ".gate"), ("*.router", ".router")]
    rules = [f"{rule}: keep" for rule, end in kept if any(p.endswith(end) for p in paths)]
    where = "*mlp*" if sparse and mode in _EXPERTS_ALONE else "*"
    rules.append(f"{where}: {MODES[mode].replace(_FP8, f'{e4m3_of(machine).name}/amax:tensor')}")
    if backend == "trtllm" or machine.family == "blackwell":
        rules.append("*: key_cache=float8_e4m3fn/cast value_cache=float8_e4m3fn/cast")
    return load_recipe("; ".join(rules))


def fields_of_bulk(row: Mapping[str, Any]) -> dict[str, str]:
    """Shape, format and conditions of a row of served points with a column for each, in the words
    of the other tables."""

    def number(name: str) -> str:
        value = row.get(name)
        return "nan" if value in (None, "") or value != value else f"{float(value):g}"

    def layout(prefix: str) -> str:
        names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        tp, dp, moe_tp, ep = (number(prefix + name) for name in names)
        return f"tp{tp} dp{dp} moe_tp{moe_tp} ep{ep}"

    lengths = f"ISL={number('isl')} OSL={number('osl')} conc={number('conc')}"
    if row["mode"] == "agg":
        shape = f"{lengths} {layout('')}"
    else:
        pools = " ".join(
            f"{pool} {number(f'{pool}_num_workers')} x {layout(f'{pool}_')}"
            for pool in ("prefill", "decode")
        )
        shape = f"{lengths} {pools}"
    return {
        "shape": shape,
        "format": f"{row.get('precision')} (gemm {row.get('gemm_quant_mode')})",
        "conditions": f"{row['backend']} {row.get('backend_version')}",
    }
