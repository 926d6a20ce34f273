"""Score a causal language model on windows of tokens, against the unquantized model's answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from lowprec.errors import LowprecError
from lowprec.eval.fetch import sha256_file
from lowprec.eval.metrics import (
    TokenScores,
    compare,
    compare_right,
    join,
    log_probs,
    summarize,
)
from lowprec.eval.protocols import Windows

Progress = Callable[[int, int], None]
_LOG_PROBS = "baseline.f32"
_INDEX = "baseline.json"


@dataclass(frozen=True)
class Baseline:
    """Log-probabilities of the unquantized model at every scored token, in a file: float32
    [tokens, V], row-major, window after window; `starts` are the windows' first rows. brief:
    float64 [tokens, 2] instead, that of the right token and the number of the most likely one.

    `key` says what computed them; `windows` is the digest of the windows, `sha256` the file's.
    """

    path: Path
    shape: tuple[int, int]
    starts: tuple[int, ...]
    key: str
    windows: str
    sha256: str
    brief: bool = False

    @property
    def nbytes(self) -> int:
        """Of the whole file."""
        return int(np.prod(self.shape)) * self._type.itemsize

    @property
    def _type(self) -> np.dtype[Any]:
        return np.dtype("<f8" if self.brief else "<f4")

    def window(self, i: int) -> torch.Tensor:
        """The rows of the scored tokens of window `i`, read from the file."""
        tokens, width = self.shape
        first, end = (*self.starts, tokens)[i : i + 2]
        size, offset = (end - first) * width, first * width * self._type.itemsize
        data = np.fromfile(self.path, dtype=self._type, count=size, offset=offset)
        if data.size != size:
            raise LowprecError(f"{self.path}: ends within window {i}; remove it and run again")
        return torch.from_numpy(data.reshape(-1, width))

    def compare(self, i: int, logs: torch.Tensor, right: torch.Tensor) -> TokenScores:
        """The measures of log-probabilities `logs` [T, V] of window `i` with right tokens [T]."""
        base = self.window(i).to(logs.device)
        if self.brief:
            return compare_right(base[:, 0], base[:, 1].long(), logs, right)
        if base.shape != logs.shape:
            raise LowprecError(
                f"window {i}: {logs.shape[1]} logits per token, {base.shape[1]} in the baseline"
            )
        return compare(base, logs, right)


def open_baseline(folder: Path, windows: Windows, key: str, brief: bool = False) -> Baseline | None:
    """The baseline stored in `folder`, or None where it is not whole, of other windows or key, or
    not as `brief` as asked for."""
    try:
        index = json.loads((folder / _INDEX).read_text())
        found = Baseline(
            path=folder / _LOG_PROBS,
            **index | {"shape": tuple(index["shape"]), "starts": tuple(index["starts"])},
        )
        whole = found.path.stat().st_size == found.nbytes
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not whole or (found.key, found.windows, found.brief) != (key, windows.digest, brief):
        return None
    return found if sha256_file(found.path) == found.sha256 else None


def make_baseline(
    model: Any,
    windows: Windows,
    folder: Path,
    key: str,
    progress: Progress | None = None,
    brief: bool = False,
) -> Baseline:
    """The baseline in `folder`: the stored one where it is whole and fits, else computed anew.

    brief: 16 bytes per token, enough for perplexities and the share of equal top-1 tokens, not for
    the KL divergence, which takes 4 bytes per token and entry of the vocabulary.

    `key` must name everything that the log-probabilities depend on, besides the windows: model
    digest, type of its numbers, versions. The index is written after the data, and both appear
    under their names only when complete: a killed run leaves no baseline rather than half, and
    a partial file that the next one overwrites. Of two runs at once, the second waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "baseline.lock"):
        found = open_baseline(folder, windows, key, brief)
        return found or _write_baseline(model, windows, folder, key, progress, brief)


