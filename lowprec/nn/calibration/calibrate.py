"""Calibration: what static scales, smoothing, outlier channels and GPTQ need to know of the
activations, measured on inputs, kept as plain tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.errors import LowprecError, did_you_mean
from lowprec.nn.calibration.gptq import Rounded
from lowprec.nn.calibration.observers import Method
from lowprec.nn.calibration.scales import scale_shape
from lowprec.nn.calibration.statistics import Budget, Channels, Statistics
from lowprec.nn.emulation import Emulated, sites_of
from lowprec.nn.site import Site
from lowprec.spec import OPERANDS, Quantizer

Progress = Callable[[int, int], None]
_KIND = "lowprec calibration 1"


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found. Keys are ``path operation.name``, such as
    ``model.layers.0.mlp.up_proj linear.activation``.

    tensors: static scales by operand; ``smooth``, the factors s (K,); ``outliers``, int64 places
    along K; ``gptq.0`` (``.1`` ... of experts), code points of the weight's shape. notes: for each,
    the quantizer or transform that it is for.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        from safetensors.torch import save_file

        metadata = {"kind": _KIND, "notes": json.dumps(self.notes)}
        save_file({k: t.contiguous() for k, t in self.tensors.items()}, path, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what `save` wrote; LowprecError for any other file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("kind") != _KIND:
                    raise LowprecError(f"{path}: no calibration, which says kind={_KIND!r}")
                notes = json.loads(metadata.get("notes", ""))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            if isinstance(error, LowprecError):
                raise
            raise LowprecError(f"{path}: {str(error).splitlines()[0]}") from None
        if not isinstance(notes, dict) or notes.keys() != tensors.keys():
            raise LowprecError(f"{path}: its notes are not those of its tensors")
        return cls(tensors, notes)


def calibrate(
    model: nn.Module,
    batches: Iterable[Any] | Calibration | str | Path,
    *,
    method: str = "max",
    memory: int = 4 << 30,
    progress: Progress | None = None,
) -> Calibration:
    """Measure, on `batches`, what the wrapped `model`'s recipe needs, and use it from now on.

    batches: inputs, each a tensor, a tuple of arguments or a dict of named ones; read once and
    kept. Or a calibration, or its file, that is applied without running anything.
    The model runs unquantized, in evaluation mode and without gradients, once for all static scales
    and Hessians; once more before it where a transform smooths or has outliers, since what follows
    depends on them; and again while Hessians (4 K^2 bytes a weight) are left that did not fit
    `memory` bytes, at least one a pass. Every row counts, also of padding.
    method: how the largest magnitude is chosen that a static scale is made for: ``max``,
    ``percentile:99.9`` or ``mse``; see `lowprec.nn.calibration.observers`. progress: called with
    the batches done and their number, from 1 again in every pass.
    What was calibrated before is forgotten. A site that no batch reaches gets nothing, and says so
    when it is used. LowprecError: the model is not wrapped; no batches; NaN or Inf; a calibration
    of another model or recipe, by the name of the site.
    """
    sites = _sites(model)
    if isinstance(batches, str | Path):
        batches = Calibration.load(batches)
    if isinstance(batches, Calibration):
        _apply(batches, sites)
        return batches
    chosen, inputs = Method.parse(method), list(batches)
    if not inputs:
        raise LowprecError("calibrate: no batches")
    for site, _ in sites.values():
        _forget(site)

    def run(statistics: dict[Site, Any]) -> None:
        with _watched(model, sites, statistics):
            for done, batch in enumerate(inputs, 1):
                _call(model, batch)
                if progress is not None:
                    progress(done, len(inputs))

    channels = {site: Channels(site) for site, _ in sites.values() if _has_channels(site)}
    if channels:
        run(channels)
        for each in channels.values():
            each.finish()
    found = {site: Statistics(site, chosen, weight) for site, weight in sites.values()}
    found = {site: each for site, each in found.items() if each.wanted}
    while found:
        budget = Budget(memory)
        for each in found.values():
            each.begin(budget)
        run(found)
        for each in found.values():
            each.finish()
        found = {site: each for site, each in found.items() if each.deferred}
    return _collected(sites)


def _sites(model: nn.Module) -> dict[str, tuple[Site, nn.Parameter | None]]:
    """Every site of a wrapped model, by name, with the parameter that it multiplies by."""
    found = {}
    for module in model.modules():
        if isinstance(module, Emulated):
            for parameter, name, site in sites_of(module).named():
                found[name] = site, module._parameters.get(parameter)
    if not found:
        raise LowprecError("calibrate: the model is not wrapped; lowprec.wrap(model, recipe) first")
    return found


def _has_channels(site: Site) -> bool:
    if site.transform is None:
        return False
    spec = site.transform.spec
    return spec.smooth is not None or spec.outliers is not None


def _forget(site: Site) -> None:
    site.scales.clear()
    site.weights.forget()
    if site.transform is not None:
        site.transform.factors = site.transform.channels = None
        site.transform.rounded = {}


class _Nothing:
    """The statistics of a site that needs none: it runs unquantized."""

    def see(self, name: str, x: Tensor, axis: int) -> None:
        pass

    def multiplied(self, *_: Any) -> None:
        pass


@contextmanager
def _watched(
    model: nn.Module, sites: dict[str, tuple[Site, Any]], statistics: dict[Site, Any]
) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for site, _ in sites.values():
        site.statistics = statistics.get(site, _Nothing())
    try:
        with torch.no_grad():
            yield
    finally:
        for site, _ in sites.values():
            site.statistics = None
        for module, training in modes.items():
            module.training = training


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple | list):
        model(*batch)
    else:
        model(batch)


def _collected(sites: dict[str, tuple[Site, Any]]) -> Calibration:
    tensors = {
        f"{name}.{key}": tensor
        for name, (site, _) in sites.items()
        for key, tensor in _state(site).items()
    }
    notes = {
        f"{name}.{key}": _note(site, key)
        for name, (site, _) in sites.items()
        for key in _state(site)
    }
    return Calibration(tensors, notes)


def _state(site: Site) -> dict[str, Tensor]:
    found = dict(site.scales)
    if (own := site.transform) is not None:
        found |= {} if own.factors is None else {"smooth": own.factors}
        found |= {} if own.channels is None else {"outliers": own.channels}
        found |= {f"gptq.{place}": each.codes for place, each in own.rounded.items()}
    return found


def _note(site: Site, key: str) -> str:
    """What a tensor is for: it must be the same where it is used."""
    quantizer: Quantizer | None = getattr(site.rule, key, None) if key in site.scales else None
    if quantizer is not None:
        return quantizer.spell()
    assert site.transform is not None
    kind, _, place = key.partition(".")
    if kind == "gptq":
        weight = site.rule.weight
        assert weight is not None
        digest = site.transform.rounded[int(place)].digest
        return f"{weight.spell()} transform={site.transform.spec.digest[:16]} crc32={digest:08x}"
    return f"{kind}={getattr(site.transform.spec, kind)}"


def _apply(calibration: Calibration, sites: dict[str, tuple[Site, nn.Parameter | None]]) -> None:
    """All of it or, with a LowprecError, nothing."""
    kept = {name: (site, _taken(site)) for name, (site, _) in sites.items()}
    for site, _ in kept.values():
        _forget(site)
    try:
        for key, tensor in calibration.tensors.items():
            name, _, what = key.partition(" ")
            operation, _, what = what.partition(".")
            name = f"{name} {operation}"
            if name not in sites:
                raise LowprecError(
                    f"calibration: {key}: the recipe has no such site{did_you_mean(name, sites)}"
                )
            _set(key, *sites[name], what, tensor, calibration.notes.get(key, ""))
    except LowprecError:
        for site, state in kept.values():
            _restore(site, state)
        raise


def _taken(site: Site) -> tuple[Any, ...]:
    own = site.transform
    return dict(site.scales), (own and (own.factors, own.channels, own.rounded))


def _restore(site: Site, state: tuple[Any, ...]) -> None:
    _forget(site)
    site.scales.update(state[0])
    if site.transform is not None:
        site.transform.factors, site.transform.channels, site.transform.rounded = state[1]


def _set(
    key: str, site: Site, weight: nn.Parameter | None, what: str, tensor: Tensor, note: str
) -> None:
    """Put one tensor where it belongs, if it fits there."""
    kind, _, place = what.partition(".")
    own, quantizer = site.transform, getattr(site.rule, kind, None)
    if kind in OPERANDS[site.operation]:
        if not isinstance(quantizer, Quantizer) or quantizer.rule != "static":
            raise LowprecError(f"calibration: {key}: the recipe has no static quantizer there")
        _require(tensor.dim() < 2 or kind == "weight", key, tensor, "rank 0 or 1")
        if kind == "weight" and weight is not None:
            allowed = [scale_shape(quantizer, tuple(weight.shape), axis) for axis in (-1, -2)]
            _require(tuple(tensor.shape) in allowed, key, tensor, f"shape {allowed[0]}")
        site.scales[kind] = tensor
    elif own is not None and kind == "smooth" and own.spec.smooth is not None:
        _require_channels(key, tensor, weight)
        own.factors = tensor
    elif own is not None and kind == "outliers" and own.spec.outliers is not None:
        _require(tensor.shape == (own.spec.outliers,), key, tensor, f"{own.spec.outliers} places")
        own.channels = tensor
    elif own is not None and kind == "gptq" and own.spec.gptq and place.isdecimal():
        if weight is not None:
            shapes = (tuple(weight.shape[-2:]), tuple(weight.shape[-2:])[::-1])
            _require(tuple(tensor.shape) in shapes, key, tensor, f"shape {shapes[0]}")
        digest = note.rpartition("crc32=")[2]
        try:
            own.rounded[int(place)] = Rounded(tensor, int(digest, 16))
        except ValueError:
            raise LowprecError(f"calibration: {key}: its note has no crc32") from None
    else:
        raise LowprecError(f"calibration: {key}: the recipe's rule asks for no such thing")
    if (here := _note(site, what)) != note:
        raise LowprecError(f"calibration: {key} is for {note}, and the recipe says {here}")


def _require_channels(key: str, tensor: Tensor, weight: nn.Parameter | None) -> None:
    fits = tensor.dim() == 1 and (weight is None or len(tensor) in weight.shape)
    _require(fits, key, tensor, "one number a channel")


def _require(fits: bool, key: str, tensor: Tensor, expected: str) -> None:
    if not fits:
        raise LowprecError(
            f"calibration: {key} has the shape {tuple(tensor.shape)}; expected {expected}"
        )
