"""Workload: the operations that a model performs, recorded from the model itself.

Counts are of elements and of multiply-accumulates, never of bytes of a particular format: the
same workload is priced under any recipe. 1 MAC is 2 FLOP.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lowprec.spec.base import Spec

Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]


class Matmul(Spec):
    """`batch` products x_MK @ w_NK.T of the module at `path`.

    weight=True: the second operand is a parameter, and `experts` is the number of distinct w_NK
    that are stored: 1 but for a mixture of experts, where each token has `top_k` of the `m` rows,
    every one for another expert. weight=False: both operands are activations.
    """

    kind: Literal["matmul"]
    path: str
    m: Size
    n: Size
    k: Size
    batch: Size = 1
    weight: bool = True
    experts: Size = 1
    top_k: Size = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def distinct_weights(self) -> float:
        """Expected number of distinct w_NK that are read: all tokens choose uniformly at random
        `top_k` of `experts` (m = tokens * top_k), so an expert is idle with probability
        (1 - top_k / experts) ** tokens."""
        if self.experts == 1:
            return 1.0
        tokens = self.m / self.top_k
        idle: float = (1.0 - self.top_k / self.experts) ** tokens
        return self.experts * (1.0 - idle)


class Attention(Spec):
    """Scaled dot products of `queries` new positions with `keys` positions of the KV cache."""

    kind: Literal["attention"]
    path: str
    batch: Size
    heads: Size
    kv_heads: Size
    queries: Size
    keys: Size
    head_dim: Size
    value_dim: Size
    causal: bool

    @property
    def flops(self) -> int:
        """Of both matmuls, over the positions that the causal mask leaves."""
        pairs = self.queries * self.keys
        if self.causal:
            pairs -= self.queries * (self.queries - 1) // 2
        return 2 * self.batch * self.heads * pairs * (self.head_dim + self.value_dim)

    @property
    def kv_elements(self) -> int:
        """Elements of K and V that are read."""
        return self.batch * self.kv_heads * self.keys * (self.head_dim + self.value_dim)

    @property
    def q_elements(self) -> int:
        """Elements of Q read and of the output written."""
        return self.batch * self.heads * self.queries * (self.head_dim + self.value_dim)


class Vector(Spec):
    """Elementwise operations and reductions of one module: elements read and written."""

    kind: Literal["vector"]
    path: str
    name: str
    read: Count
    written: Count

    @property
    def flops(self) -> int:
        return 0


class Embedding(Spec):
    """`rows` rows of `width` elements gathered from a table."""

    kind: Literal["embedding"]
    path: str
    rows: Size
    width: Size

    @property
    def flops(self) -> int:
        return 0


Op = Annotated[Matmul | Attention | Vector | Embedding, Field(discriminator="kind")]


class Workload(Spec):
    """One forward pass: `batch` sequences of `tokens` new tokens behind `context` cached ones."""

    model: str
    phase: Literal["prefill", "decode"]
    batch: Size
    tokens: Size
    context: Count
    dtype: str
    ops: tuple[Op, ...]

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.ops)

    @property
    def new_tokens(self) -> int:
        """Tokens that one pass produces or consumes: the denominator of tokens per second."""
        return self.batch * self.tokens
