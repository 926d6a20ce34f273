"""Checkpoints of training runs: one safetensors file with all that a run remembers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor
from lowprec.nn.training.optimizer import STEPS, parameters
from lowprec.nn.training.state import load_training_state, training_state
from lowprec.spec import Quantizer
from lowprec.spec.record import Record

_PARTS = ("codes", "scales", "outer_scale", "offset", "outer_offset", "outlier")


@dataclass
class Run:
    """One recipe and seed, as far as it has come. losses: nats per byte of each step's batch;
    scores: after a number of steps, nats per byte of each held-out window."""

    model: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0
    losses: list[float] = field(default_factory=list)
    scores: dict[int, list[float]] = field(default_factory=dict)


def save_checkpoint(path: Path, run: Run, identity: Record) -> None:
    """Write all of `run`; the file is whole or as it was before."""
    tensors = {f"model/{name}": t for name, t in run.model.state_dict().items()}
    tensors |= {f"sites/{name}": t for name, t in training_state(run.model).items()}
    coded: dict[str, Any] = {}
    for i, p in enumerate(parameters(run.optimizer)):
        for name, value in run.optimizer.state.get(p, {}).items():
            key = f"optimizer/{i}/{name}"
            if isinstance(value, QTensor):
                coded[key] = [value.quantizer.model_dump_json(), value.axis]
                tensors |= _parts(key, value)
            else:
                tensors[key] = value
    about = {
        "run": identity.name,
        "environment": identity.environment,
        "step": run.step,
        "losses": run.losses,
        "scores": run.scores,
        "scaler": run.scaler.state_dict(),
        "coded": coded,
        "optimizer_steps": run.optimizer.param_groups[0].get(STEPS),
    }
    partial = path.with_name(path.name + ".partial")
    contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
    safetensors.torch.save_file(contiguous, partial, {"about": json.dumps(about)})
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def load_checkpoint(path: Path, run: Run, identity: Record) -> None:
    """Bring a fresh `run` to where the checkpoint was written.

    LowprecError: no such file, another run's, or another environment's, whose bits would differ.
    """
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise LowprecError(f"{path}: no checkpoint of a training run ({error})") from None
    if about["run"] != identity.name:
        raise LowprecError(f"{path}: the checkpoint of another run; remove it or name another")
    for key, value in identity.environment.items():
        if about["environment"].get(key) != value:
            raise LowprecError(
                f"{path}: written with {key} {about['environment'].get(key)}, and this is {value}: "
                "the bits would differ; remove it to start anew"
            )
    run.model.load_state_dict(_below("model/", tensors))
    load_training_state(run.model, _below("sites/", tensors))
    _load_optimizer(run.optimizer, _below("optimizer/", tensors), about)
    run.scaler.load_state_dict(about["scaler"])
    run.step, run.losses = about["step"], about["losses"]
    run.scores = {int(step): each for step, each in about["scores"].items()}


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], about: dict[str, Any]
) -> None:
    if about["optimizer_steps"] is not None:
        optimizer.param_groups[0][STEPS] = about["optimizer_steps"]
    for i, p in enumerate(parameters(optimizer)):
        state = optimizer.state[p]
        state.clear()
        for name, value in _below(f"{i}/", tensors).items():
            if "/" not in name:
                state[name] = value
    found = list(parameters(optimizer))
    for key, (quantizer, axis) in about["coded"].items():
        _, i, name = key.split("/")
        parts = _below(f"{i}/{name}/", tensors)
        inner = [parts[f"inner{n}"] for n in range(len(parts)) if f"inner{n}" in parts]
        optimizer.state[found[int(i)]][name] = QTensor(
            parts["codes"],
            parts.get("scales"),
            parts.get("outer_scale"),
            Quantizer.model_validate_json(quantizer),
            axis,
            tuple(inner),
            *(parts.get(part) for part in _PARTS[3:]),
        )


def _parts(key: str, q: QTensor) -> dict[str, Tensor]:
    found = {f"{key}/{part}": t for part in _PARTS if (t := getattr(q, part)) is not None}
    return found | {f"{key}/inner{n}": t for n, t in enumerate(q.inner)}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