def _write_baseline(
    model: Any,
    windows: Windows,
    folder: Path,
    key: str,
    progress: Progress | None,
    brief: bool,
) -> Baseline:
    (folder / _INDEX).unlink(missing_ok=True)
    partial = folder / f"{_LOG_PROBS}.partial"
    sha, sizes, vocabulary = hashlib.sha256(), [], 0
    with partial.open("wb") as file:
        for i, logs in enumerate(_all_log_probs(model, windows, progress)):
            if brief:
                best, right = logs.argmax(dim=-1), _right(windows, i).to(logs.device)
                at_right = logs.gather(1, right[:, None])[:, 0]
                logs = torch.stack([at_right.double(), best.double()], dim=1)
            data = logs.cpu().numpy().astype("<f8" if brief else "<f4", copy=False)
            if i and data.shape[1] != vocabulary:
                raise LowprecError(
                    f"window {i}: {data.shape[1]} logits per token, not {vocabulary}"
                )
            vocabulary = data.shape[1]
            sizes.append(len(data))
            file.write(data)
            sha.update(data)
    partial.replace(folder / _LOG_PROBS)
    starts = tuple(int(n) for n in np.cumsum([0, *sizes[:-1]]))
    index: dict[str, Any] = {"shape": (sum(sizes), vocabulary), "starts": starts, "key": key}
    index |= {"windows": windows.digest, "sha256": sha.hexdigest(), "brief": brief}
    partial = folder / f"{_INDEX}.partial"
    partial.write_text(json.dumps(index, indent=1))
    partial.replace(folder / _INDEX)
    return Baseline(path=folder / _LOG_PROBS, **index)


def score_windows(
    model: Any, windows: Windows, baseline: Baseline, progress: Progress | None = None
) -> TokenScores:
    """Measures of every scored token, window after window; see `evaluate_windows`."""
    if baseline.windows != windows.digest:
        raise LowprecError(f"{baseline.path}: the baseline is of other windows")
    parts = []
    for i, logs in enumerate(_all_log_probs(model, windows, progress)):
        parts.append(baseline.compare(i, logs, _right(windows, i).to(logs.device)))
    return join(parts)


def _right(windows: Windows, i: int) -> torch.Tensor:
    """The right tokens of window `i`."""
    return torch.from_numpy(windows.tokens(i)[1:][windows.places(i)])


def evaluate_windows(
    model: Any, windows: Windows, baseline: Baseline, progress: Progress | None = None
) -> dict[str, float | int]:
    """Perplexity, KL divergence and the rest of `metrics.summarize`, as plain numbers.

    `model` is called as ``model(input_ids=ids, use_cache=False)`` with one window [1, L], never
    with what fills up a short one, so that
    scales taken over a whole activation never depend on which windows share a batch; its
    answer's `logits` are [1, L, V], float32 or bfloat16. The same model, windows, threads and
    machine give the same bits. `progress(done, total)` is called after each window. Memory: one
    window's logits and two copies of its log-probabilities. LowprecError where logits are NaN or
    Inf, or the model is in training mode.
    """
    return summarize(score_windows(model, windows, baseline, progress), windows.owners)


def _all_log_probs(model: Any, windows: Windows, progress: Progress | None) -> Any:
    """Log-probabilities at the scored tokens of each window in turn."""
    if getattr(model, "training", False):
        raise LowprecError("the model is in training mode; call model.eval() first")
    for i in range(len(windows.ids)):
        yield _log_probs(model, windows.tokens(i), windows.places(i), i)
        if progress:
            progress(i + 1, len(windows.ids))


@torch.inference_mode()
def _log_probs(model: Any, ids: np.ndarray, places: np.ndarray, i: int) -> torch.Tensor:
    tokens = torch.from_numpy(ids)[None].to(getattr(model, "device", "cpu"))
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
    if len(places) < len(logits):
        logits = logits[torch.from_numpy(places).to(logits.device)]
    if not torch.isfinite(logits).all():
        raise LowprecError(f"window {i}: the model's logits are not finite")
    return log_probs(logits)
