"""The two matmuls of a linear operation's backward pass, each under its own quantizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowprec.errors import LowprecError
from lowprec.kernels import QTensor, matmul
from lowprec.nn.calibration.rotation import rotate, signs
from lowprec.nn.site import Site
from lowprec.spec import BlockFormat, InputGradient, Quantizer, WeightGradient

Pair = tuple[Tensor, Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]


def multiplied(
    site: Site,
    multiply: Multiply,
    operands: Pair,
    quantized: Pair,
    bias: Tensor | None = None,
    offsets: Tensor | None = None,
    always: bool = False,
) -> Tensor:
    """``multiply(*quantized)``, with gradients as the rule's input_gradient and weight_gradient
    say.

    operands: x (..., K) and w (K, N) or, one of each expert, (E, ..., K) and (E, K, N); with
    `offsets`, the ends of each expert's rows, x (T, K) and w (E, K, N). quantized: the same two as
    the forward pass multiplies them. bias: what `multiply` adds to the product.

    Without either rule, autograd's gradients of the quantized operands, straight through their
    quantizers. With one, what the other leaves out is multiplied as autograd does, bit for bit, and
    the gradient of the bias is always autograd's. There is no second derivative. always: these
    gradients without either rule too, where `multiply` is nothing that autograd knows.
    LowprecError for leading dimensions of x and w that differ.
    """
    rule = site.rule
    own = always or rule.input_gradient or rule.weight_gradient
    if not torch.is_grad_enabled() or not own:
        return multiply(*quantized)
    x, w = operands
    if w.dim() == 1:
        column = quantized[0], quantized[1].unsqueeze(-1)
        y = multiplied(
            site,
            lambda x, w: multiply(x, w.squeeze(-1)).unsqueeze(-1),
            (x, w.unsqueeze(-1)),
            column,
            bias,
        )
        return y.squeeze(-1)
    if w.dim() > 2 and offsets is None and x.shape[:-2] != w.shape[:-2]:
        raise LowprecError(
            f"{site.path or 'the model'}: gradients of x {list(x.shape)} times w {list(w.shape)}: "
            "expected the same leading dimensions"
        )
    if rule.delayed and torch.compiler.is_compiling():
        raise LowprecError(
            f"{site.path or 'the model'}: delayed: torch.compile lets no backward pass remember "
            "magnitudes; run it without"
        )
    work = Work(
        site,
        rule.input_gradient or InputGradient(),
        rule.weight_gradient or WeightGradient(),
        (_is_by_columns(x), _is_by_columns(w)),
        _seeds(site),
        offsets,
    )
    with torch.no_grad():
        xq, wq = quantized[0].detach(), quantized[1].detach()
        y = multiply(xq, wq)
    # Detached: autograd refuses to change in place what is a view since before.
    return _Differentiated.apply(y.detach(), x, w, bias, xq, wq, work)


@dataclass(frozen=True, eq=False)
class Work:
    """What a backward pass needs to know. Random bits are drawn before it runs, so that they do not
    depend on the order in which autograd visits the layers.

    by_columns: whether x and w lie in memory column by column. Autograd then computes the transpose
    of a gradient, which may add up in another order.
    """

    site: Site
    input_gradient: InputGradient
    weight_gradient: WeightGradient
    by_columns: tuple[bool, bool]
    seeds: dict[str, int | None]
    offsets: Tensor | None = None

    def quantized(
        self, name: str, quantizer: Quantizer | None, x: Tensor, axis: int, part: int | None = None
    ) -> Tensor:
        """`x` as the operand `name`, or that expert's part of it."""
        if quantizer is None or not x.numel():
            return x
        seed = self.seeds[name]
        if part is not None:
            seed, name = None if seed is None else seed + part, f"{name}.{part}"
        return self.site.quantize_with(seed, name, quantizer, x, axis, True)

    def codes(self, name: str, quantizer: Quantizer | None, x: Tensor) -> QTensor | Tensor:
        """`x` as the operand `name` of a datapath, blocks along its last axis."""
        if quantizer is None:
            return x
        return self.site.codes_with(self.seeds.get(name), name, quantizer, x.contiguous(), True)

    def of_forward(self, table: str, name: str) -> Quantizer | None:
        """The operand's quantizer; where it is left out, the forward's, if its scales serve the
        other axis."""
        given: Quantizer | None = getattr(getattr(self, table), name)
        found: Quantizer | None = given or getattr(self.site.rule, name, None)
        if given is None and found is not None and not _serves_both_axes(found):
            raise LowprecError(
                f"{table}: a datapath needs {name}, since the scales of the forward's "
                f"{found.spell()} are not along the other axis"
            )
        return found

    @property
    def originals(self) -> tuple[bool, bool]:
        """Whether x and w themselves are quantized, and not what the forward pass made of them."""
        to_x, to_w = self.input_gradient, self.weight_gradient
        activation = to_w.activation is not None or to_w.datapath is not None
        weight = to_x.weight is not None or to_x.datapath is not None
        return activation and not to_w.requantize, weight


