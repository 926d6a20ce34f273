"""A layer of experts, all in two parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """Gated MLPs of which a router picks some for each token; computed as grouped matmuls.

    gate_up_proj: (experts, 2 intermediate, hidden), the gates first; down_proj: (experts, hidden,
    intermediate). No biases.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: Callable[[Tensor], Tensor] = F.silu,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_experts, self.activation_function = num_experts, activation
        up = (num_experts, 2 * intermediate_size, hidden_size)
        down = (num_experts, hidden_size, intermediate_size)
        self.gate_up_proj = nn.Parameter(torch.empty(up, device=device, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(down, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform within 1 / sqrt(K), as nn.Linear's."""
        for weight in (self.gate_up_proj, self.down_proj):
            bound = 1 / math.sqrt(weight.shape[-1])
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """The weighted sum of each token's experts.

        hidden: (tokens, hidden). top_k_index, top_k_weights: (tokens, k).
        """
        expert = top_k_index.reshape(-1)
        order = torch.argsort(expert, stable=True)
        every = torch.arange(self.num_experts, device=expert.device)
        ends = (expert[:, None] == every).sum(0).cumsum(0, dtype=torch.int32)
        token = order // top_k_index.shape[-1]
        gate, up = F.grouped_mm(hidden[token], self.gate_up_proj.mT, offs=ends).chunk(2, -1)
        inner = self.activation_function(gate) * up
        out = F.grouped_mm(inner, self.down_proj.mT, offs=ends)
        out = out * top_k_weights.reshape(-1, 1)[order].to(out.dtype)
        return torch.zeros_like(hidden).index_add(0, token, out)

    def extra_repr(self) -> str:
        experts, hidden, intermediate = self.down_proj.shape
        return f"{experts}, hidden_size={hidden}, intermediate_size={intermediate}"
