"""Speed-ups over bfloat16, and what the way of timing adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowprec.perf import machine
from lowprec.perf.kernel.gemm import Shape, kernel
from lowprec.perf.kernel.plan import plan_of
from lowprec.perf.validation.gemm import SINGLY, dispatch
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.speedups import NAME, left_out, speedups
from lowprec.perf.validation.table import fitted_groups
from lowprec.spec import load_format

BF16 = Point(
    id="a",
    hw="H100-SXM-80GB",
    what="linear layer GEMM",
    shape="M=4096 N=8192 K=8192",
    format="bf16",
    unit="us",
    level="kernel",
    value=900.0,
    conditions="CUDA graph; dynamic quantisation inside",
)
FP8 = replace(BF16, id="b", format="fp8", value=500.0)


def test_a_pair_is_one_ratio() -> None:
    fitted = fitted_groups()
    (error,) = speedups([BF16, FP8, replace(FP8, shape="M=1 N=8192 K=8192")], fitted)
    assert (error.set, error.format, error.regime) == (NAME, "tensor/fp8", "large")
    assert error.measured == pytest.approx(900 / 500)
    assert 1.2 < error.predicted < 2
    assert error.low < error.predicted < error.high


def test_left_out_differs_and_knows_the_rest() -> None:
    fitted = fitted_groups()
    others = [replace(BF16, hw=hw, format=f) for hw in ("A100", "B200") for f in ("bf16",)]
    some = {g: c for g, c in fitted.items() if g[0] in ("a100", "b200") and g[1] == "plain/16"}
    some |= {g: c for g, c in fitted.items() if g[0] == "h100_sxm" and g[1] != "block/fp8"}
    (seen,) = speedups([BF16, FP8], some)
    (unseen,) = left_out([BF16, FP8], others, some)
    assert unseen.measured == seen.measured
    assert unseen.predicted != seen.predicted
    assert 1 < unseen.predicted < 2.2


def test_singly_timed_kernels_wait_between_them() -> None:
    old = replace(BF16, source="x/a100_sxm/gemm/trtllm/1.0.0/gemm_perf.parquet")
    assert dispatch(old, "weight/4") == dispatch(old, "token/int8") == SINGLY
    assert dispatch(old, "plain/16") == 0
    assert dispatch(replace(old, source="x/trtllm/1.3.0rc20/gemm_perf"), "weight/4") == 0


def test_no_long_kernel_is_faster_than_firmware_allows() -> None:
    fmt = load_format("bfloat16")
    plan = plan_of(fmt, fmt, machine("mi308x"), fmt)  # type: ignore[arg-type]
    assert plan.limit < plan.rate
    cores, _ = kernel(Shape(((16384, 1),), 16384, 16384, 1), plan, 0, 0)
    assert 2 * 16384**3 / cores <= plan.limit * 1.0001
