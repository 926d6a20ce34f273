"""Rows of vector kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowprec.perf.hardware import machine
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.predict import answer

ROW = Point(
    id="1", hw="H100-SXM-80GB", chips=1, level="kernel", what="RMSNorm", shape="M=16384 N=8192",
    format="bf16", value=1.0, unit="us", conditions="", source="", source_group="", note="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "tensors"),
    [
        ("RMSNorm", 2),
        ("fused add RMSNorm", 4),
        ("silu_and_mul", 3),
        ("softmax", 2),
        ("residual add", 3),
        ("embedding gather", 2),
    ],
)
def test_it_streams_what_it_reads_and_writes(what: str, tensors: int) -> None:
    found = answer(replace(ROW, what=what)).prediction
    assert found is not None
    bound = tensors * 2 * 16384 * 8192 / machine("h100_sxm").memory.bandwidth.value * 1e6
    assert bound <= found.value < 1.3 * bound
    assert found.low < found.value < found.high


def test_what_is_no_vector_kernel_is_left_to_others() -> None:
    for what in ("softmax attention", "transformer layer norm GEMM"):
        assert answer(replace(ROW, what=what)).prediction is None


def test_a_row_without_sizes_says_so() -> None:
    assert "gives no" in (answer(replace(ROW, shape="")).reason or "")
