"""ModelOpt, gpt-oss and DeepSeek: folders written here by their documented layout, and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

import lowprec as lp
from lowprec.nn.stored.modules import StoredExperts, StoredLinear
from tests.checkpoints import tiny

E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp4_bytes(*shape: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random bytes (..., K / 2), and the E2M1 values (..., K) of their nibbles, low ones first."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return data, E2M1[torch.stack([data & 15, data >> 4], -1).long()].flatten(-2)


def modelopt(folder: Path, separate: bool) -> tuple[Path, dict[str, Tensor]]:
    """A Llama in NVFP4 and the values of its weights; its configuration in either of two files."""
    model = tiny.llama()
    tensors, values = tiny.checkpoint(model), {}
    for i, path in enumerate(tiny.linears(model)):
        n, k = tensors.pop(f"{path}.weight").shape
        data, elements = fp4_bytes(n, k // 2, seed=i)
        scale = (torch.rand(n, k // 16, generator=torch.Generator().manual_seed(i)) * 448).to(
            torch.float8_e4m3fn
        )
        outer = torch.tensor(3e-5 * (i + 1))
        tensors[f"{path}.weight"], tensors[f"{path}.weight_scale"] = data, scale
        tensors[f"{path}.weight_scale_2"] = outer
        tensors[f"{path}.input_scale"] = torch.tensor(1e-3)
        whole = scale.float() * outer
        values[f"{path}.weight"] = elements * whole.repeat_interleave(16, 1)
    settings = {"quant_algo": "NVFP4", "group_size": 16}
    if separate:
        tiny.write(folder, model, tensors)
        data = {"producer": {"name": "modelopt"}, "quantization": settings}
        (folder / "hf_quant_config.json").write_text(json.dumps(data))
    else:
        settings = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        tiny.write(folder, model, tensors, quantization_config=settings)
    return folder, values


@pytest.mark.parametrize("separate", [False, True])
def test_modelopt(tmp_path: Path, separate: bool) -> None:
    folder, values = modelopt(tmp_path / "m", separate)
    model = lp.load_checkpoint(folder)
    found = tiny.stored(model)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], values[name]) for name in values)
    # The inputs: the outer scale is the file's, the blocks' follow their largest magnitude.
    linear = model.get_submodule("model.layers.0.mlp.down_proj")
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    amax = x.reshape(3, -1, 16).abs().amax(-1)
    t = torch.tensor(1e-3)
    s = ((amax / 6) / t).clamp(max=448).to(torch.float8_e4m3fn).float() * t
    grid = E2M1[:8]
    scaled = x.reshape(3, -1, 16) / s[..., None]
    nearest = (scaled.abs()[..., None] - grid).abs().argmin(-1)
    expected = (grid[nearest] * scaled.sign() * s[..., None]).reshape(3, 256)
    assert torch.equal(linear.quantized_input(x), expected)


def test_modelopt_warns_of_a_quantized_cache(tmp_path: Path) -> None:
    model = tiny.llama()
    folder, _ = modelopt(tmp_path / "m", separate=False)
    tensors = {**tiny.checkpoint(model), "model.layers.0.self_attn.k_proj.k_scale": torch.ones(())}
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    tiny.write(folder, model, tensors, quantization_config=settings)
    with pytest.warns(UserWarning, match=r"k_proj\.k_scale are not used.*KV cache"):
        lp.load_checkpoint(folder)


def test_gpt_oss(tmp_path: Path) -> None:
    model = tiny.gpt_oss()
    tensors, values = tiny.checkpoint(model), {}
    for i, (name, tensor) in enumerate(list(tensors.items())):
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, k, n = tensors.pop(name).shape
        data, elements = fp4_bytes(experts, n, k // 2, seed=i)
        exponent = torch.randint(
            118, 124, (experts, n, k // 32), generator=torch.Generator().manual_seed(i)
        )
        tensors[f"{name}_blocks"] = data.reshape(experts, n, k // 32, 16)
        tensors[f"{name}_scales"] = exponent.to(torch.uint8)
        scale = torch.exp2(exponent - 127.0).repeat_interleave(32, -1)
        values[name] = (elements * scale).mT
        assert tensor.shape == values[name].shape
    folder = tiny.write(
        tmp_path / "m", model, tensors, quantization_config={"quant_method": "mxfp4"}
    )
    ours = lp.load_checkpoint(folder)
    found = tiny.stored(ours)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], values[name]) for name in values)
    theirs = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=Mxfp4Config(dequantize=True),
        experts_implementation="eager",
    )
    assert torch.equal(tiny.logits(ours), tiny.logits(theirs))
    codes = sum(m.nbytes for m in ours.modules() if isinstance(m, StoredExperts))
    expanded = sum(value.nbytes for value in values.values())
    assert codes == expanded * 17 // 128  # 4.25 bits against 32


def deepseek(folder: Path, rope: int = 32, **settings: object) -> tuple[Path, dict[str, Tensor]]:
    """A DeepSeek-V3 in tiles of 32 x 32, and the values of its weights."""
    model = tiny.deepseek_v3(rope)
    tensors, values = tiny.checkpoint(model), {}
    for i, (name, tensor) in enumerate(sorted(tensors.items())):
        if tensor.dim() != 2 or "_proj" not in name:
            continue
        n, k = tensor.shape
        generator = torch.Generator().manual_seed(i)
        weight = (torch.randn(n, k, generator=generator) * 100).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-n // 32), -(-k // 32), generator=generator) * 1e-3
        tensors[name], tensors[f"{name}_scale_inv"] = weight, scale
        whole = scale.repeat_interleave(32, 0)[:n].repeat_interleave(32, 1)[:, :k]
        values[name] = weight.float() * whole
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}
    quantization |= {"activation_scheme": "dynamic"} | settings
    return tiny.write(folder, model, tensors, quantization_config=quantization), values


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("rope", [32, 16])
def test_deepseek(tmp_path: Path, rope: int) -> None:
    folder, values = deepseek(tmp_path / "m", rope)
    with pytest.warns(UserWarning, match="inputs of the experts are not quantized"):
        ours = lp.load_checkpoint(folder)
    found = tiny.stored(ours)
    experts = "model.layers.1.mlp.experts"
    for i in range(4):
        gate, up, down = (
            values.pop(f"{experts}.{i}.{part}_proj.weight") for part in ("gate", "up", "down")
        )
        assert torch.equal(found[f"{experts}.gate_up_proj"][i], torch.cat([gate, up]))
        assert torch.equal(found[f"{experts}.down_proj"][i], down)
    assert found.keys() - values.keys() == {f"{experts}.gate_up_proj", f"{experts}.down_proj"}
    assert all(torch.equal(found[name], values[name]) for name in values)
    linear = ours.get_submodule("model.layers.0.mlp.down_proj")
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    group = x.reshape(3, -1, 32)
    scale = group.abs().amax(-1, keepdim=True) / 448
    expected = ((group / scale).to(torch.float8_e4m3fn).float() * scale).reshape(3, 256)
    assert torch.equal(linear.quantized_input(x), expected)
    if rope == 16:
        return  # kv_a_proj_with_mqa ends within a tile, which transformers 5.24 expands wrongly
    # Without quantized inputs it is transformers' expanded model.
    for module in ours.modules():
        if isinstance(module, StoredLinear):
            module.activation = None
    theirs = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        quantization_config=FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32)),
        experts_implementation="eager",
    )
    assert torch.equal(tiny.logits(ours), tiny.logits(theirs))


@pytest.mark.filterwarnings("ignore:.*inputs of the experts")
def test_deepseek_powers_of_two(tmp_path: Path) -> None:
    folder, _ = deepseek(tmp_path / "m", scale_fmt="ue8m0", weight_block_size=[32, 32])
    linear = lp.load_checkpoint(folder).get_submodule("model.layers.0.mlp.down_proj")
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    group = x.reshape(3, -1, 32)
    scale = torch.exp2(torch.ceil(torch.log2(group.abs().amax(-1, keepdim=True) / 448)))
    expected = ((group / scale).to(torch.float8_e4m3fn).float() * scale).reshape(3, 256)
    assert torch.equal(linear.quantized_input(x), expected)
