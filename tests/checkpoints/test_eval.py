"""Quantized folders and GGUF files where a model is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lowprec as lp
from lowprec.errors import LowprecError
from lowprec.eval import load_model
from lowprec.nn.stored.modules import StoredLinear
from tests.eval.tiny import byte_tokenizer, tiny_llama, write_gguf

IDS = torch.arange(2, 60)[None]


def test_a_quantized_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    model = lp.wrap(tiny_llama(), "lm_head: keep; *: weight=mxfp4/rceil")
    lp.save_checkpoint(model, folder)
    byte_tokenizer().save_pretrained(folder)
    loaded = load_model(folder)
    assert any(isinstance(module, StoredLinear) for module in loaded.model.modules())
    assert torch.equal(loaded.model(IDS).logits, model(IDS).logits)
    assert loaded.name == "m"
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(LowprecError, match=r"model\.safetensors: "):
        load_model(folder)


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_llama(), path)
    loaded = load_model(path)
    assert torch.equal(loaded.model(IDS).logits, tiny_llama()(IDS).logits)
    assert loaded.tokenizer.decode(loaded.tokenizer("Zähler, 3").input_ids) == "Zähler, 3"
    assert loaded.name == "tiny"
    with pytest.raises(LowprecError, match=r"absent\.gguf: no such file"):
        load_model(tmp_path / "absent.gguf")
