"""The roofline against hand-computed figures, its datapaths and fallbacks, and its laws."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowprec.errors import LowprecError
from lowprec.perf import Estimate, Machine, Quantity, Term, estimate, list_machines, machine
from lowprec.perf.roofline import RESOURCES
from lowprec.perf.workloads import load_workload
from lowprec.spec import Attention, Embedding, Vector, load_format
from tests.perf.workloads import decoder, matmul, workload

KEEP = "*: keep"
W4A4 = {"mxfp4": "mxfp4/floor", "nvfp4": "nvfp4/amax"}


def only(op: object, recipe: str, chip: str | Machine) -> Term:
    (term,) = estimate(workload(op), recipe, chip, level="bound").terms
    return term


def changed(chip: Machine, **factors: float) -> Machine:
    """`chip` with rates, bandwidth or launch multiplied; capacity never binds."""

    def times(quantity: Quantity, factor: float) -> Quantity:
        return quantity.model_copy(update={"value": quantity.value * factor})

    memory = chip.memory.model_copy(
        update={
            "bandwidth": times(chip.memory.bandwidth, factors.get("bandwidth", 1)),
            "capacity": times(chip.memory.capacity, factors.get("capacity", 1)),
        }
    )
    paths = tuple(
        path.model_copy(update={"rate": times(path.rate, factors.get("rate", 1))})
        for path in chip.datapaths
    )
    launch = times(chip.launch, factors.get("launch", 1))
    return chip.model_copy(update={"memory": memory, "datapaths": paths, "launch": launch})


# Hand-computed. M = 64, N = K = 4096: 2 * 64 * 4096 * 4096 = 2147483648 FLOP.


def test_bfloat16_on_h100() -> None:
    term = only(matmul(), KEEP, "h100_sxm")
    # x 64 * 4096 * 2 = 524288, w 4096 * 4096 * 2 = 33554432, y 524288 bytes.
    assert term.bytes == 34603008
    assert term.resources.compute == pytest.approx(2147483648 / 989e12)  # 2.17 us
    assert term.resources.memory == pytest.approx(34603008 / 3.35e12)  # 10.33 us
    assert term.seconds == pytest.approx(10.3292561e-6 + 2e-6)
    assert (term.binding, term.datapath, term.native) == ("memory", "bf16", True)
    assert term.utilisation == pytest.approx(2.1713687e-6 / 12.3292561e-6)


def test_mxfp8_on_b200_quantizes_in_one_kernel() -> None:
    term = only(matmul(), "*: weight=mxfp8_e4m3/floor activation=mxfp8_e4m3/floor", "b200")
    # 8.25 bits: x 64 * 4096 * 33 / 32 = 270336, w 17301504; y 524288 in bfloat16.
    assert term.bytes == 270336 + 17301504 + 524288
    assert term.resources.compute == pytest.approx(2147483648 / 4.5e15)
    # Reads 524288 bytes of bfloat16, writes 270336.
    assert term.resources.quantize == pytest.approx((524288 + 270336) / 7.7e12 + 2e-6)
    assert term.resources.dequantize == 0
    assert (term.datapath, term.native) == ("mxf8f6f4", True)
    assert term.seconds == pytest.approx(18096128 / 7.7e12 + 2e-6 + 794624 / 7.7e12 + 2e-6)


def test_nvfp4_on_b200_reads_the_activation_twice() -> None:
    term = only(matmul(), "*: weight=nvfp4/amax activation=nvfp4/amax", "b200")
    # 4.5 bits and a float32 per tensor: x 147456 + 4, w 9437184 + 4.
    assert term.bytes == 147460 + 9437188 + 524288
    assert term.resources.quantize == pytest.approx((2 * 524288 + 147460) / 7.7e12 + 4e-6)
    assert term.datapath == "mxf4nvf4"
    assert term.resources.compute == pytest.approx(2147483648 / 9e15)


def test_weight_only_mxfp4_on_h100_dequantizes() -> None:
    term = only(matmul(), "*: weight=mxfp4/floor", "h100_sxm")
    # w 4096 * 4096 * 4.25 / 8 = 8912896 bytes; 2 operations per element at 66.9e12 / 2 per second.
    assert term.bytes == 524288 + 8912896 + 524288
    assert term.resources.dequantize == pytest.approx(2 * 16777216 / 33.45e12)  # 1.003 us
    assert term.resources.quantize == 0
    assert term.resources.compute == pytest.approx(2147483648 / 989e12)
    assert (term.datapath, term.native) == ("bf16", False)
    assert term.reason == ("no datapath takes float4_e2m1fn: mxfp4 converted to bfloat16 for bf16")
    assert term.seconds == pytest.approx(9961472 / 3.35e12 + 2e-6 + 33554432 / 33.45e12)


def test_experts_read_the_expected_number_of_weights() -> None:
    # 4 tokens choose 2 of 8: 8 * (1 - 0.75^4) = 5.46875 experts are read, 8 are stored.
    op = matmul(m=8, n=256, k=512, experts=8, top_k=2)
    result = estimate(workload(op), KEEP, "h100_sxm", level="bound")
    assert result.terms[0].bytes == 8 * 512 * 2 + 5.46875 * 256 * 512 * 2 + 8 * 256 * 2
    assert result.weight_bytes == 8 * 256 * 512 * 2


def test_product_of_activations_has_no_weight() -> None:
    op = matmul(m=16, n=32, k=64, batch=4, weight=False)
    result = estimate(workload(op, matmul()), "proj: weight=mxfp4/floor", "b200", level="bound")
    assert result.terms[0].bytes == 4 * 2 * (16 * 64 + 32 * 64 + 16 * 32)
    assert result.terms[0].datapath == "bf16"
    assert result.weight_bytes == 8912896


def test_attention_and_bytes_only() -> None:
    attention = Attention(
        kind="attention", path="attn", batch=2, heads=8, kv_heads=2, queries=1, keys=1000,
        head_dim=64, value_dim=64, causal=True,
    )  # fmt: skip
    vector = Vector(kind="vector", path="norm", name="rms_norm", read=1000, written=500)
    rows = Embedding(kind="embedding", path="embed", rows=10, width=64)
    result = estimate(workload(attention, vector, rows, matmul()), KEEP, "h100_sxm", level="bound")
    first, second, third, _ = result.terms
    assert first.flops == 2 * 2 * 8 * 1000 * 128
    assert first.bytes == 2 * (2 * 2 * 1000 * 128 + 2 * 8 * 1 * 128)
    assert first.seconds == pytest.approx(first.bytes / 3.35e12 + 2e-6)
    assert result.cache_bytes == 2 * 2 * 2 * 1000 * 128
    assert (second.bytes, second.seconds) == (3000, pytest.approx(3000 / 3.35e12))
    assert (third.bytes, third.datapath) == (2 * 10 * 64 * 2, None)


def test_too_large_for_one_chip_is_split_and_says_so() -> None:
    op = matmul(m=1, n=1 << 20, k=1 << 16)  # 137.4 GB: two chips of 80 GB
    result = estimate(workload(op, tokens=1), KEEP, "h100_sxm", level="bound")
    assert (result.chips, result.fits) == (2, False)
    (term,) = result.terms
    assert term.resources.memory == pytest.approx(term.bytes / (2 * 3.35e12))
    assert term.resources.launch == pytest.approx(2e-6)
    assert result.tokens_per_second_per_chip == pytest.approx(0.5 / result.seconds)
    assert any("ideal split over 2 chips" in note for note in result.notes)
    assert estimate(workload(op), KEEP, "h200", level="bound").fits


# Which datapath, native or not: the traps.


@pytest.mark.parametrize(
    ("chip", "recipe", "datapath", "native"),
    [
        ("h100_sxm", "float8_e4m3fn/amax:tensor", "fp8", True),
        ("h100_sxm", "float8_e4m3fn/amax:channel", "fp8", True),
        ("h100_sxm", "mxfp8_e4m3/floor", "bf16", False),
        ("h100_sxm", "mxfp4/floor", "bf16", False),
        ("h100_sxm", "int4/amax:channel", "bf16", False),
        ("a100", "int4/amax:channel", "int4", True),
        ("a100", "int8/amax:channel", "int8", True),
        ("a100", "float8_e4m3fn/amax:channel", "bf16", False),
        ("b200", "float8_e5m2/amax:channel", "f8f6f4", True),
        ("b200", "mxfp6_e2m3/floor", "mxf8f6f4", True),
        ("b200", "mxfp4/floor", "mxf4nvf4", True),
        ("b200", "nvfp4/amax", "mxf4nvf4", True),
        ("b200", "mxint8/floor", "bf16", False),
        ("b200", "int4/amax:channel", "bf16", False),
        ("b300", "int8/amax:channel", "int8", True),
        ("mi300x", "float8_e4m3fn/amax:tensor", "fp8", True),
        ("mi300x", "float8_e4m3fn_g128/amax", "fp8", True),  # scaled on the vector units
        ("mi300x", "mxfp8_e4m3/floor", "bf16", False),
        ("mi300x", "int8/amax:channel", "int8", True),
        ("mi355x", "float8_e4m3fn/amax:tensor", "f8f6f4_scaled", True),
        ("mi355x", "mxfp6_e3m2/floor", "f6f4_scaled", True),
        ("mi355x", "mxfp4/floor", "f6f4_scaled", True),
        ("mi355x", "nvfp4/amax", "bf16", False),
        ("tpu_v6e", "float8_e5m2/amax:tensor", "fp8", True),
        ("tpu_v6e", "mxfp8_e5m2/floor", "bf16", False),
        ("trainium2", "float8_e4m3fn/amax:tensor", "bf16", False),
        ("trainium2", "float8_e5m2/amax:tensor", "fp8", True),
        ("trainium2", "int8/amax:channel", "bf16", False),
    ],
)
def test_datapath_of_equal_operands(chip: str, recipe: str, datapath: str, native: bool) -> None:
    term = only(matmul(), recipe, chip)
    assert (term.datapath, term.native) == (datapath, native)
    assert (term.resources.dequantize > 0) == (not native)


@pytest.mark.parametrize(
    ("chip", "weight", "activation", "datapath", "native"),
    [
        ("b200", "mxfp4/floor", "mxfp8_e4m3/floor", "mxf8f6f4", True),
        ("b200", "mxfp6_e2m3/floor", "mxfp4/floor", "mxf8f6f4", True),
        ("b200", "nvfp4/amax", "mxfp4/floor", "bf16", False),
        ("b200", "nvfp4/amax", "mxfp8_e4m3/floor", "bf16", False),
        ("mi355x", "mxfp4/floor", "mxfp8_e4m3/floor", "f8f6f4_scaled", True),
        ("mi355x", "mxfp4/floor", "mxfp6_e2m3/floor", "f6f4_scaled", True),
        ("h100_sxm", "float8_e5m2/amax:channel", "float8_e4m3fn/amax:channel", "fp8", True),
        ("a100", "int4/amax:channel", "int8/amax:channel", "bf16", False),
    ],
)
def test_datapath_of_mixed_operands(
    chip: str, weight: str, activation: str, datapath: str, native: bool
) -> None:
    term = only(matmul(), f"*: weight={weight} activation={activation}", chip)
    assert (term.datapath, term.native) == (datapath, native)


@pytest.mark.parametrize(
    ("chip", "recipe", "refusal", "converted"),
    [
        (
            "h100_sxm",
            "mxfp8_e4m3/floor",
            "no datapath for float8_e4m3fn applies float8_e8m0fnu scales per 32",
            "mxfp8_e4m3",
        ),
        (
            "trainium2",
            "float8_e4m3fn/amax:tensor",
            "no datapath takes float8_e4m3fn",
            "float8_e4m3fn_tensor",
        ),
        (
            "b200",
            "*: weight=mxfp4/floor",
            "no datapath takes bfloat16 and mxfp4 together",
            "mxfp4",
        ),
        (
            "b200",
            "*: weight=nvfp4/amax activation=mxfp4/floor",
            "no datapath takes mxfp4 and nvfp4 together",
            "mxfp4 and nvfp4",
        ),
    ],
)
def test_a_fallback_says_why(chip: str, recipe: str, refusal: str, converted: str) -> None:
    reason = only(matmul(), recipe, chip).reason
    assert reason == f"{refusal}: {converted} converted to bfloat16 for bf16"


def test_ocp_codes_on_a_unit_of_another_bias_say_so() -> None:
    reason = only(matmul(), "float8_e4m3fn/amax:tensor", "mi300x").reason
    assert reason.endswith("as codes of another bias: a power of two in the scale)")
    assert "bias" not in only(matmul(), "float8_e4m3fn/amax:tensor", "h100_sxm").reason


def test_int8_of_b300_is_slow_and_not_borrowed() -> None:
    big = matmul(m=8192, n=8192, k=8192)
    b200, b300 = (only(big, "int8/amax:channel", chip) for chip in ("b200", "b300"))
    assert b300.resources.compute == pytest.approx(2 * 8192**3 / 153.5e12)
    assert b300.resources.compute > 29 * b200.resources.compute


def test_a_format_is_what_it_decodes_to_and_not_its_name() -> None:
    chip = machine("h100_sxm")
    same = {"name": "mine", "kind": "float", "bits": 8, "precision": 4, "bias": 7,
            "nan": "all-ones"}  # fmt: skip
    scaled = same | {"bias": 9}  # a quarter of the same values
    other = same | {"name": "float8_e4m3fn", "nan": "negative-zero"}  # one value more
    for data, native in ((same, True), (scaled, True), (other, False)):
        fmt = {"name": "t", "element": data, "scale": "float32", "block": "tensor"}
        rule = {"match": "*"} | {
            operand: {"format": _block(fmt), "rule": "amax"} for operand in ("weight", "activation")
        }
        term = only(matmul(), {"name": "own", "rules": [rule]}, chip)  # type: ignore[arg-type]
        assert term.native is native


def _block(data: dict[str, object]) -> dict[str, object]:
    scale = load_format(str(data["scale"]))
    return data | {"scale": scale.model_dump()}


def test_no_datapath_for_the_models_type_is_an_error() -> None:
    chip = machine("h100_sxm")
    paths = tuple(path for path in chip.datapaths if path.name != "bf16")
    chip = chip.model_copy(update={"name": "odd", "datapaths": paths})
    with pytest.raises(LowprecError) as caught:
        estimate(workload(matmul()), "mxfp4/floor", chip, level="bound")
    message = str(caught.value)
    assert message.startswith("machine 'odd': no datapath takes float4_e2m1fn")
    assert "no datapath for bfloat16" in message
    assert message.endswith(
        "multiplies float16, float32, float8_e4m3fn, float8_e5m2, int8, tfloat32"
    )


def test_float32_runs_on_the_vector_units() -> None:
    (term,) = estimate(workload(matmul(), dtype="float32"), KEEP, "h100_sxm", level="bound").terms
    assert (term.datapath, term.native) == ("vector", True)


@pytest.mark.parametrize(
    ("ops", "recipe", "dtype", "message"),
    [
        ([matmul()], "*: keep; head: keep", "bfloat16", "rule 'head' matches no matmul .*'proj'"),
        ([matmul()], KEEP, "bfloat17", "workload: dtype: unknown format 'bfloat17'.*'bfloat16'"),
        ([matmul()], KEEP, "mxfp4", "workload: dtype: 'mxfp4' is no scalar format"),
        ([], KEEP, "bfloat16", "matches no matmul"),
    ],
)
def test_bad_input(ops: list[object], recipe: str, dtype: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        estimate(workload(*ops, dtype=dtype), recipe, "h100_sxm", level="bound")


# Laws.

RECIPES = (
    KEEP,
    "head: keep; *: weight=mxfp4/floor",
    "head: keep; *: weight=nvfp4/amax activation=nvfp4/amax",
    "float8_e4m3fn/amax:tensor",
    "mxfp8_e4m3/floor",
    "int8/amax:channel",
)
sizes = st.integers(1, 5000)
chips = st.sampled_from(list_machines())
recipes = st.sampled_from(RECIPES)
factors = st.floats(1.0, 8.0)


def priced(m: int, width: int, keys: int, recipe: str, chip: str | Machine) -> Estimate:
    return estimate(decoder(3, m, 8 * width, keys), recipe, chip, level="bound")


@given(st.integers(1, 300), st.integers(1, 300), sizes, recipes, chips)
def test_totals_are_sums_and_no_term_beats_its_bound(
    m: int, width: int, keys: int, recipe: str, chip: str
) -> None:
    result = priced(m, width, keys, recipe, chip)
    assert result.seconds == pytest.approx(sum(term.seconds for term in result.terms))
    assert sum(result.shares.values()) == pytest.approx(1)
    assert result.shares[result.bound] == max(result.shares.values())
    assert sum(term.count for term in result.terms) == len(decoder(3, m, 8 * width, keys).ops)
    assert result.tokens_per_second == pytest.approx(m / result.seconds)
    for term in result.terms:
        parts = term.resources
        extra = parts.launch + parts.quantize + parts.dequantize
        assert term.seconds == pytest.approx(max(parts.compute, parts.memory) + extra)
        assert 0 <= term.utilisation <= 1
        assert term.native or term.resources.dequantize > 0


@given(st.integers(1, 300), st.integers(1, 300), recipes, chips, factors, factors, factors)
def test_monotone_in_rates_bandwidth_and_launch(
    m: int, width: int, recipe: str, chip: str, rate: float, bandwidth: float, launch: float
) -> None:
    base = machine(chip)
    slow = priced(m, width, 100, recipe, base).seconds
    better = (
        changed(base, rate=rate),
        changed(base, bandwidth=bandwidth),
        changed(base, launch=1 / launch),
    )
    for fast in better:
        assert priced(m, width, 100, recipe, fast).seconds <= slow * (1 + 1e-12)
    both = changed(base, rate=rate, bandwidth=rate, launch=1 / rate)
    assert priced(m, width, 100, recipe, both).seconds == pytest.approx(slow / rate)


@given(sizes, sizes, sizes, st.sampled_from(["mxfp4/floor", "mxfp8_e4m3/floor", "nvfp4/amax"]))
def test_bytes_hold_the_scales_of_ragged_blocks(m: int, n: int, k: int, quantizer: str) -> None:
    term = only(matmul(m, n, k), quantizer, "b200")
    bits, scale, block = (8, 8, 32) if "8" in quantizer else (4, 8, 16 if "nv" in quantizer else 32)
    tensor = 32 if "nv" in quantizer else 0
    expected = 2 * m * n
    for rows in (m, n):
        expected += -(-(rows * k * bits + rows * -(-k // block) * scale + tensor) // 8)
    assert term.bytes == expected


@given(sizes, sizes, sizes, st.sampled_from(["mxfp4", "nvfp4"]))
def test_a_fallback_is_no_faster_than_a_datapath_of_that_rate(
    m: int, n: int, k: int, fmt: str
) -> None:
    chip = machine("h100_sxm")
    unit = next(path for path in machine("b200").datapaths if path.name == "mxf4nvf4")
    bf16 = next(path for path in chip.datapaths if path.name == "bf16")
    gifted = chip.model_copy(
        update={"datapaths": (*chip.datapaths, unit.model_copy(update={"rate": bf16.rate}))}
    )
    fallback, native = (only(matmul(m, n, k), W4A4[fmt], c) for c in (chip, gifted))
    assert native.native
    assert not fallback.native
    assert fallback.bytes == native.bytes
    assert fallback.seconds > native.seconds


def test_weight_only_helps_few_rows_and_hurts_many() -> None:
    for chip in ("h100_sxm", "b200"):
        for rows, helps in ((1, True), (8192, False)):
            op = matmul(rows, 8192, 8192)
            kept, quantized = (
                only(op, recipe, chip).seconds for recipe in (KEEP, "*: weight=mxfp4/floor")
            )
            assert (quantized < kept) == helps


def test_layers_share_a_term_and_a_lone_one_keeps_its_path() -> None:
    recipe = "layers.0.up: keep; *: weight=mxfp4/floor"
    paths = {
        term.path: term.count for term in estimate(decoder(4), recipe, "b200", level="bound").terms
    }
    assert paths["layers.0.up"] == 1
    assert paths["layers.*.up"] == 3
    assert paths["layers.*.down"] == 4
    assert paths["head"] == 1


def test_a_module_that_runs_twice_is_stored_once() -> None:
    result = estimate(workload(matmul(), matmul(m=1)), KEEP, "h100_sxm", level="bound")
    assert result.weight_bytes == 4096 * 4096 * 2


def test_equal_inputs_give_equal_estimates_and_json_round_trips() -> None:
    first, second = (estimate(decoder(2), RECIPES[2], "mi355x", level="bound") for _ in range(2))
    assert first == second
    assert Estimate.model_validate_json(first.model_dump_json()) == first
    assert set(first.shares) == set(RESOURCES)
    assert first.calibration == "spec only"


def test_a_thousand_operations_take_50_ms() -> None:
    work = decoder(130)  # 1042 operations
    estimate(work, RECIPES[1], "b200", level="bound")
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        estimate(work, RECIPES[1], "b200", level="bound")
        best = min(best, time.process_time() - start)
    assert best < 0.05


# The kernel level: the same laws.


@given(st.integers(1, 300), st.integers(1, 60), recipes, st.sampled_from(["h100_sxm", "b200"]))
def test_kernels_are_no_faster_than_the_bound_and_totals_are_sums(
    m: int, width: int, recipe: str, chip: str
) -> None:
    work = decoder(3, m, 64 * width, 512)
    bound = estimate(work, recipe, chip, level="bound", parallel="tp=1")
    kernel = estimate(work, recipe, chip, level="kernel", parallel="tp=1")
    assert kernel.seconds == pytest.approx(sum(term.seconds for term in kernel.terms))
    assert kernel.low <= kernel.seconds <= kernel.high
    matmuls = {t.path: t for t in bound.terms if t.kind == "matmul"}
    for term in kernel.terms:
        if term.path in matmuls:
            parts = matmuls[term.path].resources
            assert term.seconds >= max(parts.compute, parts.memory) * (1 - 1e-9)


def test_rules_of_attention_are_priced() -> None:
    plain, cached = (
        estimate(decoder(3, keys=8192), recipe, "h100_sxm", level="bound")
        for recipe in (KEEP, "*: key_cache=float8_e4m3fn/cast value_cache=float8_e4m3fn/cast")
    )
    assert cached.cache_bytes == plain.cache_bytes / 2
    first, second = (next(t for t in e.terms if t.kind == "attention") for e in (plain, cached))
    assert second.bytes < 0.51 * first.bytes
    assert not second.native  # bfloat16 queries by float8 keys: converted


def test_a_405b_model_on_eight_chips_takes_50_ms() -> None:
    work = load_workload("llama-3.1-405b")
    estimate(work, "lm_head: keep; *: weight=nvfp4/amax", "b200", level="kernel", parallel="tp=8")
    best = 1.0
    for batch in (2, 3, 5, 6, 7):
        start = time.process_time()
        estimate(
            work.at(batch=batch),
            "lm_head: keep; *: weight=nvfp4/amax",
            "b200",
            level="kernel",
            parallel="tp=8",
        )
        best = min(best, time.process_time() - start)
    assert best < 0.05
