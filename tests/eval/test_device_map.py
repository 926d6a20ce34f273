"""Models over several devices through accelerate: the same bits, with and without a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lowprec.errors import LowprecError
from lowprec.eval.models import load_model
from lowprec.nn import wrap
from tests import tiny_study

ON_DISK = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "lm_head": "disk",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_study.make(tmp_path_factory.mktemp("tiny")).parent / "model"


@pytest.mark.filterwarnings("ignore")  # accelerate's and transformers' own
@pytest.mark.parametrize("device_map", ["auto", ON_DISK], ids=["auto", "disk"])
@pytest.mark.parametrize("recipe", [None, "*: weight=nvfp4/amax activation=mxfp8_e4m3/rceil"])
def test_a_mapped_model_has_the_same_bits(
    folder: Path, device_map: Any, recipe: str | None
) -> None:
    whole = load_model(folder).model
    mapped = load_model(folder, device_map=device_map).model
    if device_map is ON_DISK:
        assert mapped.lm_head.weight.device.type == "meta"
    if recipe is not None:
        wrap(whole, recipe)
        wrap(mapped, recipe)
    ids = torch.arange(1, 30)[None]
    with torch.inference_mode():
        found, wanted = (m(input_ids=ids, use_cache=False).logits for m in (mapped, whole))
    assert torch.equal(found, wanted)


def test_quantized_weights_are_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "some.gguf").write_bytes(b"")
    with pytest.raises(LowprecError, match="quantized weights take no device_map"):
        load_model(tmp_path / "some.gguf", device_map="auto")
