"""Rows of measurements: how they are read, predicted, and refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest

from lowprec.cli import app
from lowprec.errors import LowprecError
from lowprec.perf import machine
from lowprec.perf.kernel.grouped import Experts, rows
from lowprec.perf.kernel.plan import plan_of
from lowprec.perf.validation.files import read_points
from lowprec.perf.validation.formats import operands_of, quantized_before
from lowprec.perf.validation.point import Point
from lowprec.perf.validation.predict import answer
from lowprec.perf.validation.table import validation_files
from lowprec.perf.validation.text import in_unit, sizes

FILES = Path(__file__).parents[3] / "benchmarks" / "validation"
GEMM = Point("1", "H100-SXM-80GB", "linear layer GEMM", "M=4096 N=8192 K=8192", "bf16", "us")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("M=1 N=2048 K=512", {"m": 1, "n": 2048, "k": 512}),
        ("M=N=K=8192", {"m": 8192, "n": 8192, "k": 8192}),
        ("MxNxK=1024x10240x5120", {"m": 1024, "n": 10240, "k": 5120}),
        ("M x K x N = 1 x 2 x 3", {"m": 1, "k": 2, "n": 3}),
        ("4096x8192x1024", {"m": 4096, "n": 8192, "k": 1024}),
        ("M=512 K=12288 N=12288", {"m": 512, "k": 12288, "n": 12288}),
        (
            "groups=4 M/group=8192 N=4096 K=7168",
            {"groups": 4, "m/group": 8192, "n": 4096, "k": 7168},
        ),
        ("B=2 S=4K Hq=64 Hkv=8 D=128", {"b": 2, "s": 4096, "hq": 64, "hkv": 8, "d": 128}),
        ("(16, 4096, 512)", {"m": 16, "n": 4096, "k": 512}),
        ("m16n4096k512", {"m": 16, "n": 4096, "k": 512}),
        ("8192^3", {"m": 8192, "n": 8192, "k": 8192}),
        ("peak quoted", {}),
    ],
)
def test_sizes(text: str, expected: dict[str, int]) -> None:
    assert sizes(text) == expected


@pytest.mark.parametrize(
    ("name", "chip", "x", "w"),
    [
        ("bf16", "b200", "bfloat16", "bfloat16"),
        ("fp16", "a100", "float16", "float16"),
        ("fp8-tensor (dynamic act quant inside)", "h100_sxm", "float8_e4m3fn_tensor", None),
        (
            "fp8 e4m3 1x128/128x128, bf16 out",
            "h800",
            "float8_e4m3fn_1x128",
            "float8_e4m3fn_128x128",
        ),
        ("fp8_block", "b200", "float8_e4m3fn_1x128_e8m0", "float8_e4m3fn_128x128_e8m0"),
        ("fp8_blockscale", "mi355x", "float8_e4m3fn_1x128", "float8_e4m3fn_128x128"),
        ("fp8_ptok", "mi300x", "float8_e4m3fn_channel", None),
        ("int8_ptok", "mi300x", "int8_channel", None),
        ("sq", "a100", "int8_channel", None),
        ("int8_wo", "a100", "bfloat16", "int8_channel"),
        ("int4 weight-only", "a100", "bfloat16", "int4_g128_bfloat16"),
        ("nvfp4 (act quant inside)", "b200", "nvfp4", None),
        ("mxfp4", "mi355x", "mxfp4", None),
        ("w4a16_mxfp4", "h100_sxm", "bfloat16", "mxfp4"),
        ("w4a8_mxfp4_mxfp8", "b200", "mxfp8_e4m3", "mxfp4"),
        ("mxfp8", "b200", "mxfp8_e4m3", None),
        ("fp8", "trainium2", "float8_e4m3_tensor", None),
        ("fp8", "mi300x", "float8_e4m3fn_tensor", None),
        ("fp8_block", "inferentia2", "float8_e4m3_1x128", "float8_e4m3_128x128"),
        ("W8A8 FP8 per-token", "h100_sxm", "float8_e4m3fn_channel", None),
        ("W8A16 FP8", "a100", "bfloat16", "float8_e4m3fn_channel"),
        ("fp8 e5m2", "h100_sxm", "float8_e5m2_tensor", None),
        ("mxfp8 e5m2", "b200", "mxfp8_e5m2", None),
        ("MXFP6 E3M2", "b200", "mxfp6_e3m2", None),
        ("FP6-LLM", "a100", "bfloat16", "float6_e3m2fn_channel"),
        ("w4a8 fp8", "h100_sxm", "float8_e4m3fn_tensor", "int4_g128_bfloat16"),
        ("QServe W4A8", "a100", "int8_channel", "int4_g128_bfloat16"),
        ("W4A4 int4", "a100", "int4_channel", None),
        ("int4 g128", "a100", "bfloat16", "int4_g128_bfloat16"),
        ("int4 weight-only, group 64", "a100", "bfloat16", "int4_g64_bfloat16"),
        ("nvfp4 weight-only", "h100_sxm", "bfloat16", "nvfp4"),
        ("nvfp4, weights in nvfp4", "b200", "nvfp4", None),
        ("fp4", "b200", "nvfp4", None),
        ("fp4", "mi355x", "mxfp4", None),
        ("bf16 x mxfp4", "h100_sxm", "bfloat16", "mxfp4"),
        ("fp8 in, bf16 out", "h100_sxm", "float8_e4m3fn_tensor", None),
        ("HiF4", "b200", "hif4", None),
        ("hif8", "ascend_950dt", "hifloat8_tensor", None),
        ("NF4", "a100", "bfloat16", "nf4_g64"),
        ("Q4_K_M", "rtx_4090", "bfloat16", "gguf_q4_k"),
        ("fp32", "a100", "float32", None),
        ("tf32", "a100", "tfloat32", None),
    ],
)
def test_formats_by_their_names(name: str, chip: str, x: str, w: str | None) -> None:
    found = operands_of(name, machine(chip))
    assert (found.x.name, found.w.name) == (x, w or x)


@pytest.mark.parametrize(
    "name", ["w4a8", "w4a4", "fp64", "NVFP4 x FP8", "fp8 x bf16", "bf16+fp8", "fp12", "auto"]
)
def test_formats_that_say_too_little(name: str) -> None:
    with pytest.raises(LowprecError, match=re.escape(name)):
        operands_of(name, machine("b200"))
    with pytest.raises(LowprecError, match="int4_g7"):
        operands_of("int4 g7", machine("b200"))


@pytest.mark.parametrize(
    ("name", "chip", "level"),
    [
        ("bf16", "a100", "fitted"),
        ("int4_wo", "a100", "fitted"),
        ("nvfp4", "a100", "transferred"),
        ("fp8_block", "b200", "fitted"),
        ("mxfp8", "b200", "transferred"),
        ("bf16", "h200", "transferred"),
        ("fp8", "trainium2", "spec only"),
    ],
)
def test_only_formats_that_were_fitted_are_called_so(name: str, chip: str, level: str) -> None:
    found = operands_of(name, machine(chip))
    assert plan_of(found.x, found.w, machine(chip), found.dtype).level == level


def test_units_are_those_of_the_row() -> None:
    assert in_unit("us", 2e-6, 1, 1) == pytest.approx(2)
    assert in_unit("ms", 2e-6, 1, 1) == pytest.approx(2e-3)
    assert in_unit("TFLOPS", 1e-3, 1e12, 1) == pytest.approx(1000)
    assert in_unit("GB/s", 1e-3, 1, 3e9) == pytest.approx(3000)
    assert in_unit("microseconds", 2e-6, 1, 1) == pytest.approx(2)
    assert in_unit("μs", 2e-6, 1, 1) == pytest.approx(2)
    for unit in ("TFLOP/s", "TFLOPs/s", "Tflops", "TOP/s"):
        assert in_unit(unit, 1e-3, 1e12, 1) == pytest.approx(1000)
    with pytest.raises(LowprecError, match="tokens/s"):
        in_unit("tokens/s", 1, 1, 1)


def test_what_strangers_call_things() -> None:
    """The same kernel by other words is the same prediction; other work is not."""
    plain = answer(GEMM).prediction
    for what in ("cuBLASLt", "q_proj", "torch._scaled_mm", "batched matmul"):
        assert answer(dataclasses.replace(GEMM, what=what)).prediction == plain
    batched = dataclasses.replace(GEMM, what="bmm", shape=f"B=4 {GEMM.shape}")
    found = answer(batched).prediction
    assert found is not None
    assert plain is not None
    assert 3.5 * plain.value < found.value < 4.5 * plain.value
    fwd = dataclasses.replace(GEMM, what="FlashAttention fwd", shape="B=2 S=4096 H=32 D=128")
    causal, whole = (
        answer(dataclasses.replace(fwd, conditions=text)).prediction
        for text in ("causal=True", "causal=False")
    )
    assert causal is not None
    assert whole is not None
    assert 1.5 * causal.value < whole.value < 2.1 * causal.value
    pair = [
        answer(Point("1", "H200", what, "64 MB", "bf16", "us", 8, "collective")).prediction
        for what in ("all_reduce", "AllReduce")
    ]
    assert pair[0] == pair[1] is not None


def test_when_the_activation_was_quantized() -> None:
    assert quantized_before("operands pre-quantised", "", "") is True
    assert quantized_before("", "", "nvfp4 (act quant inside)") is False
    assert quantized_before("includes quantisation", "", "") is False
    assert quantized_before("CUDA graph", "", "bf16") is None


def test_a_rate_has_the_ends_of_its_time_swapped() -> None:
    time = answer(GEMM).prediction
    rate = answer(dataclasses.replace(GEMM, unit="TFLOPS")).prediction
    assert time is not None
    assert rate is not None
    flops = 2 * 4096 * 8192 * 8192
    assert rate.value == pytest.approx(flops / time.value / 1e6)
    assert rate.low == pytest.approx(flops / time.high / 1e6)
    assert rate.low < rate.value < rate.high
    assert time.level == "fitted"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hw": "Quantum 9000"}, "quantum|Quantum"),
        ({"shape": "M=1 N=2"}, "gives no K"),
        ({"shape": "M=0 N=2 K=3"}, "expected 1 or more"),
        ({"format": "posit13"}, "posit13"),
        ({"unit": "furlongs"}, "furlongs"),
        ({"what": "tea"}, "tea"),
        ({"what": "decode attention", "shape": "B=1 S=2 Hq=8"}, "head dimension"),
        ({"what": "fused MoE layer", "shape": "T=1 H=2"}, "gives no I"),
        ({"what": "linear forward+backward"}, "expected one product"),
        ({"shape": "B=4 M=1 N=2 K=3"}, "a batch, but what is"),
        ({"what": "FlashAttention bwd", "shape": "B=1 S=2 H=8 D=64"}, "expected the forward pass"),
        ({"what": "FlashAttention fwd", "shape": "B=1 S=2 H=8 D=64"}, "neither causal nor"),
    ],
)
def test_what_a_row_lacks_is_the_reason(change: dict[str, str], reason: str) -> None:
    found = answer(dataclasses.replace(GEMM, **change))
    assert found.prediction is None
    assert re.search(reason, found.reason)


def test_bulk_layouts(tmp_path: Path) -> None:
    aic = tmp_path / "aic.csv"
    aic.write_text(
        "system,stack,gemm_dtype,m,n,k,latency_us\nh200_sxm,trtllm,fp8,64,4096,4096,17\n"
    )
    aiter = tmp_path / "aiter.csv"
    aiter.write_text("gfx,cu_num,fmt,M,N,K,us\ngfx942,304,bf16,64,4096,4096,17\n")
    (first,), (second,) = read_points(aic), read_points(aiter)
    assert (first.hw, first.value, second.value) == ("h200_sxm", 17, 17)
    fast, slow = answer(first), answer(second)
    assert fast.prediction is not None, fast.reason
    assert slow.prediction is not None, slow.reason
    assert fast.prediction.level == "transferred"


# Rows of ai-dynamo/aiconfigurator@095f58a systems/silicon_sample.csv (from InferenceX), by column.
SERVED = (
    "id,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,tp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms,conc\n"
    "a,vllm,0.12.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,8192,fp8,2.0,1.0,2.0,1.0,,19.2,8\n"
    "b,sglang,0.5.1,Qwen/Qwen3-32B,h100_sxm,,agg,4096,128,,4,,1.0,1.0,1384.5,,16\n"
    "c,vllm,0.12.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,many,8192,fp8,2,1,2,1,,19.2,8\n"
)


def test_served_points_by_column(tmp_path: Path) -> None:
    path = tmp_path / "served.csv"
    path.write_text(SERVED)
    first, second, third = map(answer, read_points(path))
    assert first.point.what == "meta-llama/Llama-3.1-70B agg TPOT"
    assert first.prediction is not None, first.reason
    assert first.prediction.low < 19.2 < first.prediction.high
    assert (first.prediction.unit, first.point.value, second.point.value) == ("ms", 19.2, None)
    assert second.prediction is not None, second.reason
    assert "ISL=nan" in third.reason
    for before, after, reason in (
        (",8\n", ",1e6\n", "conc=nan"),
        (",8\n", ",1.5\n", "conc=nan"),
        (",19.2,8\n", ",2,8\n", "pipeline stages"),
    ):
        column = SERVED.replace("silicon_tpot_ms", "pp_size") if "stages" in reason else SERVED
        path.write_text(column.replace(before, after, 1))
        assert reason in answer(next(read_points(path))).reason
    path.write_text(SERVED.replace(",silicon_tpot_ms", ",other"))
    alone = list(map(answer, read_points(path)))[1]
    assert alone.point.what == "Qwen/Qwen3-32B agg TTFT"
    assert alone.prediction is not None, alone.reason
    assert alone.point.value == 1384.5


def test_other_columns_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(LowprecError, match="columns"):
        list(read_points(path))
    with pytest.raises(LowprecError, match="nowhere"):
        list(read_points(tmp_path / "nowhere.csv"))


@pytest.mark.parametrize(
    ("name", "median", "coverage"),
    [
        ("gemm", 0.08, 0.85),
        ("attention", 0.11, 0.85),
        ("experts", 0.2, 0.8),
        ("quantizers", 0.1, 0.8),
        ("training", 0.05, 0.85),
    ],
)
def test_shipped_points(name: str, median: float, coverage: float) -> None:
    """A change of the model or of its constants that makes it worse shows here."""
    points = list(read_points(FILES / f"{name}.csv"))[::7]
    errors, inside = [], 0
    for point in points:
        found = answer(point).prediction
        assert found is not None, answer(point).reason
        assert point.value is not None
        errors.append(abs(found.value / point.value - 1))
        inside += found.low <= point.value <= found.high
    assert sorted(errors)[len(errors) // 2] < median
    assert inside / len(points) > coverage


def test_what_cannot_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import lowprec.perf.validation.predict as predict

    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(f"{HEAD}\n{ROW}\n{ROW}\n")
    target.write_text("before")
    command = ["validate", "--points", str(source)]
    with monkeypatch.context() as patched:
        rows = iter([answer(GEMM)])
        patched.setattr(
            predict, "answers", lambda _: (next(rows) if i < 1 else 1 / 0 for i in (0, 1))
        )
        with pytest.raises(ZeroDivisionError):
            app([*command, "-o", str(target)], standalone_mode=False)
    assert target.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"in.csv", "out.csv"}
    with pytest.raises(LowprecError, match="-o: is for CSV"):
        app([*command, "-o", str(target), "--json"], standalone_mode=False)
    app([*command, "-o", "/dev/null"], standalone_mode=False)
    capsys.readouterr()
    app([*command, "--json"], standalone_mode=False)
    first, second = json.loads(capsys.readouterr().out)
    assert first["low"] < first["predicted"] < first["high"]
    assert first == second


def test_shipped_files_have_points() -> None:
    folder = FILES
    found = {path.stem for path in validation_files(folder)}
    assert {"gemm", "attention", "serving", "training"} <= found
    assert "datapath_cost" not in found
    for path in validation_files(folder):
        assert next(read_points(path)).value


def test_the_busiest_rank_of_skewed_experts() -> None:
    even = rows(Experts(1024, 1, 1, 8, 128, expert=4))
    skewed = rows(Experts(1024, 1, 1, 8, 128, expert=4, skew=1.2))
    assert sum(m * count for m, count in even) == pytest.approx(1024 * 8 / 4)
    assert sum(m * count for m, count in skewed) > 1024 * 8 / 4
    assert max(m for m, _ in skewed) > 10 * max(m for m, _ in even)
    assert max(m for m, _ in skewed) <= 1024
    (one,) = rows(Experts(1, 1, 1, 8, 128))
    assert one == (1, 8)


def test_command(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    fields = [field.name for field in dataclasses.fields(Point)]
    with source.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerow(dataclasses.asdict(GEMM))
        writer.writerow(dataclasses.asdict(dataclasses.replace(GEMM, id="2", hw="Quantum 9000")))
    app(["validate", "--points", str(source), "-o", str(target)], standalone_mode=False)
    good, bad = csv.DictReader(target.read_text().splitlines())
    assert list(good) == ["id", "predicted", "low", "high", "unit", "level", "reason"]
    assert float(good["low"]) < float(good["predicted"]) < float(good["high"])
    assert (good["id"], good["unit"], good["reason"]) == ("1", "us", "")
    assert (bad["id"], bad["predicted"]) == ("2", "")
    assert "Quantum 9000" in bad["reason"]


HEAD = "id,hw,chips,level,what,shape,format,value,unit"
ROW = "a,H100-SXM-80GB,1,kernel,linear layer GEMM,M=4 N=1536 K=512,bf16,5.8,us"


@pytest.mark.parametrize(
    "shape", ["M=1.5 N=64 K=64", "M=1e30 N=64 K=64", "M=N=K=8k", "x" * 200_000]
)
def test_sizes_that_are_no_whole_numbers_are_refused(shape: str) -> None:
    refused = answer(dataclasses.replace(GEMM, shape=shape))
    assert refused.prediction is None
    assert refused.reason.startswith("shape: ")


@pytest.mark.parametrize("shape", ["T=8 H=64 I=64 topk=9 E=8", "T=8 H=64 I=64 topk=2 E=8 ep=16"])
def test_more_choices_or_groups_than_experts_are_refused(shape: str) -> None:
    point = dataclasses.replace(GEMM, what="fused MoE layer (per rank)", shape=shape)
    assert "exceeds the 8 experts" in answer(point).reason


@pytest.mark.parametrize(
    ("what", "shape", "format", "chips"),
    [
        ("all_reduce", "8 elements", "half", float("inf")),
        ("all_reduce", "... elements", "half", 8),
        ("DeepEP low-latency combine", "0 tokens H=7168 topk=8", "bf16 combine", 16),
        ("Llama-2-70B attn_pre_proj", "tokens=8 tp=0", "fp16", 1),
        ("Llama-2-70B attn_pre_proj", "tokens=8 tp=96", "fp16", 1),
        ("Qwen/Qwen3-32B agg TPOT", "ISL=9 OSL=1 conc=1 tp1 dp1 moe_tp1 ep1", "bf16", 1),
        ("Qwen/Qwen3-32B agg TPOT", "ISL=9 OSL=9 conc=1 tp... dp1 moe_tp1 ep1", "bf16", 1),
        ("linear layer GEMM", f"M={10**30} N={10**300} K={10**300}", "bf16", 1),
    ],
)
def test_numbers_that_nothing_takes_are_refused(
    what: str, shape: str, format: str, chips: float
) -> None:
    found = answer(Point("1", "H800-SXM", what, shape, format, "us", chips))
    assert found.prediction is None
    assert found.reason
    assert "\n" not in found.reason


def test_a_collective_of_nothing_is_refused() -> None:
    point = Point("1", GEMM.hw, "all_reduce", "0 elements", "half", "us", 8, "collective")
    assert "more than nothing" in answer(point).reason


def test_odd_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    long = ROW.replace("M=4", "M=4 " + "y" * 140_000)
    path.write_bytes(
        b"\xef\xbb\xbf"
        + "\r\n".join((HEAD.replace(",", ", "), ROW, long, "short,H100")).encode()
        + b"\r\n\xb5,H100\r\n"
    )
    assert [point.id for point in read_points(path)] == ["a", "a", "short", "\\xb5"]


@pytest.mark.parametrize("text", ["", "id,hw\n", "id,hw\na,b\n"])
def test_a_file_without_the_columns_leaves_no_output(tmp_path: Path, text: str) -> None:
    path, out = tmp_path / "points.csv", tmp_path / "out.csv"
    path.write_text(text)
    with pytest.raises(
        LowprecError, match="columns: expected format, hw, shape, unit, what; missing"
    ):
        list(read_points(path))
    with pytest.raises(LowprecError, match="columns: expected"):
        app(["validate", "--points", str(path), "-o", str(out)], standalone_mode=False)
    assert not out.exists()
