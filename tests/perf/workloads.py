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


def symbolic(layers: int = 4, width: int = 1024) -> Workload:
    """The decoder with sizes as laws, so that `at` gives it for any batch, tokens and context."""
    rows, heads = "batch*tokens", 8

    def linear(path: str, n: int, k: int, m: str = rows) -> dict[str, object]:
        return {"kind": "matmul", "path": path, "m": m, "n": n, "k": k}

    layer = (
        {"kind": "vector", "path": "layers.*.norm", "name": "rsqrt",
         "read": f"{width}*{rows}", "written": f"{width}*{rows}"},
        linear("layers.*.attn.qkv_proj", 3 * width // 2, width),
        {"kind": "attention", "path": "layers.*.attn", "batch": "batch", "heads": heads,
         "kv_heads": heads // 4, "queries": "tokens", "keys": "tokens + context",
         "head_dim": width // heads, "value_dim": width // heads, "causal": True},
        linear("layers.*.attn.o_proj", width, width),
        linear("layers.*.mlp.up_proj", 4 * width, width),
        linear("layers.*.mlp.down_proj", width, 4 * width),
    )  # fmt: skip
    embed = {"kind": "embedding", "path": "embed", "rows": rows, "width": width, "table": 32000}
    passes = ("start", "prefill", "extend", "decode")
    schedule = {
        "passes": passes,
        "blocks": ((embed,), layer, (linear("lm_head", 32000, width, "batch*logits"),)),
        "order": ({"block": 0}, {"block": 1, "count": layers}, {"block": 2}),
    }
    return Workload.model_validate(
        {
            "model": "symbolic", "phase": "decode", "batch": 1, "tokens": 1, "context": 512,
            "dtype": "bfloat16", "schedules": (schedule,),
        }
    )  # fmt: skip
