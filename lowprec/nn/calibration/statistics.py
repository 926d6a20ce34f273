"""What one site measures during a calibration pass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.nn.calibration.gptq import Rounded, fingerprint, gptq, place
from lowprec.nn.calibration.observers import Activations, Method, weight_scale
from lowprec.nn.site import Site
from lowprec.spec import OPERANDS, Quantizer


class Channels:
    """The largest magnitude of each channel along K, of activations and weights."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.x: Tensor | None = None
        self.w: Tensor | None = None
        self._seen: set[tuple[int, int]] = set()

    def see(self, name: str, x: Tensor, axis: int) -> None:
        pass

    def multiplied(
        self, x: Tensor, _changed: Tensor, x_axis: int, weight: Tensor, axis: int
    ) -> None:
        if x.numel():
            self.x = _larger(self.x, _channels(x, x_axis))
        whole, axis = _whole(weight, axis)
        if (whole.data_ptr(), axis) not in self._seen:
            self._seen.add((whole.data_ptr(), axis))
            self.w = _larger(self.w, _channels(whole, axis))

    def finish(self) -> None:
        """Set the site's factors and places."""
        own = self.site.transform
        if own is None or self.x is None or self.w is None:
            return
        x, w = self.x, self.w
        if not bool(x.isfinite().all() and w.isfinite().all()):
            raise LowprecError(f"{own.where}: NaN or Inf in what it was calibrated on")
        if (alpha := own.spec.smooth) is not None:
            factors = x.double() ** alpha / w.double() ** (1 - alpha)
            usable = (x > 0) & (w > 0)
            own.factors = torch.where(usable, factors, 1.0).float().cpu()
            x = x / own.factors.to(x)
        if (count := own.spec.outliers) is not None:
            if count >= len(x):
                raise LowprecError(f"{own.where}: {count} outliers of {len(x)} channels")
            order = x.argsort(descending=True, stable=True)
            own.channels = order[:count].sort().values.cpu()


def _channels(x: Tensor, axis: int) -> Tensor:
    return x.detach().abs().movedim(axis, -1).flatten(0, -2).amax(0).float()


def _larger(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else torch.maximum(old, new)


def _whole(weight: Tensor, axis: int) -> tuple[Tensor, int]:
    """All experts of the parameter that `weight` is one expert of, and K's dimension in it."""
    whole = weight._base
    if whole is None or whole.dim() < 3 or weight.dim() > 2:
        return weight, axis
    stride, size = weight.stride(axis), weight.shape[axis]
    same = [d for d in (-1, -2) if whole.stride(d) == stride and whole.shape[d] == size]
    return whole, same[0]


@dataclass
class Budget:
    """Bytes of Hessians that a pass may hold; the first fits whatever its size."""

    bytes: int
    taken: int = 0

    def take(self, wanted: int) -> bool:
        if self.taken and self.taken + wanted > self.bytes:
            return False
        self.taken += wanted
        return True


@dataclass
class _Hessian:
    weight: Tensor
    axis: int
    sum: Tensor


@dataclass
class Statistics:
    """Static scales and Hessians of one site.

    deferred: weights whose Hessian must wait for another pass.
    """

    site: Site
    method: Method
    parameter: Tensor | None
    deferred: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._budget = Budget(0)
        self._hessians: dict[int, _Hessian] = {}
        self._scaled = False
        self._static: dict[str, Quantizer] = {
            name: quantizer
            for name, quantizer in self.site.rule.quantizers()
            if quantizer.rule == "static" and name in OPERANDS[self.site.operation]
        }
        if self.site.rule.delayed is not None:
            self._static = {}
        experts = self.parameter is not None and self.parameter.dim() > 2
        if "weight" in self._static and experts and self.site.operation == "linear":
            raise LowprecError(
                f"{self.site.path}: weight={self._static['weight'].spell()}: experts' weights "
                "have no calibrated scales; expected another rule"
            )
        self._observers = {
            name: Activations(quantizer, self.method, f"{self.site.path} {name}")
            for name, quantizer in self._static.items()
            if name != "weight"
        }

    @property
    def wanted(self) -> bool:
        """Whether the site needs a pass."""
        own = self.site.transform
        return bool(self._static) or (own is not None and own.spec.gptq)

    def begin(self, budget: Budget) -> None:
        """A pass begins, whose Hessians `budget` allows."""
        self._budget, self.deferred = budget, set()

    def see(self, name: str, x: Tensor, axis: int) -> None:
        if self._scaled:
            return
        if name in self._observers:
            self._observers[name].see(x, axis)
        elif name in self._static and name not in self.site.scales:
            where = f"{self.site.path} weight"
            found = weight_scale(x, self._static[name], axis, self.method, where)
            self.site.scales[name] = found

    def multiplied(
        self, _x: Tensor, changed: Tensor, x_axis: int, weight: Tensor, axis: int
    ) -> None:
        own = self.site.transform
        if own is None or not own.spec.gptq:
            return
        if weight.dim() < 3:
            self._add(changed, x_axis, weight, axis)
        elif changed.dim() == 3 and len(changed) == len(weight):
            for each, matrix in zip(changed, weight, strict=True):
                self._add(each, x_axis, matrix, axis)
        else:
            raise LowprecError(
                f"{own.where}: gptq needs to know which rows are which expert's; run "
                "model.set_experts_implementation('eager') first"
            )

    def _add(self, x: Tensor, x_axis: int, weight: Tensor, axis: int) -> None:
        own, key = self.site.transform, place(weight)
        assert own is not None
        if key in own.rounded or key in self.deferred:
            return
        rows = x.detach().movedim(x_axis, -1).flatten(0, -2)
        size = rows.shape[-1]
        if key not in self._hessians:
            if not self._budget.take(rows.element_size() * size * size):
                self.deferred.add(key)
                return
            zeros = rows.new_zeros(size, size)
            self._hessians[key] = _Hessian(weight.detach(), axis, zeros)
        self._hessians[key].sum.addmm_(rows.T, rows)

    def finish(self) -> None:
        """Set the site's scales, and round the weights whose Hessians are complete."""
        for name, observer in self._observers.items():
            scale = None if self._scaled else observer.scale()
            if scale is not None:
                self.site.scales[name] = scale
        self._scaled = True
        for key in list(self._hessians):
            self._round(key, self._hessians.pop(key))

    def _round(self, key: int, found: _Hessian) -> None:
        own, quantizer = self.site.transform, self.site.rule.weight
        assert own is not None
        assert quantizer is not None
        scale = self.site.scales.get("weight")
        changed = own.weight(found.weight, found.axis).movedim(found.axis, -1)
        codes = gptq(changed, found.sum, quantizer, own.spec.damping, scale, own.where)
        codes = codes.movedim(-1, found.axis).contiguous()
        own.rounded[key] = Rounded(codes, fingerprint(found.weight))
