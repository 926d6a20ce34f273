"""Damaged, hostile and unfitting files: one line that names what is wrong, and no model."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import lowprec as lp
from lowprec.errors import LowprecError
from tests.checkpoints import tiny

RECIPE = "lm_head: keep; *: weight=mxfp4/rceil"
Q_PROJ = "model.layers.0.self_attn.q_proj"
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "m"
    lp.save_checkpoint(lp.wrap(tiny.llama(), RECIPE), path)
    return path


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    for file in (WEIGHTS, CONFIG):
        (tmp_path / file).write_bytes((good / file).read_bytes())
    return tmp_path


def refused(folder: Path, message: str) -> None:
    with pytest.raises(LowprecError, match=message) as caught:
        lp.load_checkpoint(folder)
    assert "\n" not in str(caught.value)


def tensors(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        state = load_file(folder / WEIGHTS)
        change(state)
        save_file(state, folder / WEIGHTS)

    return damage


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change what the file declares of its tensors, and not the tensors."""

    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        declared = json.loads(data[8 : 8 + size])
        change(declared)
        text = json.dumps(declared).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return damage


def config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(data | changes))

    return damage


def only(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(data)

    return damage


def truncate(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def index(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = {"weight_map": {"lm_head.weight": name}}
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(data))

    return damage


PACKED = f"{Q_PROJ}.weight_packed"
SCALE = f"{Q_PROJ}.weight_scale"
DAMAGE = {
    "truncated": (truncate, r"model\.safetensors: .*[Hh]eader|incomplete|covered"),
    "empty": (only(WEIGHTS, b""), r"model\.safetensors: "),
    "header of 2^60 bytes": (only(WEIGHTS, struct.pack("<Q", 1 << 60) + b"{}"), "eader"),
    "huge shape": (
        header(lambda h: h["lm_head.weight"].update(shape=[1 << 40, 1 << 40])),
        r"model\.safetensors: ",
    ),
    "offsets beyond the end": (
        header(lambda h: h["lm_head.weight"].update(data_offsets=[0, 1 << 50])),
        r"model\.safetensors: ",
    ),
    "pickle": (
        only("pytorch_model.bin", pickle.dumps({})),
        r"pytorch_model\.bin: a pickle.*only safetensors",
    ),
    "no weights": (only("README.md", b"hello"), r"no \.safetensors file"),
    "no config": (lambda f: (f / CONFIG).unlink(), r"config\.json: missing"),
    "config that is no JSON": (lambda f: (f / CONFIG).write_text("{"), r"config\.json: "),
    "unknown model": (config(model_type="llamma"), "no such configuration"),
    "unknown scheme": (config(quantization_config={"quant_method": "awq"}), "quant_method 'awq'"),
    "larger config": (config(intermediate_size=1 << 40), r"the model has \(128, 1099511627776\)"),
    "more layers": (config(num_hidden_layers=2), r"model\.layers\.1\..*and 6 more: missing"),
    "missing weight": (tensors(lambda t: t.pop("lm_head.weight")), r"lm_head\.weight: missing"),
    "missing codes": (tensors(lambda t: t.pop(PACKED)), r"q_proj\.weight_packed: missing"),
    "missing scale": (tensors(lambda t: t.pop(SCALE)), r"q_proj\.weight_scale: missing"),
    "unexpected": (
        tensors(lambda t: t.update(extra=torch.zeros(3))), "extra: unexpected",
    ),
    "group index": (
        tensors(lambda t: t.update({f"{Q_PROJ}.weight_g_idx": torch.zeros(3)})),
        r"weight_g_idx: unexpected",
    ),
    "codes of another dtype": (
        tensors(lambda t: t.update({PACKED: t[PACKED].view(torch.int8)})),
        r"weight_packed: torch\.int8 of .*expected torch\.int32 or torch\.uint8",
    ),
    "codes of another shape": (
        tensors(lambda t: t.update({PACKED: t[PACKED][:, :-16].contiguous()})),
        r"q_proj\.weight: shape \(128, 96\); the model has \(128, 128\)",
    ),
    "scales of another shape": (
        tensors(lambda t: t.update({SCALE: t[SCALE][:, :-1].contiguous()})), "weight_packed: ",
    ),
    "float8 without scales": (
        tensors(
            lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn)})
        ),
        r"lm_head\.weight: torch\.float8_e4m3fn without scales",
    ),
    "index into another folder": (index("../m.safetensors"), "expected a file of the same folder"),
    "index of no file": (index("absent.safetensors"), r"absent\.safetensors: "),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_folders(folder: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    damage(folder)
    refused(folder, message)


def test_the_undamaged_copy_is_read(folder: Path) -> None:
    assert torch.isfinite(tiny.logits(lp.load_checkpoint(folder))).all()


def test_nothing_is_allocated_for_a_size_that_does_not_fit(folder: Path) -> None:
    """A configuration of 2^40 rows is refused by the shapes, not by the memory."""
    config(vocab_size=1 << 40)(folder)
    refused(folder, r"the model has \(1099511627776, 128\)")


def test_no_such_place(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "expected a model folder or a .gguf file")
    refused(tmp_path / "absent.gguf", "no such file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small GGUF file, to be damaged."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def at(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert data.count(old) == 1
        return data.replace(old, new)

    return change


SHAPE = struct.pack("<IQQ", 2, 32, 64)
TOKENS = struct.pack("<IQ", 8, 2)  # an array of two strings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: b"", "m.gguf: "),
        (at(0, b"PK\3\4"), "no GGUF file"),
        (at(4, struct.pack("<I", 1)), "GGUF version 1; expected 2 or 3"),
        (at(8, struct.pack("<Q", 1 << 60)), "damaged"),
        (at(16, struct.pack("<Q", 1 << 60)), "damaged"),
        (lambda data: data[:100], "damaged: .* end beyond the file's 100"),
        (lambda data: data[:-4000], r"token_embd\.weight: 8192 bytes at .* end beyond"),
        (replaced(SHAPE, struct.pack("<IQQ", 2, 1 << 40, 1 << 20)), "end beyond the file"),
        (replaced(SHAPE, struct.pack("<IQQ", 1 << 30, 32, 64)), "1073741824 dimensions"),
        (replaced(SHAPE + b"\0", SHAPE + b"\xfe"), "type 254, which gguf does not know"),
        (replaced(SHAPE + b"\0", SHAPE + b"\x0c"), "Q4_K has blocks of 256"),
        (replaced(TOKENS, struct.pack("<IQ", 8, 1 << 60)), "damaged"),
        (replaced(TOKENS, struct.pack("<IQ", 6, 1 << 60)), "damaged"),
        (replaced(b"general.architecture", b"general.architectur_"), "architecture: missing"),
    ],
)
def test_gguf_files(file: Path, change: Callable[[bytes], bytes], message: str) -> None:
    file.write_bytes(change(file.read_bytes()))
    refused(file, message)


def test_gguf_architectures(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data.replace(b"llama", b"lamla"))
    refused(file, "transformers reads no configuration")
