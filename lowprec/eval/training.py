"""Train a small language model from scratch under a recipe, again and again the same way."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from lowprec import __version__
from lowprec.errors import LowprecError
from lowprec.eval import statistics
from lowprec.eval.text import SEPARATOR, Text
from lowprec.eval.training_checkpoint import Run, load_checkpoint, save_checkpoint
from lowprec.eval.training_recipe import TrainingRecipe
from lowprec.nn import wrap
from lowprec.nn.training.optimizer import quantize_optimizer
from lowprec.spec.base import Spec
from lowprec.spec.record import Metric, Record

Update = Callable[[int, int], None]
Count = Annotated[int, Field(ge=1, le=1 << 24)]


class Plan(Spec):
    """A Llama-architecture model of bytes, and how it is trained.

    AdamW (betas 0.9 and 0.95, weight decay 0.1 on matrices alone), `warmup` steps of linear warm-up
    to `lr` and a cosine to a tenth of it, gradients clipped to a norm of 1. A batch is `batch`
    windows of `seqlen` bytes at places drawn from the seed and the step alone. The last tenth of
    the text's documents is held out; `windows` windows of it are scored every `every` steps.
    """

    layers: Count = 6
    hidden: Count = 192
    intermediate: Count = 512
    heads: Count = 6
    seqlen: Annotated[int, Field(ge=2, le=1 << 16)] = 128
    batch: Count = 16
    steps: Count = 300
    warmup: Annotated[int, Field(ge=0)] = 20
    lr: Annotated[float, Field(gt=0)] = 3e-3
    every: Count = 25
    windows: Annotated[int, Field(ge=2)] = 64

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0 on."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True, eq=False)
class Corpus:
    """Bytes to train on, and windows [n, seqlen + 1] that are held out, their first bytes given."""

    train: Tensor
    held_out: Tensor
    digest: str

    @staticmethod
    def of(text: Text, plan: Plan) -> Corpus:
        """LowprecError: a text that is too short."""
        cut = max(len(text.documents) * 9 // 10, 1)
        parts = text.documents[:cut], text.documents[cut:]
        if len(text.documents) == 1:  # one long document is cut itself
            whole = text.documents[0]
            parts = (whole[: len(whole) * 9 // 10],), (whole[len(whole) * 9 // 10 :],)
        train, rest = (_bytes(part) for part in parts)
        width = plan.seqlen + 1
        if len(rest) < plan.windows * width or len(train) <= width:
            raise LowprecError(
                f"{text.name}: {len(train)} bytes to train on and {len(rest)} to score; expected "
                f"at least {width + 1} and {plan.windows * width}"
            )
        # Windows from everywhere in what is held out.
        starts = np.linspace(0, len(rest) - width, plan.windows).astype(int)
        return Corpus(train, torch.stack([rest[i : i + width] for i in starts]), text.digest)

    def batch(self, plan: Plan, seed: int, step: int) -> Tensor:
        """int64 [batch, seqlen + 1]."""
        key = int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:8], "little")
        places = np.random.Generator(np.random.PCG64(key)).integers(
            0, len(self.train) - plan.seqlen, plan.batch
        )
        return torch.stack([self.train[i : i + plan.seqlen + 1] for i in places]).long()


def _bytes(documents: tuple[str, ...]) -> Tensor:
    data = "".join(document + SEPARATOR for document in documents).encode()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def subject(plan: Plan, recipe: TrainingRecipe, corpus: Corpus, seed: int) -> dict[str, Any]:
    """All that determines a run, but for versions and threads."""
    return {
        "plan": plan.to_json(),
        "recipe": recipe.to_json(),
        "name": recipe.name,
        "spelled": recipe.spell(),
        "text": corpus.digest,
        "seed": seed,
        "lowprec": __version__,
    }


def environment() -> dict[str, str]:
    """What else the bits depend on."""
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }


def train(
    plan: Plan,
    recipe: TrainingRecipe,
    corpus: Corpus,
    seed: int,
    checkpoint: Path | None = None,
    progress: Update | None = None,
    stop_after: int | None = None,
) -> Record | None:
    """Train to the end, from where `checkpoint` left off where it exists, and say how it went.

    The checkpoint, a safetensors file, is written every `plan.every` steps; a run that was killed
    and continued has the same bits as one that was not, in the same environment, and its record is
    equal. A loss that is not finite ends the run: the record says at which step.
    stop_after: give up after that many steps (None is returned), as if killed.
    LowprecError: a checkpoint of another run or another environment.
    """
    identity = Record(
        kind="training",
        subject=subject(plan, recipe, corpus, seed),
        metrics={},
        details={},
        environment=environment(),
    )
    run = start(plan, recipe, seed)
    if checkpoint is not None and checkpoint.exists():
        load_checkpoint(checkpoint, run, identity)
    while run.step < plan.steps and _is_finite(run):
        if stop_after is not None and run.step >= stop_after:
            return None
        _step(plan, corpus, seed, run)
        if run.step % plan.every == 0 or run.step == plan.steps or not _is_finite(run):
            run.scores[run.step] = score(run.model, corpus)
            if checkpoint is not None:
                save_checkpoint(checkpoint, run, identity)
        if progress:
            progress(run.step, plan.steps)
    return _record(plan, run, identity)


def start(plan: Plan, recipe: TrainingRecipe, seed: int) -> Run:
    """The model as the seed initialises it, the same under every recipe."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=plan.hidden,
        intermediate_size=plan.intermediate,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.heads,
        max_position_embeddings=plan.seqlen,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).train()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.95))
    if recipe.optimizer is not None:
        formats = recipe.optimizer
        quantize_optimizer(optimizer, formats.states, formats.weight, formats.master, seed)
    scaling = recipe.loss_scaling
    scaler = torch.amp.GradScaler("cpu", enabled=scaling is not None, **dict(scaling or ()))
    return Run(wrap(model, recipe.model), optimizer, scaler)


