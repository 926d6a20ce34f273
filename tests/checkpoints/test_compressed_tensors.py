"""Checkpoints that compressed-tensors' own compressors wrote, read into codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.nn.stored.modules import StoredExperts, StoredLinear
from tests.checkpoints import tiny

STATE = tuple[dict[str, Tensor], Tensor]  # a module's tensors, and the values of its weight


def scheme(preset: str, kind: str, targets: list[str], **weights: Any) -> QuantizationScheme:
    made = QuantizationScheme(**PRESET_SCHEMES[preset], targets=targets, format=kind)
    made = made.model_copy(deep=True)
    if weights:
        args = made.weights.model_dump(exclude={"zp_dtype"}) | weights
        made.weights = QuantizationArgs(**args)
    return made


def blocks(weight: Tensor, args: QuantizationArgs) -> Tensor:
    """The weight with what shares a scale along its last axis."""
    n, k = weight.shape
    if args.strategy == "tensor":
        return weight.reshape(1, -1)
    if args.strategy == "channel":
        return weight.reshape(n, 1, k)
    if args.strategy == "block":
        rows, columns = args.block_structure
        return weight.reshape(n // rows, rows, k // columns, columns).transpose(1, 2).flatten(2)
    return weight.reshape(n, -1, args.group_size)


def compressed(weight: Tensor, its: QuantizationScheme, dtype: torch.dtype) -> STATE:
    """A module's tensors as its library quantizes and stores them, and as it expands them."""
    args, parts = its.weights, blocks(weight, its.weights)
    state: dict[str, Tensor] = {"weight": weight}
    outer = None
    if args.strategy == "tensor_group":
        outer = generate_gparam(weight.amin(), weight.amax())
        state["weight_global_scale"] = outer
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args, global_scale=outer)
    state["weight_scale"] = scale.to(dtype)
    if not args.symmetric:
        state["weight_zero_point"] = zero
    if its.input_activations is not None and its.input_activations.dynamic is False:
        state["input_scale"] = torch.tensor([0.03125])
    if its.input_activations is not None and its.input_activations.dynamic == "local":
        state["input_global_scale"] = torch.tensor([512.0])
    compressor = BaseCompressor.get_value_from_registry(its.format)
    state = compressor.compress(state, its)
    return state, compressor.decompress(dict(state), its)["weight"]


