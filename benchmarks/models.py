"""What emulation costs: time and memory of a wrapped model's forward pass against the plain one's.

    python benchmarks/models.py [--model smollm2-135m] [--tokens 512] [--rounds 7] [--threads 1]

Plain and wrapped pass run in one process, in turns; CPU time (all threads), medians over the rounds
and the median of the rounds' ratios. Memory is the peak resident size of a process of its own that
loads the model and runs one pass. Without --model: random weights in the shape of SmolLM2-135M,
whose speed is the same. Bars: 1.1 times the time for linear layers under block formats, 1.5 with
attention and KV cache too, 1.2 times the memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from dataclasses import asdict, dataclass
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
QUANTIZERS = (
    "mxfp8_e4m3/floor",
    "mxfp4/floor",
    "nvfp4/amax",
    "mxint8/floor",
    "float8_e4m3fn/amax:channel",
    "int8/amax:channel",
)
HEAD = "lm_head: keep; "
ATTENTION = "*: query={0} key={0} probability={0} value={0} key_cache={1} value_cache={1}"
# A scale of the whole tensor would change with every token that is stored.
CACHED = {"nvfp4/amax": "nvfp4/fixed=0.03125"}
RECIPES: dict[str, str] = {
    **{q: f"{HEAD}*: weight={q} activation={q}" for q in QUANTIZERS},
    **{
        f"{q} with attention": f"{HEAD}*: weight={q} activation={q}; "
        + ATTENTION.format(q, CACHED.get(q, q))
        for q in QUANTIZERS[:3]
    },
}


@dataclass(frozen=True)
class Row:
    """CPU seconds of a pass, and the peak of the process's memory in MB; plain and wrapped."""

    recipe: str
    plain_s: float
    wrapped_s: float
    ratio: float
    plain_mb: float
    wrapped_mb: float


def load(name: str | None) -> Any:
    if name is None:
        torch.manual_seed(0)
        config = LlamaConfig(**SMOLLM2)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    from lowprec.eval import load_model

    return load_model(name).model


def token_ids(model: Any, tokens: int) -> torch.Tensor:
    return torch.randint(3, model.config.vocab_size, (1, tokens))


def seconds(model: Any, ids: torch.Tensor) -> float:
    start = time.process_time()
    model(ids)
    return time.process_time() - start


@torch.no_grad()
def compare(model: Any, recipe: str, ids: torch.Tensor, rounds: int) -> list[tuple[float, float]]:
    """Seconds of the plain and of the wrapped pass, round by round, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        plain = seconds(lp.unwrap(model), ids)
        lp.wrap(model, recipe)
        model(ids)  # quantizes the weights
        times.append((plain, seconds(model, ids)))
    lp.unwrap(model)
    return times[1:]


@torch.no_grad()
def peak(name: str | None, recipe: str | None, tokens: int, threads: int) -> float:
    """Peak resident MB of this process, once it has run a pass."""
    torch.set_num_threads(threads)
    model = load(name)
    if recipe is not None:
        lp.wrap(model, recipe)
    model(token_ids(model, tokens))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure(options: argparse.Namespace) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    model = load(options.model)
    ids = token_ids(model, options.tokens)

    def megabytes(recipe: str | None) -> float:
        with context.Pool(1) as pool:
            return pool.apply(peak, (options.model, recipe, options.tokens, options.threads))

    said, plain = Console(stderr=True), megabytes(None)
    rows = []
    for label, recipe in RECIPES.items():
        times = compare(model, recipe, ids, options.rounds)
        before, after = (statistics.median(column) for column in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        rows.append(Row(label, before, after, ratio, plain, megabytes(recipe)))
        # The whole takes over ten minutes: what is known so far.
        said.print(f"{label}: {ratio:.3f} times the time")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model as lowprec eval takes it")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = measure(options)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table("operands", "plain, s", "wrapped, s", "time ratio", "wrapped, MB", "memory ratio")
    for row in rows:
        times = (row.plain_s, row.wrapped_s, row.ratio)
        memory = (f"{row.wrapped_mb:.0f}", f"{row.wrapped_mb / row.plain_mb:.3f}")
        table.add_row(row.recipe, *(f"{t:.3f}" for t in times), *memory)
    Console().print(table)
    print(f"backend: {lp.backend()}; {options.tokens} tokens, {options.threads} thread(s)")


if __name__ == "__main__":
    main()
