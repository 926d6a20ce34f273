"""Published serving and training points: how rows are read, and how far predictions are off."""

from __future__ import annotations

import re
import statistics

import pytest

from lowprec.errors import LowprecError
from lowprec.perf.validation import serving, training
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.served import Layout, fields_of_bulk


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("tp8 dp1 moe_tp8 ep1", "tp=8"),
        ("tp8 dp1 moe_tp1 ep8", "tp=8,ep=8"),
        ("tp1 dp8 moe_tp1 ep8", "ep=8,attention_dp=8"),
        ("tp64 dp1 moe_tp8 ep8", "tp=8,ep=8"),
        ("tp1 dp64 moe_tp8 ep8", "ep=8,attention_dp=8"),
        ("tp4 dp4 moe_tp1 ep16", "tp=4,ep=4"),
        ("tp4 dpnan moe_tp2 ep2", "tp=4,ep=2"),
    ],
)
def test_layouts_are_the_chips_that_were_there(text: str, plan: str) -> None:
    assert Layout.read(text).plan().spell() == plan


def test_bulk_rows_become_the_words_of_the_others() -> None:
    row = {
        "mode": "agg", "isl": 1024, "osl": 512, "conc": 16.0, "tp_size": 8.0,
        "attention_dp_size": float("nan"), "moe_tp_size": 8.0, "moe_ep_size": 1.0,
        "precision": "fp4", "gemm_quant_mode": "nvfp4", "backend": "vllm", "backend_version": "1",
    }  # fmt: skip
    assert fields_of_bulk(row) == {
        "shape": "ISL=1024 OSL=512 conc=16 tp8 dpnan moe_tp8 ep1",
        "format": "fp4 (gemm nvfp4)",
        "conditions": "vllm 1",
    }


# A few rows of ai-dynamo/aiconfigurator@095f58a systems/silicon_sample.csv (from InferenceX).
SERVED = [
    ("H100-SXM-80GB", "meta-llama/Llama-3.1-70B", "ISL=1024 OSL=8192 conc=8 tp2 dp1 moe_tp2 ep1",
     "fp8 (gemm fp8)", "vllm", 19.194),
    ("B200-SXM", "meta-llama/Llama-3.1-70B", "ISL=1024 OSL=8192 conc=128 tp2 dp1 moe_tp2 ep1",
     "fp8 (gemm fp8)", "trtllm", 20.859),
    ("B200-SXM", "MiniMaxAI/MiniMax-M2.5", "ISL=8192 OSL=1024 conc=64 tp4 dp1 moe_tp4 ep1",
     "fp8 (gemm fp8)", "vllm", 23.33),
    ("H100-SXM-80GB", "meta-llama/Llama-3.1-8B-Instruct",
     "ISL=1024 OSL=256 conc=64 tp2 dpnan moe_tp1 ep1", "nan (gemm nan)", "trtllm", 10.11),
]  # fmt: skip


def test_times_per_token_are_near_and_within_their_intervals() -> None:
    errors = []
    for hw, model, shape, fmt, backend, measured in SERVED:
        found = serving.predict(
            Point(id="x", hw=hw, what=f"{model} agg TPOT", shape=shape, format=fmt, unit="ms",
                  conditions=backend, level="e2e inference")
        )  # fmt: skip
        assert found is not None
        assert found.low < measured < found.high
        errors.append(abs(found.value / measured - 1))
    assert statistics.median(errors) < 0.25


def apart(shape: str, chip: str = "H200-SXM") -> tuple[float, float, float]:
    """Time to the first token in seconds, and its interval."""
    layout = "tp8 dp1 moe_tp1 ep8"
    for pool in ("prefill", "decode"):
        shape = re.sub(rf"({pool} \S+)", rf"\1 x {layout}", shape)
    found = serving.predict(
        Point(id="x", hw=chip, what="deepseek-ai/DeepSeek-V3 disagg TTFT", shape=shape, unit="s",
              format="fp8 (gemm fp8)", conditions="trtllm 0.8", level="e2e inference")
    )  # fmt: skip
    assert found is not None
    return found.value, found.low, found.high


# Same source: H200, one server prefills and nine decode.
@pytest.mark.parametrize(("users", "measured"), [(36, 0.673), (144, 1.037), (576, 1.808)])
def test_first_tokens_of_servers_apart_are_near(users: int, measured: float) -> None:
    value, low, high = apart(f"ISL=1024 OSL=1024 conc={users} prefill 1 decode 9")
    assert value == pytest.approx(measured, rel=0.45)
    assert low < measured < high


def test_a_load_of_a_power_of_two_per_server_fills_its_places() -> None:
    full, *_ = apart("ISL=1024 OSL=1024 conc=64 prefill 1 decode 4")
    more, low, high = apart("ISL=1024 OSL=1024 conc=68 prefill 1 decode 4")
    assert full > more  # 17 places of at least 17: nobody waits
    assert high / more > more / low  # but there may be fewer places


@pytest.mark.parametrize("count", ["0", "nan", "1.5", ""])
def test_pools_of_no_known_size_are_a_reason(count: str) -> None:
    with pytest.raises(LowprecError, match="does not say how many workers"):
        apart(f"ISL=1024 OSL=1024 conc=64 prefill 1 decode {count}")


# arXiv 2205.05198 table 5.
@pytest.mark.parametrize(
    ("what", "measured"),
    [
        ("Megatron-22B iteration, full recompute", 1.42),
        ("GPT3-175B iteration, sequence parallel + selective recompute", 13.75),
        ("Megatron-1T iteration, full recompute", 94.42),
    ],
)
def test_published_iterations_are_met(what: str, measured: float) -> None:
    point = Point(id="x", hw="A100-SXM-80GB", what=what, shape="", format="fp16", unit="s")
    found = training.predict(point)
    assert found is not None
    assert found.value == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("what", "shape", "reason"),
    [
        ("MLPerf 5.1 llama2-70b-99 Offline closed", "", "MLPerf: the row gives neither chips"),
        ("DeepSeek-V3/R1 production decode", "EP144", "production: the batch"),
        ("nobody/model agg TPOT", "ISL=1 OSL=2 conc=1 tp1 dp1 moe_tp1 ep1", "unknown workload"),
        ("openai/gpt-oss-120b agg TPOT", "ISL=1 OSL=2 conc=nan tp1", "expected such as 'ISL="),
    ],
)
def test_what_a_row_does_not_say_is_a_reason(what: str, shape: str, reason: str) -> None:
    point = Point(id="x", hw="H200-SXM", what=what, shape=shape, format="fp8", unit="ms",
                  conditions="vllm 1")  # fmt: skip
    with pytest.raises(LowprecError, match=reason):
        serving.predict(point)


def test_other_rows_are_not_mine() -> None:
    point = Point(id="x", hw="H200-SXM", what="linear layer GEMM", shape="M=1", format="bf16",
                  unit="us", level="kernel")  # fmt: skip
    assert serving.predict(point) is None
    assert training.predict(point) is None
