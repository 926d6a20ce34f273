"""Wrapped models written as compressed-tensors: read again here, and by transformers with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

import lowprec as lp
from lowprec.checkpoints import write
from lowprec.errors import LowprecError
from tests.checkpoints import tiny

# recipe: the form it takes, and whether the library's own forward gives the same bits
RECIPES = {
    "*: weight=float8_e4m3fn/amax:channel activation=float8_e4m3fn/amax:channel": (
        "float-quantized", True,
    ),
    "lm_head: keep; *: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/amax:tensor": (
        "float-quantized", True,
    ),
    "*: weight=float8_e4m3fn/amax:tensor activation=float8_e4m3fn/fixed=0.02:tensor": (
        "float-quantized", True,
    ),
    "lm_head: keep; *: weight=float8_e4m3fn_128x128/amax activation=float8_e4m3fn_1x128/amax": (
        "float-quantized", True,
    ),
    "lm_head: keep; *: weight=int4/amax:32": ("pack-quantized", True),
    "*: weight=int4_g128_bfloat16/amax": ("pack-quantized", True),
    "lm_head: keep; *: weight=int8/amax:channel": ("pack-quantized", True),
    "lm_head: keep; *: weight=uint8_zp_channel/minmax activation=int8_zp_channel/minmax": (
        "int-quantized", True,
    ),
    # Its largest magnitude of an input maps to 127.5.
    "lm_head: keep; *: weight=int8/amax:channel activation=int8/amax:channel": (
        "int-quantized", False,
    ),
    # It expands these to bfloat16 whatever the model's dtype; see below.
    "lm_head: keep; *: weight=mxfp4/rceil activation=mxfp4/even": ("mxfp4-pack-quantized", False),
    "lm_head: keep; *: weight=mxfp8_e4m3/floor activation=mxfp8_e4m3/rceil": (
        "mxfp8-quantized", False,
    ),
    # transformers 5.24 expects unpacked zero points.
    "lm_head: keep; *: weight=uint4_zp_g32_float16/minmax": ("pack-quantized", False),
    "lm_head: keep; *.mlp.*: weight=mxfp4/rceil; *: weight=int8/amax:channel": (
        "mixed-precision", False,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning:compressed_tensors")
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_written_is_the_wrapped_model(tmp_path: Path, recipe: str) -> None:
    kind, same = RECIPES[recipe]
    model = lp.wrap(tiny.llama(), recipe)
    expected = tiny.logits(model)
    lp.save_checkpoint(model, tmp_path / "m")
    ours = lp.load_checkpoint(tmp_path / "m")
    assert torch.equal(tiny.logits(ours), expected)
    settings = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert settings["format"] == kind
    if same:
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
        assert torch.equal(tiny.logits(theirs), expected)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [
        ("lm_head: keep; *: weight=mxfp4/rceil", torch.float32),
        ("lm_head: keep; *: weight=mxfp8_e4m3/floor", torch.float32),
        ("lm_head: keep; *: weight=uint4_zp_g32_float16/minmax", torch.float16),
    ],
)
def test_weights_that_the_library_expands_at_loading(
    tmp_path: Path, recipe: str, dtype: torch.dtype
) -> None:
    lp.save_checkpoint(lp.wrap(tiny.llama(), recipe), tmp_path / "m")
    ours = lp.load_checkpoint(tmp_path / "m")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "m",
        dtype=torch.float32,
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )
    for name, value in tiny.stored(ours).items():
        # It computes in the dtype of the scales.
        assert torch.equal(value.to(dtype), theirs.get_parameter(name).to(dtype))
    if dtype == torch.float32:
        assert torch.equal(tiny.logits(ours), tiny.logits(theirs))


def test_nvfp4(tmp_path: Path) -> None:
    model = lp.wrap(tiny.llama(), "lm_head: keep; *: weight=nvfp4/amax")
    lp.save_checkpoint(model, tmp_path / "m")
    found = tiny.stored(lp.load_checkpoint(tmp_path / "m"))
    for path in tiny.linears(model):
        values = lp.fake_quantize(model.get_submodule(path).weight.detach(), "nvfp4/amax")
        # The global scale divides in the file.
        assert ((found[f"{path}.weight"] - values).abs() <= values.abs() * 2**-22).all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_configuration_is_as_the_library_serialises_it(tmp_path: Path, recipe: str) -> None:
    lp.save_checkpoint(lp.wrap(tiny.llama(), recipe), tmp_path / "m")
    data = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    theirs = QuantizationConfig.model_validate(data).model_dump(mode="json")
    extra = {"version", "sparsity_config", "transform_config"}  # its ModelCompressor adds these
    assert data == theirs | {key: data[key] for key in extra}


def test_read_and_written_again_is_the_same_file(tmp_path: Path) -> None:
    recipe = "lm_head: keep; *.mlp.*: weight=mxfp4/rceil; *: weight=int8/amax:channel"
    lp.save_checkpoint(lp.wrap(tiny.llama(), recipe), tmp_path / "a")
    lp.save_checkpoint(lp.load_checkpoint(tmp_path / "a"), tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_tied_heads(tmp_path: Path) -> None:
    for i, recipe in enumerate(("lm_head: keep; *: weight=int4/amax:32", "*: weight=int4/amax:32")):
        model = lp.wrap(tiny.llama(tie_word_embeddings=True), recipe)
        expected = tiny.logits(model)
        lp.save_checkpoint(model, tmp_path / f"{i}")
        assert torch.equal(tiny.logits(lp.load_checkpoint(tmp_path / f"{i}")), expected)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / f"{i}", dtype=torch.float32)
        assert torch.equal(tiny.logits(theirs), expected)


def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lp.wrap(tiny.llama(), "lm_head: keep; *: weight=int4/amax:32")
    monkeypatch.setattr(write, "SHARD_BYTES", 1 << 16)
    lp.save_checkpoint(model, tmp_path / "m")
    files = sorted(p.name for p in (tmp_path / "m").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    expected = tiny.logits(model)
    assert torch.equal(tiny.logits(lp.load_checkpoint(tmp_path / "m")), expected)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert torch.equal(tiny.logits(theirs), expected)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("*: weight=mxfp6_e2m3/rceil", "'mxfp6_e2m3': compressed-tensors has none like it"),
        ("*: weight=int8/amax:32 activation=nvfp4/amax", "nvfp4/amax/.*cannot say it"),
        ("*: activation=mxfp4/even", "only nn.Linear with a quantized weight"),
        (
            "*: weight=mxfp4/rceil; *: query=mxfp4/rceil key=mxfp4/rceil",
            "query.*a compressed-tensors file cannot say it",
        ),
        ("*: weight=int4/amax:tensor", "per channel or group only"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, recipe: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message):
        lp.save_checkpoint(lp.wrap(tiny.llama(), recipe), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lp.wrap(tiny.llama(), "*: weight=int4/amax:32")

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(write, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        lp.save_checkpoint(model, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_places_that_are_refused(tmp_path: Path) -> None:
    model = lp.wrap(tiny.llama(), "*: weight=int4/amax:32")
    (tmp_path / "m").mkdir()
    with pytest.raises(LowprecError, match="exists already"):
        lp.save_checkpoint(model, tmp_path / "m")
    with pytest.raises(LowprecError, match="no such folder"):
        lp.save_checkpoint(model, tmp_path / "a" / "b")
    with pytest.raises(LowprecError, match=r"no quantized nn\.Linear"):
        lp.save_checkpoint(tiny.llama(), tmp_path / "n")
