"""What emulation costs: the forward pass of a wrapped model against the unwrapped one's.

    python benchmarks/linear.py [--model smollm2-135m] [--tokens 512] [--rounds 7] [--threads 1]

Both models run in one process, in turns; CPU time (all threads), medians over the rounds and the
median of the rounds' ratios. Without --model: random weights in the shape of SmolLM2-135M, whose
speed is the same. Exit code 1 if mxfp8 of weights and activations takes more than --limit times
the unwrapped pass.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, LlamaConfig

import lowprec as lp

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
BAR = "mxfp8_e4m3/floor"
QUANTIZERS = (
    BAR,
    "mxfp4/floor",
    "nvfp4/amax",
    "mxint8/floor",
    "float8_e4m3fn/amax:channel",
    "int8/amax:channel",
)


def load(name: str | None) -> Any:
    if name is None:
        torch.manual_seed(0)
        config = LlamaConfig(**SMOLLM2)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    from lowprec.eval import load_model

    return load_model(name).model


def seconds(model: Any, ids: torch.Tensor) -> float:
    start = time.process_time()
    model(ids)
    return time.process_time() - start


def compare(plain: Any, recipe: str, ids: torch.Tensor, rounds: int) -> list[tuple[float, float]]:
    """Seconds of the plain and of the wrapped pass, round by round."""
    wrapped = lp.wrap(copy.deepcopy(plain), recipe)
    both = (plain, wrapped)
    for model in both:
        model(ids)
    return [(seconds(both[0], ids), seconds(both[1], ids)) for _ in range(rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model as lowprec eval takes it")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.25)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = load(options.model)
    ids = torch.randint(3, plain.config.vocab_size, (1, options.tokens))
    table = Table("weights and activations", "plain, s", "wrapped, s", "ratio")
    ratios = {}
    with torch.no_grad():
        for quantizer in QUANTIZERS:
            recipe = f"lm_head: keep; *: weight={quantizer} activation={quantizer}"
            times = compare(plain, recipe, ids, options.rounds)
            ratios[quantizer] = statistics.median(b / a for a, b in times)
            columns = (statistics.median(column) for column in zip(*times, strict=True))
            table.add_row(quantizer, *(f"{t:.3f}" for t in columns), f"{ratios[quantizer]:.3f}")
    Console().print(table)
    print(f"backend: {lp.backend()}; {options.tokens} tokens, {options.threads} thread(s)")
    return int(ratios[BAR] > options.limit)


if __name__ == "__main__":
    sys.exit(main())
