"""What quantizing one operand of one linear layer would cost, without running the model so.

One backward pass, with the next tokens drawn from the model itself, gives each layer's gradient of
the log-likelihood; the error that a quantizer makes in the layer's output costs, to second order,
half its square under the Fisher information, which is the KL divergence of the two models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from lowprec.kernels import fake_quantize
from lowprec.spec.quantizer import Quantizer

Operand = str  # "weight" or "activation"
Key = tuple[str, Operand, int]


@dataclass
class Noise:
    """Of one operand under one quantizer. With e_t the error in the output at token t, g_t the
    gradient there, both vectors over the output channels, y_t the output, T tokens:

    fisher: 1/(2T) sum_t (g_t . e_t)^2, the second-order KL divergence in nats per token if the
    errors of different tokens are uncorrelated. diagonal: 1/(2T) sum_t sum_o g_to^2 e_to^2, which
    neglects the correlation of channels too. relative: sum e^2 / sum y^2, the inverse of the
    output's signal-to-quantization-noise ratio; it knows nothing of the layer's weight in the
    whole.
    """

    fisher: float = 0.0
    diagonal: float = 0.0
    relative: float = 0.0

    def add(self, other: Noise, share: float) -> None:
        for field in fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + share * getattr(other, name))


PROXIES = tuple(field.name for field in fields(Noise))


def measure_noise(
    model: nn.Module,
    paths: Sequence[str],
    quantizers: Sequence[Quantizer],
    operands: Sequence[Operand],
    ids: Any,
    seed: int,
    update: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[Key, Noise]:
    """The noise of every linear layer of `paths`, operand and number of a quantizer, averaged over
    the windows `ids` [n, L] (int64).

    Memory: one window's inputs of all these layers, and no gradient of a weight. Time per window:
    a forward and a backward pass, and for each operand and quantizer another product of the
    layer's size.
    """
    found: dict[Key, Noise] = {}
    modules = {path: model.get_submodule(path) for path in paths}
    frozen = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    for p in frozen:
        p.requires_grad_(False)
    try:
        for done, row in enumerate(ids, 1):
            window = _Window(quantizers, operands)
            hooks = [m.register_forward_hook(window.hook(path)) for path, m in modules.items()]
            # The embeddings are where the gradients begin, as no weight has one.
            first = model.get_input_embeddings().register_forward_hook(_begin)
            try:
                logits = model(input_ids=torch.as_tensor(row)[None], use_cache=False).logits[0]
                _sampled(logits, generator).backward()
            finally:
                for hook in (*hooks, first):
                    hook.remove()
            for key, noise in window.noise.items():
                found.setdefault(key, Noise()).add(noise, 1 / len(ids))
            update(done, len(ids))
    finally:
        for p in frozen:
            p.requires_grad_(True)
    return found


def _begin(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output.detach().requires_grad_(True)


def _sampled(logits: Tensor, generator: torch.Generator) -> Tensor:
    """-ln p summed over one draw at each position."""
    logs = logits.float().log_softmax(-1)
    drawn = torch.multinomial(logs.detach().exp(), 1, generator=generator)
    return -logs.gather(-1, drawn).sum()


class _Window:
    """The noise of one window, measured as the backward pass reaches each layer's output."""

    def __init__(self, quantizers: Sequence[Quantizer], operands: Sequence[Operand]) -> None:
        self.quantizers, self.operands = quantizers, operands
        self.noise: dict[Key, Noise] = {}

    def hook(self, path: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def forward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            x = inputs[0].detach()
            power = output.detach().double().square().sum().item()

            def backward(gradient: Tensor) -> None:
                self._measure(path, module, x, gradient, power)

            output.register_hook(backward)

        return forward

    def _measure(self, path: str, module: Any, x: Tensor, gradient: Tensor, power: float) -> None:
        tokens = x.numel() // x.shape[-1]
        g = gradient.reshape(tokens, -1)
        for number, quantizer in enumerate(self.quantizers):
            for operand in self.operands:
                with torch.no_grad():
                    error = _error(module.weight, x, operand, quantizer).reshape(tokens, -1)
                product = (g * error).double()
                square = error.double().square().sum().item()
                self.noise[path, operand, number] = Noise(
                    fisher=product.sum(-1).square().sum().item() / (2 * tokens),
                    diagonal=product.square().sum().item() / (2 * tokens),
                    relative=square / power if power else 0.0,
                )


def _error(weight: Tensor, x: Tensor, operand: Operand, quantizer: Quantizer) -> Tensor:
    """What the quantized operand changes in x w.T."""
    if operand == "weight":
        return nn.functional.linear(x, fake_quantize(weight, quantizer) - weight)
    return nn.functional.linear(fake_quantize(x, quantizer) - x, weight)
