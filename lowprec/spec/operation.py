"""The operations that a workload is made of: counts of elements and of multiply-accumulates.

Never bytes of a particular format: the same operation is priced under any recipe. 1 MAC is 2 FLOP.
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
    every one for another expert. weight=False: both operands are activations. tied_to: path of
    the parameter that the weight shares its storage with, such as the embedding table.
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
    tied_to: str | None = None

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

    @property
    def weight_elements(self) -> int:
        """Elements of the stored weight, of all experts; 0 without one."""
        return self.experts * self.n * self.k if self.weight else 0

    @property
    def activation_elements(self) -> int:
        """Elements of x and of the result, and of the second operand if that is an activation."""
        second = 0 if self.weight else self.n * self.k
        return self.batch * (self.m * self.k + self.m * self.n + second)


class Attention(Spec):
    """Scaled dot products of `queries` new positions with `keys` positions of the KV cache.

    window: how many positions a query sees at most, its own included; keys outside all queries'
    windows are not among `keys`. value_in_key: V is the first `value_dim` elements of K, so that
    it is not read a second time (the absorbed form of multi-head latent attention). cached:
    elements per position that the cache keeps where it does not keep K and V themselves (the
    latent).
    """

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
    window: Size | None = None
    value_in_key: bool = False
    cached: Size | None = None

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that the mask leaves, of one head and sequence."""
        if not self.causal:
            return self.queries * self.keys
        behind = self.keys - self.queries  # the first query sees these and itself
        window = self.window or self.keys
        growing = min(max(window - behind, 0), self.queries)
        grown = growing * behind + growing * (growing + 1) // 2
        return grown + (self.queries - growing) * window

    @property
    def flops(self) -> int:
        """Of both matmuls, over the pairs that the mask leaves."""
        return 2 * self.batch * self.heads * self.pairs * (self.head_dim + self.value_dim)

    @property
    def kv_elements(self) -> int:
        """Elements of K and V that are read."""
        return self.batch * self.keys * self._kv_per_position

    @property
    def cache_elements(self) -> int:
        """Elements that the KV cache holds of these positions once the pass is over."""
        return self.batch * self.keys * (self.cached or self._kv_per_position)

    @property
    def _kv_per_position(self) -> int:
        return self.kv_heads * (self.head_dim + (0 if self.value_in_key else self.value_dim))

    @property
    def q_elements(self) -> int:
        """Elements of Q read and of the output written."""
        return self.batch * self.heads * self.queries * (self.head_dim + self.value_dim)

    @property
    def activation_elements(self) -> int:
        return self.q_elements


class Vector(Spec):
    """Elementwise operations, reductions and recurrences of one module: elements read and written.

    flops: of products that no matrix unit computes: depthwise convolutions and the scans of
    state-space models. state: elements of `read` that are a recurrent state, which is kept from
    pass to pass and written back.
    """

    kind: Literal["vector"]
    path: str
    name: str
    read: Count
    written: Count
    flops: Count = 0
    state: Count = 0

    @property
    def activation_elements(self) -> int:
        return self.read + self.written - 2 * self.state


class Embedding(Spec):
    """`rows` rows of `width` elements gathered from a table of `table` rows (0: not known)."""

    kind: Literal["embedding"]
    path: str
    rows: Size
    width: Size
    table: Count = 0

    @property
    def flops(self) -> int:
        return 0

    @property
    def weight_elements(self) -> int:
        return self.table * self.width

    @property
    def activation_elements(self) -> int:
        return self.rows * self.width


Op = Annotated[Matmul | Attention | Vector | Embedding, Field(discriminator="kind")]
KINDS: dict[str, type[Matmul | Attention | Vector | Embedding]] = {
    "matmul": Matmul,
    "attention": Attention,
    "vector": Vector,
    "embedding": Embedding,
}
