"""Small workloads written by hand."""

from __future__ import annotations

from lowprec.spec import Attention, Embedding, Matmul, Vector, Workload


def matmul(m: int = 64, n: int = 4096, k: int = 4096, path: str = "proj", **more: object) -> Matmul:
    return Matmul(kind="matmul", path=path, m=m, n=n, k=k, **more)


def workload(*ops: object, dtype: str = "bfloat16", tokens: int = 64) -> Workload:
    return Workload(
        model="hand", phase="prefill", batch=1, tokens=tokens, context=0, dtype=dtype, ops=ops
    )


def decoder(layers: int, m: int = 8, width: int = 1024, keys: int = 512) -> Workload:
    """Attention, its projections and a feed-forward part per layer, then the head."""
    ops: list[object] = [Embedding(kind="embedding", path="embed", rows=m, width=width)]
    for i in range(layers):
        layer = f"layers.{i}"
        ops += [
            Vector(kind="vector", path=f"{layer}.norm", name="rms_norm", read=m * width, written=m),
            *(matmul(m, width, width, f"{layer}.attn.{name}") for name in "qkvo"),
            Attention(
                kind="attention", path=f"{layer}.attn", batch=m, heads=8, kv_heads=2, queries=1,
                keys=keys, head_dim=width // 8, value_dim=width // 8, causal=True,
            ),
            matmul(m, 4 * width, width, f"{layer}.up"),
            matmul(m, width, 4 * width, f"{layer}.down"),
        ]  # fmt: skip
    ops.append(matmul(m, 8 * width, width, "head"))
    return Workload(
        model="hand", phase="decode", batch=m, tokens=1, context=keys - 1, dtype="bfloat16",
        ops=tuple(ops),
    )  # fmt: skip