def folder_of(
    folder: Path, model: PreTrainedModel, groups: list[QuantizationScheme], names: list[list[str]],
    dtype: torch.dtype = torch.float32, **settings: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """Writes the model with the named modules under each group; the values of their weights."""
    tensors, values = tiny.checkpoint(model), {}
    for its, paths in zip(groups, names, strict=True):
        for path in paths:
            state, values[path] = compressed(tensors.pop(f"{path}.weight"), its, dtype)
            tensors |= {f"{path}.{name}": tensor for name, tensor in state.items()}
    kinds = {its.format for its in groups}
    config = QuantizationConfig(
        config_groups={f"group_{i}": its for i, its in enumerate(groups)},
        format=kinds.pop() if len(kinds) == 1 else "mixed-precision",
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    data = {"quant_method": "compressed-tensors", **config.model_dump(mode="json"), **settings}
    tiny.write(folder, model, tensors, quantization_config=data)
    return values


CASES = {  # preset, format, dtype of the scales, changes of the weights' arguments
    "fp8 static": ("FP8", "float-quantized", torch.float32, {}),
    "fp8 dynamic": ("FP8_DYNAMIC", "float-quantized", torch.float32, {}),
    "fp8 dynamic, bfloat16": ("FP8_DYNAMIC", "naive-quantized", torch.bfloat16, {}),
    "fp8 block": ("FP8_BLOCK", "float-quantized", torch.float32, {"block_structure": [32, 64]}),
    "int8": ("W8A8", "int-quantized", torch.float32, {}),
    "int8 asymmetric": ("W8A8", "int-quantized", torch.float32, {"symmetric": False}),
    "int4 g128": ("W4A16", "pack-quantized", torch.float32, {}),
    "int4 g32, bfloat16": ("W4A16", "pack-quantized", torch.bfloat16, {"group_size": 32}),
    "int4 channel": (
        "W4A16", "pack-quantized", torch.float32, {"group_size": None, "strategy": "channel"},
    ),
    "int8 g32": ("W8A16", "pack-quantized", torch.float32, {"group_size": 32, "strategy": "group"}),
    "int3 g128": ("W3A16", "pack-quantized", torch.float32, {}),
    "int4 g128 asymmetric": ("W4A16_ASYM", "pack-quantized", torch.float32, {}),
    "int4 g32 asymmetric": ("W4A16_ASYM", "pack-quantized", torch.float16, {"group_size": 32}),
    "mxfp4": ("MXFP4", "mxfp4-pack-quantized", torch.float32, {}),
    "mxfp4 weights": ("MXFP4A16", "mxfp4-pack-quantized", torch.float32, {}),
    "mxfp8": ("MXFP8", "mxfp8-quantized", torch.float32, {}),
    "nvfp4": ("NVFP4", "nvfp4-pack-quantized", torch.float32, {}),
    "nvfp4 weights": ("NVFP4A16", "nvfp4-pack-quantized", torch.float32, {}),
}  # fmt: skip
# transformers 5.24 with compressed-tensors 0.20.1 multiplies these in float32, and the same way.
SAME_LOGITS = (
    "fp8 static", "fp8 dynamic", "int4 g128", "int4 channel", "int3 g128",
    "int8 g32",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning:compressed_tensors")
@pytest.mark.parametrize("case", CASES)
def test_each_scheme(tmp_path: Path, case: str) -> None:
    preset, kind, dtype, changes = CASES[case]
    model = tiny.llama()
    its = scheme(preset, kind, ["Linear"], **changes)
    values = folder_of(tmp_path / "m", model, [its], [tiny.linears(model)], dtype)
    ours = lp.load_checkpoint(tmp_path / "m")
    found = tiny.stored(ours)
    assert found.keys() == {f"{path}.weight" for path in values}
    for path, value in values.items():
        got = found[f"{path}.weight"].to(value.dtype)
        if preset.startswith("NVFP4"):  # theirs is e * (s / g), ours e * (s * RN(1 / g))
            assert ((got - value).abs() <= value.abs() * 2**-22).all()
        else:
            assert torch.equal(got, value)
    if case in SAME_LOGITS:
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
        assert torch.equal(tiny.logits(ours), tiny.logits(theirs))


@pytest.mark.parametrize(
    ("case", "spelled", "scale"),
    [
        ("fp8 static", "float8_e4m3fn_tensor/static", 0.03125),
        ("fp8 dynamic", "float8_e4m3fn_channel/amax", None),
        ("fp8 block", "float8_e4m3fn_g128/amax", None),
        ("int8", "int8_channel/amax", None),
        ("mxfp4", "mxfp4/even", None),
        ("mxfp8", "mxfp8_e4m3/rceil", None),
        ("nvfp4", "nvfp4/static", 1 / 512),
        ("int4 g128", None, None),
    ],
)
def test_inputs(tmp_path: Path, case: str, spelled: str | None, scale: float | None) -> None:
    preset, kind, dtype, changes = CASES[case]
    model = tiny.llama()
    its = scheme(preset, kind, ["Linear"], **changes)
    folder_of(tmp_path / "m", model, [its], [tiny.linears(model)], dtype)
    linear = lp.load_checkpoint(tmp_path / "m").get_submodule("model.layers.0.mlp.up_proj")
    if spelled is None:
        assert linear.activation is None
        return
    assert linear.activation.quantizer.spell() == f"{spelled}/nearest-even/SatFinite"
    assert (linear.activation.scale is None) == (scale is None)
    assert scale is None or float(linear.activation.scale) == scale


def test_dtypes_and_memory(tmp_path: Path) -> None:
    model = tiny.llama()
    its = scheme("MXFP4A16", "mxfp4-pack-quantized", ["Linear"])
    values = folder_of(tmp_path / "m", model, [its], [tiny.linears(model)])
    ours = lp.load_checkpoint(tmp_path / "m", dtype=torch.bfloat16)
    linear = ours.get_submodule("model.layers.0.mlp.up_proj")
    assert linear.weight.dtype == torch.bfloat16
    assert linear.nbytes == 128 * 256 * 17 // 32
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert torch.equal(linear.weight, values["model.layers.0.mlp.up_proj"].to(torch.bfloat16))
    assert torch.equal(
        ours.float().get_submodule("model.layers.0.mlp.up_proj").weight, linear.weight
    )
    assert linear.weight.dtype == torch.float32


def test_groups_of_modules(tmp_path: Path) -> None:
    model = tiny.llama()
    attention = [path for path in tiny.linears(model) if "self_attn" in path]
    others = [path for path in tiny.linears(model) if "mlp" in path]
    groups = [
        scheme("FP8_DYNAMIC", "float-quantized", ["re:.*self_attn.*"]),
        scheme("W4A16", "pack-quantized", ["Linear"]),
    ]
    values = folder_of(tmp_path / "m", model, groups, [attention, others])
    ours = lp.load_checkpoint(tmp_path / "m")
    found = tiny.stored(ours)
    assert all(torch.equal(found[f"{path}.weight"], value) for path, value in values.items())
    assert ours.get_submodule(attention[0]).quantizer.format.element.name == "float8_e4m3fn"
    assert ours.get_submodule(others[0]).quantizer.format.element.name == "int4"


def test_experts(tmp_path: Path) -> None:
    model = tiny.mixtral()
    names = [n.removesuffix(".weight") for n in tiny.checkpoint(model) if ".experts." in n]
    its = scheme("NVFP4A16", "nvfp4-pack-quantized", ["Linear"])
    values = folder_of(tmp_path / "m", model, [its], [names])
    ours = lp.load_checkpoint(tmp_path / "m")
    stacks = {n: m for n, m in ours.named_modules() if isinstance(m, StoredExperts)}
    assert len(stacks) == 2
    stem = "model.layers.0.block_sparse_moe.experts"
    for i in range(4):
        gate, up = (values[f"{stem}.{i}.{part}"] for part in ("w1", "w3"))
        got = stacks["model.layers.0.mlp.experts.gate_up_proj"][i]
        assert torch.equal(got.to(gate.dtype), torch.cat([gate, up]))
    with torch.no_grad():
        for name, stack in stacks.items():
            model.get_parameter(name).copy_(stack.weight)
    model.set_experts_implementation("eager")
    assert torch.equal(tiny.logits(ours), tiny.logits(model))


def test_generate(tmp_path: Path) -> None:
    model = tiny.llama()
    its = scheme("W4A16", "pack-quantized", ["Linear"])
    folder_of(tmp_path / "m", model, [its], [tiny.linears(model)])
    ours = lp.load_checkpoint(tmp_path / "m")
    for path, module in ours.named_modules():
        if isinstance(module, StoredLinear):
            model.get_submodule(path).weight.data = module.weight
    options = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(ours.generate(tiny.IDS, **options), model.generate(tiny.IDS, **options))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: not read"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: not read"),
        ({"config_groups": {}}, "config_groups: missing"),
        ({"config_groups": {"FP8": ["Linear"]}}, r"config_groups\.FP8: a preset"),
        ({"quant_method": "compresed-tensors"}, "did you mean 'compressed-tensors'"),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    model = tiny.llama()
    its = scheme("FP8_DYNAMIC", "float-quantized", ["Linear"])
    folder_of(tmp_path / "m", model, [its], [tiny.linears(model)], **settings)
    with pytest.raises(LowprecError, match=message):
        lp.load_checkpoint(tmp_path / "m")
