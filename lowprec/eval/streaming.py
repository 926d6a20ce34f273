"""Models beyond memory: one block's weights at a time, through all windows.

The blocks of a decoder run one after the other, each on every window, so that memory holds one
block, the embeddings with the head, and a hidden state per token, while the weights are read from
their safetensors files once. What runs is the model's own code in the model's own order for each
window, so that its logits are those of the whole model, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowprec.checkpoints import is_quantized
from lowprec.errors import LowprecError
from lowprec.eval.fetch import Say, to_stderr
from lowprec.eval.models import LoadedModel, checked_files, located, tokenizer_of
from lowprec.eval.tensors import error_rows, recorders
from lowprec.nn import unwrap, wrap
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.spec import Recipe
from lowprec.spec.base import digest

Update = Callable[[int, int], None]


class _Stop(Exception):  # noqa: N818 - no error: the pass has shown what it was run for
    pass


def load_streamed(
    spec: str | Path, say: Say = to_stderr, where: str = ""
) -> tuple[LoadedModel, Path]:
    """What `load_model` gives, but for the weights of the model, which have no memory, and the
    folder that they are in. LowprecError: quantized weights."""
    folder, name = located(spec, say, where)
    if folder.suffix == ".gguf" or is_quantized(folder):
        raise LowprecError(f"{folder}: quantized weights are not streamed")
    files = checked_files(folder)
    model = _skeleton(folder, torch.float32)
    return LoadedModel(model, tokenizer_of(folder), name, digest(files)), folder


class StreamedModel:
    """A causal language model in a folder of safetensors, for windows that are known beforehand.

    `prepare` runs the blocks; after that the model is called like any other, on one of those
    windows, for its logits: ``evaluate_windows(streamed, windows, baseline)``. The recipe, if
    there is one, holds for each block as it passes. LowprecError: quantized checkpoints, models
    without a list of blocks in ``model.layers``, weights that are not stored under the names that
    the model has for them, recipes that need calibration.
    """

    training = False
    device = torch.device("cpu")

    def __init__(
        self, folder: Path, recipe: Recipe | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        if is_quantized(folder):
            raise LowprecError(f"{folder}: quantized weights are not streamed")
        if recipe is not None and recipe.needs_calibration:
            raise LowprecError(f"recipe {recipe.name!r} needs calibration; not streamed")
        self._files = _Weights(folder, dtype)
        self.model = _skeleton(folder, dtype)
        self._blocks = _blocks_of(self.model, folder)
        self._names = {id(m): name for name, m in self.model.named_modules()}
        inside = {id(p) for block in self._blocks for p in block.parameters()}
        self._files.load(self.model, "", lambda p: id(p) not in inside)
        self.model.tie_weights()
        if recipe is not None:
            wrap(self.model, recipe)
        self._states: dict[bytes, Tensor] = {}
        self._tuple = False

    @torch.inference_mode()
    def prepare(
        self, windows: Sequence[np.ndarray], progress: Update | None = None, watch: bool = False
    ) -> list[dict[str, Any]]:
        """Run all blocks on `windows`, int64 [L] each. Time: that of the whole model's passes, and
        of reading its files once. watch: the answer is `tensors.operand_errors` on the first
        window, for one pass more; nothing else."""
        calls = [self._calls(torch.from_numpy(ids)[None]) for ids in windows]
        states = [hidden for hidden, _ in calls]
        rows: list[dict[str, Any]] = []
        with recorders(self.model):
            plain = self._calls(torch.from_numpy(windows[0])[None])[0] if watch else None
        for number, block in enumerate(self._blocks):
            with self._loaded(block):
                if plain is not None:
                    positional, named = calls[0][1][number]
                    with recorders(block) as found:
                        out = block(plain, *positional, **named)
                    plain = out[0] if isinstance(out, tuple) else out
                    rows += error_rows(found)
                for i, (_, arguments) in enumerate(calls):
                    positional, named = arguments[number]
                    out = block(states[i], *positional, **named)
                    self._tuple = isinstance(out, tuple)
                    states[i] = out[0] if self._tuple else out
                    if progress:
                        progress(number * len(calls) + i + 1, len(self._blocks) * len(calls))
        self._states = {ids.tobytes(): state for ids, state in zip(windows, states, strict=True)}
        if plain is None:
            return []
        with recorders(self.model) as found:
            self._ended(torch.from_numpy(windows[0])[None], plain)
        order = {path: number for number, path in enumerate(self._names.values())}
        return sorted(rows + error_rows(found), key=lambda row: order[row["path"]])

    def __call__(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        """The model's answer for a window that `prepare` has seen."""
        state = self._states.get(input_ids[0].numpy().tobytes())
        if state is None:
            raise LowprecError("a streamed model answers for the windows that it was prepared for")
        return self._ended(input_ids, state, use_cache)

    def _ended(self, input_ids: Tensor, state: Tensor, use_cache: bool = False) -> Any:
        """The model's answer where `state` comes out of its last block."""

        def passed(_number: int, _hidden: Tensor, *_args: Any, **_kwargs: Any) -> Any:
            return (state,) if self._tuple else state

        with self._replaced(passed):
            return self.model(input_ids=input_ids, use_cache=use_cache)

    def close(self) -> None:
        """Take the recipe off; the weights go with the object."""
        unwrap(self.model)

    def _calls(self, ids: Tensor) -> tuple[Tensor, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
        """What the first block is given, and every block's other arguments."""
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        first: list[Tensor] = []

        def record(number: int, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            first.append(hidden)
            seen.append((args, kwargs))
            if number == len(self._blocks) - 1:
                raise _Stop
            return hidden

        with self._replaced(record):
            try:
                self.model(input_ids=ids, use_cache=False)
            except _Stop:
                return first[0], seen
        raise LowprecError(f"{type(self.model).__name__}: not every block runs; not streamed")

    @contextmanager
    def _replaced(self, forward: Callable[..., Any]) -> Iterator[None]:
        """Something else in the place of every block's forward."""
        for number, block in enumerate(self._blocks):
            vars(block)["forward"] = lambda *args, number=number, **kwargs: forward(
                number, *args, **kwargs
            )
        try:
            yield
        finally:
            for block in self._blocks:
                del vars(block)["forward"]

    @contextmanager
    def _loaded(self, block: nn.Module) -> Iterator[None]:
        self._files.load(block, f"{self._names[id(block)]}.", lambda _: True)
        try:
            yield
        finally:
            for module in block.modules():
                for name, p in module.named_parameters(recurse=False):
                    setattr(module, name, _frozen(torch.empty_like(p, device="meta")))
                if isinstance(module, Emulated):
                    for site in sites_of(module):
                        site.weights.forget()


class _Weights:
    """The tensors of a folder's safetensors files, by name."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from safetensors import safe_open

        self._folder, self._dtype = folder, dtype
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def load(self, module: nn.Module, prefix: str, wanted: Callable[[nn.Parameter], bool]) -> None:
        """Fill the module's parameters; of tied ones the first, under any of their names."""
        from safetensors import safe_open

        names: dict[int, list[str]] = {}
        for name, p in module.named_parameters(remove_duplicate=False):
            if wanted(p):
                names.setdefault(id(p), []).append(name)
        for some in names.values():
            stored = next((n for n in some if prefix + n in self._files), None)
            if stored is None:
                if any(n in _tied(module) for n in some):
                    continue
                raise LowprecError(
                    f"{self._folder}: no tensor {prefix + some[0]!r}; its weights are stored "
                    "otherwise than the model holds them, and are not streamed"
                )
            with safe_open(self._files[prefix + stored], "pt") as file:
                tensor = _frozen(file.get_tensor(prefix + stored).to(self._dtype))
            for name in some:
                owner, _, last = name.rpartition(".")
                setattr(module.get_submodule(owner), last, tensor)


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _tied(module: nn.Module) -> set[str]:
    """Names of parameters that `tie_weights` fills."""
    found = getattr(module, "_tied_weights_keys", None)
    return set(found) if found and module.config.tie_word_embeddings else set()


def _skeleton(folder: Path, dtype: torch.dtype) -> Any:
    """The model with its buffers, its parameters without memory."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with init_empty_weights(include_buffers=False):
            return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LowprecError(f"{folder}: not loadable ({reason})") from None


def _blocks_of(model: Any, folder: Path) -> list[nn.Module]:
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise LowprecError(f"{folder}: {type(model).__name__} has no model.layers; not streamed")
    return list(layers)
