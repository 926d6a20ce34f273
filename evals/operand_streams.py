"""Operands of a real model, and the energy proxy of units that multiply them.

    python evals/operand_streams.py extract      # benchmarks/operands/smollm2-135m.npz
    python evals/operand_streams.py energy       # a table, from that file

`extract` keeps a few rows of a weight and the activations that meet them; `energy` quantizes both
as each unit asks and counts how often the unit's wires change (`lowprec.rtl.energy`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from lowprec.kernels import quantize
from lowprec.rtl import Unit, dot_unit
from lowprec.rtl.energy import Energy, energy
from lowprec.spec import load_quantizer

FILE = Path(__file__).parents[1] / "benchmarks" / "operands" / "smollm2-135m.npz"
LAYER = "model.layers.15.mlp.gate_proj"
ROWS = 64
# Unit, quantizer of both operands, lanes.
UNITS = [
    ("ampere_int8", "int8_channel/amax", 8),
    ("hopper_fp8", "float8_e4m3fn_channel/amax", 8),
    ("blackwell_tcgen05_fp8", "float8_e4m3fn_channel/amax", 8),
    ("blackwell_mxf8", "mxfp8_e4m3/rceil", 8),
    ("blackwell_mxf4", "mxfp4/rceil", 16),
    ("blackwell_nvf4", "nvfp4/amax", 16),
    ("hopper_bf16", "bfloat16/cast", 8),
]


def extract() -> None:
    """`ROWS` rows of x and of w, float32 cut to the 16 bits of bfloat16."""
    from lowprec.eval.data import load_text
    from lowprec.eval.models import load_model

    loaded = load_model("smollm2-135m")
    layer = loaded.model.get_submodule(LAYER)
    kept: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    text = "\n\n".join(load_text("house-of-commons").documents[:20])
    tokens = loaded.tokenizer(text, return_tensors="pt").input_ids[:, : 4 * ROWS]
    with torch.no_grad():
        loaded.model(tokens)
    x, w = kept[0][0, ::4][:ROWS], layer.weight[:: layer.weight.shape[0] // ROWS][:ROWS]
    arrays = {n: _bfloat16(t) for n, t in (("x", x), ("w", w))}
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {LAYER} of {loaded.name}, {x.shape} and {w.shape}")


def _bfloat16(x: torch.Tensor) -> np.ndarray:
    return x.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy()


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    """x and w as float32."""
    with np.load(FILE) as file:
        x, w = (torch.from_numpy(file[n]).view(torch.bfloat16).float() for n in ("x", "w"))
    return x, w


def measure(unit: Unit, quantizer: str, x: torch.Tensor, w: torch.Tensor) -> Energy:
    """Of inner products of every row of x with the row of w of the same number."""
    size = x.shape[1] // 64 * 64
    pair = [quantize(t[:, :size].contiguous(), load_quantizer(quantizer)) for t in (x, w)]
    mask = (1 << unit.a.bits) - 1
    a, b = (q.codes.numpy().astype(np.int64) & mask for q in pair)
    if unit.scale is None:
        return energy(unit, a, b)
    found = [q.scales for q in pair]
    assert all(s is not None for s in found)
    # Of each pass of the unit the scales of its runs, which cover parts of blocks.
    block, run = size // found[0].shape[1], min(unit.run, unit.lanes)
    passes = np.arange(0, size, run) // block
    scales = [s.numpy().astype(np.int64)[:, passes] & (1 << unit.scale.bits) - 1 for s in found]
    return energy(unit, a, b, (scales[0], scales[1]))


def table() -> None:
    x, w = operands()
    random = torch.Generator().manual_seed(0)
    noise = [torch.randn(t.shape, generator=random) * t.std() for t in (x, w)]
    print("| unit | quantizer | load per product | on normal noise | toggles |")
    print("|---|---|---|---|---|")
    for name, quantizer, lanes in UNITS:
        unit = dot_unit(name, lanes=lanes)
        real, drawn = measure(unit, quantizer, x, w), measure(unit, quantizer, *noise)
        print(
            f"| {name} | {quantizer} | {real.load_per_product:.0f} | {drawn.load_per_product:.0f} "
            f"| {real.toggles:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    {"extract": extract, "energy": table}[(sys.argv[1:] or ["energy"])[0]]()