def _serves_both_axes(quantizer: Quantizer) -> bool:
    """Whether a matrix and its transpose, blocked along their last axes, get the same values."""
    fmt = quantizer.format
    if quantizer.projection.bits is not None or quantizer.rule == "static":
        return False
    if not isinstance(fmt, BlockFormat):
        return True
    tile = not isinstance(fmt.block, str) and len(fmt.block) == 2 and len({*fmt.block}) == 1
    return (fmt.block == "tensor" or tile) and (fmt.outer is None or fmt.outer.block == "tensor")


def _seeds(site: Site) -> dict[str, int | None]:
    return {
        f"{table}.{name}": site.seed_for(f"{table}.{name}", quantizer)
        for table in ("input_gradient", "weight_gradient")
        for name, quantizer in getattr(site.rule, table) or ()
        if isinstance(quantizer, Quantizer)
    }


def _is_by_columns(x: Tensor) -> bool:
    return x.dim() == 2 and x.stride(0) == 1 and x.stride(1) == x.shape[0]


class _Differentiated(torch.autograd.Function):
    """The identity of y, with the gradients of x, w and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        xq: Tensor,
        wq: Tensor,
        work: Work,
    ) -> Tensor:
        ctx.mark_dirty(y)
        first, second = work.originals
        ctx.work, ctx.x_shape, ctx.w_dtype = work, x.shape, w.dtype
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.save_for_backward(x if first else xq, w if second else wq)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        _, wants_x, wants_w, wants_bias, *_ = ctx.needs_input_grad
        if w.dim() == 2:
            g, x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = _of_input(ctx.work, g, w).reshape(ctx.x_shape) if wants_x else None
        dw = _of_weight(ctx.work, g, x).to(ctx.w_dtype) if wants_w else None
        db = g.sum_to_size(ctx.bias_shape) if wants_bias else None
        return None, dx, dw, db, None, None, None


def _of_input(work: Work, g: Tensor, w: Tensor) -> Tensor:
    """Q(g) Q(w).T for g (..., N) and w (..., K, N)."""
    spec, name = work.input_gradient, "input_gradient.weight"
    if spec.datapath is not None:
        if work.offsets is None:
            return _under(work, "input_gradient", "gradient", g, "weight", w)
        experts = enumerate(_experts(work, g))
        return torch.cat(
            [_under(work, "input_gradient", "gradient", own, "weight", w[i]) for i, own in experts]
        )
    g = work.quantized("input_gradient.gradient", spec.gradient, g, -1)
    if w.dim() > 2 and spec.weight is not None and spec.weight.is_per_tensor:
        w = torch.stack(
            [work.quantized(name, spec.weight, each, -1, i) for i, each in enumerate(w)]
        )
    else:
        w = work.quantized(name, spec.weight, w, -1)
    return _product(g, w.mT, work.by_columns[0], work.offsets)


def _of_weight(work: Work, g: Tensor, x: Tensor) -> Tensor:
    """Q(x).T Q(g) for g (..., T, N) and x (..., T, K), both first rotated along T."""
    spec, offsets = work.weight_gradient, work.offsets
    if spec.datapath is not None:
        if offsets is None:
            return _weight_under(work, x, g)
        pairs = zip(_experts(work, x), _experts(work, g), strict=True)
        return torch.stack([_weight_under(work, *pair) for pair in pairs])
    if offsets is None or not (spec.gradient or spec.activation or spec.rotation):
        x, g = _along_tokens(work, x, g)
        return _product(x.mT, g, work.by_columns[1], offsets)
    pairs = zip(_experts(work, x), _experts(work, g), strict=True)
    parts = [_along_tokens(work, *pair, i) for i, pair in enumerate(pairs)]
    ends = torch.tensor([len(x) for x, _ in parts]).cumsum(0).to(offsets)
    x, g = (torch.cat(each) for each in zip(*parts, strict=True))
    return _product(x.mT, g, False, ends)


def _experts(work: Work, x: Tensor) -> tuple[Tensor, ...]:
    """The rows of each expert."""
    if torch.compiler.is_compiling():
        raise LowprecError(
            f"{work.site.path or 'the model'}: gradients of grouped experts depend on their "
            "numbers of tokens, which torch.compile does not know"
        )
    assert work.offsets is not None
    ends = work.offsets.tolist()
    return tuple(x[start:end] for start, end in zip([0, *ends], ends, strict=False))


def _weight_under(work: Work, x: Tensor, g: Tensor) -> Tensor:
    x, g = _rotated_along_tokens(work, x, g)
    return _under(work, "weight_gradient", "activation", x.mT, "gradient", g.mT)


def _under(work: Work, table: str, first: str, a: Tensor, second: str, b: Tensor) -> Tensor:
    """a @ b.T under the table's datapath, as `lowprec.kernels.matmul` multiplies."""
    path = getattr(work, table).datapath
    if not a.numel() or not b.numel():
        return a.new_zeros(*a.shape[:-1], b.shape[-2])
    try:
        operands = [(n, work.of_forward(table, n), x) for n, x in ((first, a), (second, b))]
        if torch.compiler.is_compiling() or a.device.type == "meta":
            return matmul(a, b, a=operands[0][1], w=operands[1][1], datapath=path)
        coded = [work.codes(f"{table}.{n}", q, x) for n, q, x in operands]
        return matmul(*coded, datapath=path).to(a.dtype)
    except LowprecError as error:
        raise LowprecError(f"{work.site.path or 'the model'}: {error}") from None


