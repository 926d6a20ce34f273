"""What a rule does to activation and weight before they are quantized: see `Transform`.

Both are computed in float32 (float64 where they are), quantized there, and rounded to their own
dtype last. The transformed weight is quantized once and kept, as others are; while gradients are
asked of it, it is made anew, and gradients pass through the transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, fake_quantize, quantize
from lowprec.nn.calibration.gptq import Rounded, place, rounded, with_codes
from lowprec.nn.calibration.rotation import rotate, signs
from lowprec.nn.weights import are_small
from lowprec.spec import Quantizer, Transform

if TYPE_CHECKING:
    from lowprec.nn.site import Site

Pair = tuple[Tensor, Tensor]


class SiteTransform:
    """The transform at one site, with what calibration found for it.

    factors: s (K,), smooth's; the activation is divided by it. channels: int64, the outliers'
    places along K. rounded: GPTQ's codes, by the matrix's place in its parameter (0, or an
    expert's).
    """

    def __init__(self, spec: Transform, path: str) -> None:
        self.spec, self.where = spec, path or "the model"
        self.factors: Tensor | None = None
        self.channels: Tensor | None = None
        self.rounded: dict[int, Rounded] = {}
        self._signs = None if spec.rotation is None else signs(spec.rotation, spec.seed)

    def operands(self, site: Site, x: Tensor, weight: Tensor, x_axis: int, axis: int) -> Pair:
        """Activation and weight as they are multiplied, but for outliers; K is `x_axis` of the one
        and `axis` of the other."""
        changed = self.activation(x, x_axis)
        if site.statistics is None:
            self.require_calibration(x)
        else:
            site.statistics.multiplied(x, changed, x_axis, weight, axis)
        return site.operand("activation", changed, x_axis).to(x.dtype), self._weight(
            site, weight, axis
        )

    def outliers(
        self, site: Site, x: Tensor, weight: Tensor, x_axis: int, axis: int
    ) -> Pair | None:
        """The outlier channels of both, smoothed, and quantized by `outlier`; None without any."""
        if self.channels is None:
            return None
        quantizer = self.spec.outlier if site.statistics is None else None

        def apart(x: Tensor, axis: int, divide: bool) -> Tensor:
            x = self._smoothed(x, axis, divide).index_select(axis, self._places(x))
            return x if quantizer is None else site.quantize("outlier", quantizer, x, axis)

        found = self._kept(
            site,
            weight,
            ("outliers", axis),
            quantizer,
            lambda: apart(weight, axis, False),
        )
        return apart(x, x_axis, True).to(x.dtype), found

    def activation(self, x: Tensor, axis: int) -> Tensor:
        """`x`, smoothed, its outlier channels zero, and rotated; float32 or float64."""
        return self._basis(self._smoothed(x, axis, divide=True), axis)

    def weight(self, weight: Tensor, axis: int) -> Tensor:
        """`weight` likewise, so that their product stays what it was but for the outliers'."""
        return self._basis(self._smoothed(weight, axis), axis)

    def _smoothed(self, x: Tensor, axis: int, divide: bool = False) -> Tensor:
        x = x if x.dtype == torch.float64 else x.float()
        if self.factors is None:
            return x
        shape = [1] * x.dim()
        shape[axis] = -1
        factors = self.factors.to(x).view(shape)
        return x / factors if divide else x * factors

    def _basis(self, x: Tensor, axis: int) -> Tensor:
        if self.channels is not None:
            x = x.index_fill(axis, self._places(x), 0)
        return x if self._signs is None else rotate(x, self._signs, axis, self.where)

    def _places(self, x: Tensor) -> Tensor:
        assert self.channels is not None
        return self.channels.to(x.device)

    def _weight(self, site: Site, weight: Tensor, axis: int) -> Tensor:
        if site.statistics is not None:
            changed = self.weight(weight, axis)
            site.statistics.see("weight", changed, axis)
            return changed.to(weight.dtype)
        quantizer = site.rule.weight
        each = quantizer is not None and (quantizer.is_per_tensor or self.spec.gptq)
        if weight.dim() > 2 and each:
            return torch.stack([self._matrix(site, w, axis) for w in weight])
        return self._matrix(site, weight, axis)

    def _matrix(self, site: Site, weight: Tensor, axis: int) -> Tensor:
        """The transformed weight, quantized, in its own dtype."""
        quantizer, scale = site.rule.weight, site.scales.get("weight")

        def values() -> Tensor:
            changed = self.weight(weight, axis)
            if quantizer is None:
                return changed
            if self.spec.gptq and weight.device.type != "meta":
                return rounded(changed, weight, self._codes(weight), quantizer, axis, scale)
            return site.quantize("weight", quantizer, changed, axis)

        def codes() -> QTensor | Tensor:
            changed = self.weight(weight, axis)
            if quantizer is None:
                return changed.to(weight.dtype)
            if self.spec.gptq:
                return with_codes(changed, weight, self._codes(weight), quantizer, axis, scale)
            if are_small(quantizer) and not changed.isnan().any():
                return quantize(changed, quantizer, axis=axis, scale=scale)
            return fake_quantize(changed, quantizer, axis=axis, scale=scale).to(weight.dtype)

        return self._kept(site, weight, ("transformed", axis), quantizer, values, codes)

    def _kept(
        self,
        site: Site,
        weight: Tensor,
        what: tuple[Any, ...],
        quantizer: Quantizer | None,
        values: Callable[[], Tensor],
        codes: Callable[[], QTensor | Tensor] | None = None,
    ) -> Tensor:
        """What `values` gives; kept, as `codes` gives it, while the weight does not learn."""
        learning = torch.is_grad_enabled() and weight.requires_grad
        random = quantizer is not None and quantizer.projection.bits is not None
        if learning or random or torch.compiler.is_compiling() or weight.device.type == "meta":
            return values().to(weight.dtype)
        made = site.weights.kept(weight, what, codes or (lambda: values().to(weight.dtype)))
        if isinstance(made, QTensor):
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            return made.dequantize(wide).to(weight.dtype)
        assert made is not None
        return made

    def _codes(self, weight: Tensor) -> Rounded:
        found = self.rounded.get(place(weight))
        if found is None:
            raise LowprecError(
                f"{self.where}: no calibration batch reached the weight of expert {place(weight)}, "
                "so that gptq has not rounded it; run lowprec.calibrate(model, batches) with more"
            )
        return found

    def require_calibration(self, x: Tensor) -> None:
        """LowprecError where the transform needs statistics that nobody gave; the meta device needs
        none."""
        if x.device.type == "meta":
            return
        missing = [
            name
            for name, asked, found in (
                ("smooth", self.spec.smooth is not None, self.factors is not None),
                ("outliers", self.spec.outliers is not None, self.channels is not None),
                ("gptq", self.spec.gptq, bool(self.rounded)),
            )
            if asked and not found
        ]
        if missing:
            raise LowprecError(
                f"{self.where}: transform.{missing[0]} has no statistics yet; run "
                "lowprec.calibrate(model, batches) first"
            )


def with_outliers(
    site: Site,
    y: Tensor,
    operands: Pair,
    axes: tuple[int, int],
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """`y` and the `product` of the outlier channels of activation and weight, where the rule has
    some multiplied apart; `axes`: K of each."""
    if site.transform is None:
        return y
    pair = site.transform.outliers(site, *operands, *axes)
    return y if pair is None else y + product(*pair)