def _step(plan: Plan, corpus: Corpus, seed: int, run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = plan.rate(run.step)
    run.optimizer.zero_grad()
    loss = nll(run.model, corpus.batch(plan, seed, run.step)).mean()
    run.scaler.scale(loss).backward()
    run.scaler.unscale_(run.optimizer)
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.losses.append(loss.item())
    run.step += 1


def nll(model: Any, windows: Tensor) -> Tensor:
    """Nats of each byte but the first of windows [n, L]: float32 [n, L - 1]."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits.float()
    return F.cross_entropy(logits.mT, windows[:, 1:], reduction="none")


def score(model: Any, corpus: Corpus) -> list[float]:
    """Nats per byte of each held-out window; one at a time, so that no scale depends on others."""
    model.eval()
    with torch.no_grad():
        found = [
            nll(model, window[None].long()).double().mean().item() for window in corpus.held_out
        ]
    model.train()
    return found


def _is_finite(run: Run) -> bool:
    return not run.losses or math.isfinite(run.losses[-1])


def _record(plan: Plan, run: Run, identity: Record) -> Record:
    sha = hashlib.sha256()
    for name, tensor in sorted(run.model.state_dict().items()):
        sha.update(name.encode() + tensor.contiguous().numpy().tobytes())
    metrics, clusters = {}, np.arange(plan.windows)
    if _is_finite(run):
        final = statistics.mean(np.array(run.scores[run.step]), clusters)
        metrics = {"nll": Metric(value=final.value, se=final.se)}
    details = {
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "bytes_trained_on": run.step * plan.batch * plan.seqlen,
        "diverged_at_step": None if _is_finite(run) else run.step,
        "loss_scale": run.scaler.get_scale() if run.scaler.is_enabled() else None,
        "losses": [x if math.isfinite(x) else None for x in run.losses],
        "scores": {
            str(step): float(np.mean(each)) if np.isfinite(each).all() else None
            for step, each in run.scores.items()
        },
        "weights_sha256": sha.hexdigest(),
    }
    return identity.model_copy(update={"metrics": metrics, "details": details})
