"""The workloads that come with lowprec: sizes, names, and laws by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.perf import estimate, find_workload, list_workloads, load_workload, machine
from lowprec.spec import Attention, Matmul, Workload, data_dir

# Published, or the sum of the published shapes; GLM-5's, Kimi's and MiniMax's are rounded.
PARAMETERS = {
    "deepseek-v3": 671.03e9,
    "glm-5": 744e9,
    "gpt-3-175b": 174.6e9,
    "gpt-oss-120b": 116.83e9,
    "gpt-oss-20b": 20.91e9,
    "kimi-k2.5": 1026e9,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "megatron-1t": 1008e9,
    "megatron-22b": 22.0e9,
    "megatron-530b": 529.6e9,
    "minimax-m2.5": 229e9,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3.5-397b-a17b": 397e9,
    "smollm2-135m": 134_515_008,
}


def test_all_configurations_are_shipped() -> None:
    configs = {path.stem for path in (data_dir("evals") / "configs").glob("*.json")}
    assert set(list_workloads()) == configs == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_shipped_workloads_have_the_published_parameters(name: str) -> None:
    work = load_workload(name)
    assert work.model == name
    assert work.parameters == pytest.approx(PARAMETERS[name], rel=5e-3)
    if isinstance(PARAMETERS[name], int):
        assert work.parameters == PARAMETERS[name]
    # What is no matrix are norms, biases and small convolutions.
    assert 0 <= 1 - sum(work.weights.values()) / work.parameters < 3e-3


@pytest.mark.parametrize("name", PARAMETERS)
def test_laws_hold_together(name: str) -> None:
    """Twice the batch is twice the matmuls' rows; decode and prefill store the same weights."""
    work = load_workload(name)
    one, two = work.at(batch=3, tokens=4, context=9), work.at(batch=6, tokens=4, context=9)
    assert two.flops == 2 * one.flops
    assert two.cache_elements == 2 * one.cache_elements
    assert sum(one.weights.values()) == sum(work.weights.values())
    assert one.at(batch=6) == two
    assert Workload.model_validate_json(json.dumps(one.to_json())) == one


def test_llama_70b_by_hand() -> None:
    work = load_workload("llama-3.1-70b").at(batch=8, tokens=1, context=4096)
    matmuls = [op for op in work.ops if isinstance(op, Matmul)]
    assert len(matmuls) == 7 * 80 + 1
    assert {op.m for op in matmuls} == {8}
    assert work.cache_elements == 8 * 4097 * 80 * 2 * 8 * 128
    assert work.at(tokens=100, context=0).ops[-1].m == 8
    assert work.at(tokens=100, context=0, logits="all").ops[-1].m == 800


def test_gpt_oss_windows_every_other_layer() -> None:
    work = load_workload("gpt-oss-120b").at(batch=1, tokens=1, context=5000)
    keys = [op.keys for op in work.ops if isinstance(op, Attention)]
    assert keys == [128, 5001] * 18


def test_deepseek_caches_latents() -> None:
    work = load_workload("deepseek-v3").at(batch=2, tokens=1, context=999)
    assert work.cache_elements == 2 * 1000 * 61 * (512 + 64)
    assert work.at(tokens=1000, context=0).cache_elements == work.cache_elements


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-v3"),
        ("amd/DeepSeek-R1-0528-MXFP4", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2.5"),
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("zai-org/GLM-5-FP8", "glm-5"),
    ],
)
def test_hub_ids(name: str, expected: str) -> None:
    assert load_workload(name).model == expected


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(LowprecError, match=r"unknown workload 'llama-3.1-80b'; did you mean"):
        load_workload("llama-3.1-80b")
    assert find_workload("instruct") is None
    assert find_workload("llama-3.1-80b") is None
    with pytest.raises(LowprecError, match=r"w.json: "):
        load_workload(tmp_path / "w.json")
    path = tmp_path / "w.json"
    path.write_text(json.dumps(load_workload("llama-2-7b").to_json()))
    assert load_workload(path) == load_workload("llama-2-7b")
    path.write_text(path.read_text().replace("batch*tokens", "bitch*tokens"))
    with pytest.raises(LowprecError, match="is no law: bitch; did you mean 'batch'"):
        _ = load_workload(path).ops


def test_an_80_layer_model_at_other_sizes_takes_milliseconds() -> None:
    work = load_workload("llama-3.1-70b")
    least = float("inf")
    for batch in range(2, 22):
        start = time.perf_counter()
        assert work.at(batch=batch).groups
        least = min(least, time.perf_counter() - start)
    assert least < 2e-3


def test_files_stay_small() -> None:
    folder = Path(load_workload.__code__.co_filename).parent
    assert max(path.stat().st_size for path in folder.glob("*.json")) < 40_000


def test_a_shipped_model_is_priced_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['lowprec', 'perf', 'meta-llama/Llama-3.1-405B', '--recipe', "
        "'*: keep', '--machine', 'b200', '--parallel', 'tp=8', '--batch', '8']\n"
        "from lowprec.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "decode" in done.stdout


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "qwen3.5-397b-a17b"]),
    st.sampled_from([1, 7, 64]),
    st.sampled_from([(1, 1), (1, 4096), (1000, 0)]),
    st.sampled_from(["bound", "kernel"]),
)
def test_an_estimate_counts_the_flops_of_the_trace(
    name: str, batch: int, pair: tuple[int, int], level: Any
) -> None:
    tokens, context = pair
    work = load_workload(name).at(batch=batch, tokens=tokens, context=context)
    roomy = machine("b200").what_if("memory.capacity", 1e15)
    found = estimate(work, "*: keep", roomy, level=level)
    products = [term.flops for term in found.terms if term.kind in ("matmul", "attention")]
    traced = sum(g.count * g.op.flops for g in work.groups if isinstance(g.op, Matmul | Attention))
    assert sum(products) == pytest.approx(traced, rel=1e-12)
