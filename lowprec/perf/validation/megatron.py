"""The models of arXiv 2205.05198 (Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models") as they were trained there, tables 3 and 5: GPT with attention that is not
fused, 16-bit floats, on A100s with tensor parallelism of 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lowprec.perf.footprint import Schedule
from lowprec.perf.parallel import Parallel
from lowprec.spec import Attention, Embedding, Matmul, Vector, Workload

_TOKENS, _VOCABULARY, _TP = 2048, 51200, 8


@dataclass(frozen=True)
class Gpt:
    """batch: sequences of a step; micro: of a microbatch."""

    layers: int
    width: int
    heads: int
    batch: int
    micro: int
    pp: int
    interleave: int

    def workload(self) -> Workload:
        """The forward pass of one microbatch."""
        rows = self.micro * _TOKENS
        ops: list[Matmul | Attention | Vector | Embedding] = [
            Embedding(
                kind="embedding", path="embed", rows=rows, width=self.width, table=_VOCABULARY
            )
        ]
        for i in range(self.layers):
            ops += self._layer(f"layers.{i}", rows)
        ops.append(_vector("norm", "rsqrt", rows * self.width, rows * self.width))
        ops.append(_matmul("lm_head", rows, _VOCABULARY, self.width, tied_to="embed"))
        # Every chip has its part of the vocabulary.
        logits = rows * _VOCABULARY // _TP
        ops.append(_vector("loss", "cross_entropy", 2 * logits, rows))
        return Workload.model_validate(
            {
                "model": f"gpt-{self.layers}x{self.width}",
                "phase": "prefill",
                "batch": self.micro,
                "tokens": _TOKENS,
                "context": 0,
                "dtype": "float16",
                "ops": tuple(ops),
            }
        )

    def _layer(self, path: str, rows: int) -> Iterator[Matmul | Vector]:
        """Kernels as Megatron-LM has them: fused scale, mask and softmax; fused bias and GELU;
        fused bias, dropout and addition; dropouts keep a mask of one byte per element, counted as
        half an element of 16 bits."""
        h, scores = self.width, self.micro * self.heads * _TOKENS * _TOKENS
        head = h // self.heads
        products = {"batch": self.micro * self.heads, "weight": False}
        yield _vector(f"{path}.input_layernorm", "rsqrt", rows * h, rows * h)
        yield _matmul(f"{path}.attn.qkv", rows, 3 * h, h)
        yield _matmul(f"{path}.attn", _TOKENS, _TOKENS, head, **products)
        yield _vector(f"{path}.attn", "softmax", scores, scores)
        yield _vector(f"{path}.attn", "dropout softmax", scores, scores * 3 // 2)
        yield _matmul(f"{path}.attn", _TOKENS, head, _TOKENS, **products)
        yield _matmul(f"{path}.attn.o_proj", rows, h, h)
        yield _vector(f"{path}.attn_dropout", "dropout add", 2 * rows * h, rows * h * 3 // 2)
        yield _vector(f"{path}.mlp_layernorm", "rsqrt", rows * h, rows * h)
        yield _matmul(f"{path}.mlp.up", rows, 4 * h, h)
        yield _vector(f"{path}.mlp", "gelu", 4 * rows * h, 4 * rows * h)
        yield _matmul(f"{path}.mlp.down", rows, h, 4 * h)
        yield _vector(f"{path}.mlp_dropout", "dropout add", 2 * rows * h, rows * h * 3 // 2)

    def parallel(self, sequence: bool) -> Parallel:
        microbatches = self.batch // self.micro
        return Parallel(tp=_TP, pp=self.pp, microbatches=microbatches, sequence=sequence)

    def schedule(self, full: bool) -> Schedule:
        return Schedule(recompute="full" if full else "selective", interleave=self.interleave)


MODELS = {
    "Megatron-22B": Gpt(48, 6144, 64, batch=4, micro=4, pp=1, interleave=1),
    "GPT3-175B": Gpt(96, 12288, 96, batch=64, micro=1, pp=8, interleave=3),
    "Turing-530B": Gpt(105, 20480, 128, batch=280, micro=1, pp=35, interleave=3),
    "Megatron-1T": Gpt(128, 25600, 160, batch=512, micro=1, pp=64, interleave=1),
}


def _matmul(path: str, m: int, n: int, k: int, **more: object) -> Matmul:
    return Matmul.model_validate({"kind": "matmul", "path": path, "m": m, "n": n, "k": k} | more)


def _vector(path: str, name: str, read: int, written: int) -> Vector:
    return Vector(kind="vector", path=path, name=name, read=read, written=written)