def _along_tokens(work: Work, x: Tensor, g: Tensor, part: int | None = None) -> Pair:
    """Both operands of the weight's gradient, rotated and quantized along the tokens."""
    spec = work.weight_gradient
    x, g = _rotated_along_tokens(work, x, g)
    x = work.quantized("weight_gradient.activation", spec.activation, x, -2, part)
    return x, work.quantized("weight_gradient.gradient", spec.gradient, g, -2, part)


def _rotated_along_tokens(work: Work, x: Tensor, g: Tensor) -> Pair:
    spec = work.weight_gradient
    if spec.rotation is None:
        return x, g
    d = signs(spec.rotation, spec.seed)
    return _rotated(x, d), _rotated(g, d)


def _rotated(x: Tensor, d: Tensor) -> Tensor:
    """In float32 at least, zeros filling the last block: they add nothing to the product."""
    wide = x if x.dtype == torch.float64 else x.float()
    return rotate(F.pad(wide, (0, 0, 0, -x.shape[-2] % len(d))), d, axis=-2)


def _product(a: Tensor, b: Tensor, transposed: bool, offsets: Tensor | None) -> Tensor:
    if offsets is not None:
        return F.grouped_mm(a, b, offs=offsets)
    return (b.mT @ a.mT).mT if transposed else a @ b
