"""Real weights: a shipped model, a Hugging Face id, or a local folder. Safetensors only."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from filelock import FileLock
from pydantic import Field

from lowprec.checkpoints import is_quantized, load_checkpoint
from lowprec.errors import LowprecError, unknown
from lowprec.eval.fetch import (
    Say,
    Wheel,
    extract_member,
    fetch,
    sha256_file,
    to_stderr,
)
from lowprec.spec.base import Spec, digest
from lowprec.spec.load import build, cache_dir, data_dir, read_toml

MAX_GGUF_BYTES = 16 << 30
MANIFEST = "lowprec.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


class Piece(Wheel):
    """A wheel, and the member of it that is a piece of the GGUF file."""

    member: str


class PackagedModel(Spec):
    """A model whose weights are a GGUF file, whole or in pieces (in their order), inside wheels:
    one file under evals/models."""

    name: str
    title: str
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1, max_length=100)]
    licence: str
    citation: str
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model in evaluation mode.

    `digest` is the SHA-256 (hex) over the digests of its weights, configuration and tokenizer.
    """

    model: Any
    tokenizer: Any
    name: str
    digest: str


def list_models() -> list[str]:
    """Names of the shipped models."""
    return sorted(path.stem for path in (data_dir("evals") / "models").glob("*.toml"))


def load_model(
    spec: str | Path,
    dtype: torch.dtype = torch.float32,
    say: Say = to_stderr,
    where: str = "",
    device_map: str | dict[str, Any] | None = None,
) -> LoadedModel:
    """A model by the name of a shipped one, a .toml file like it, a folder, a .gguf file, or
    ``owner/name``.

    A shipped model is downloaded and converted at first use. ``owner/name[@revision]`` comes
    from the Hugging Face hub unless a folder has that name. Weights are read from safetensors
    only and no code of a model is run; weights of another type are cast to `dtype`. A .gguf file
    and a folder of quantized weights run on their codes: `lowprec.checkpoints.load_checkpoint`.
    device_map: accelerate's, for models beyond one device: ``auto``, or devices by module; what is
    mapped to ``disk`` is read from a temporary folder at each call. Not for quantized weights.
    """
    path, name = located(spec, say, where)
    if path.suffix != ".gguf":
        return _load_folder(path, dtype, name, device_map)
    if device_map is not None:
        raise LowprecError(f"{path}: quantized weights take no device_map")
    return _load_gguf(path, dtype)


def located(spec: str | Path, say: Say = to_stderr, where: str = "") -> tuple[Path, str]:
    """The folder or .gguf file of a model that `load_model` takes, and what it is called."""
    name = str(spec)
    if name in list_models() or name.endswith(".toml"):
        path = Path(name) if name.endswith(".toml") else data_dir("evals") / f"models/{name}.toml"
        packaged = build(PackagedModel, read_toml(path), str(path))
        return _converted(packaged, say), packaged.name
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder, folder.resolve().name
    if folder.suffix == ".gguf":
        return folder, folder.stem
    if _HUB_ID.fullmatch(name) and not name.startswith("."):
        return _snapshot(name), name
    if "/" in name or os.sep in name:
        raise LowprecError(f"{where + ': ' if where else ''}{name}: no such model folder")
    raise unknown("model", name, list_models(), where)


def _snapshot(name: str) -> Path:
    """The folder of a model of the Hugging Face hub, in the hub's own cache."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    patterns = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=patterns)
        )
    except Exception as error:  # the hub's client raises its transport's errors too
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LowprecError(
            f"{name}: no such folder here, and not to be had from the Hugging Face hub ({reason})"
        ) from None


def _load_folder(
    folder: Path, dtype: torch.dtype, name: str, device_map: str | dict[str, Any] | None = None
) -> LoadedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    files = checked_files(folder)
    options = {"local_files_only": True, "trust_remote_code": False}
    quantized = is_quantized(folder)
    if quantized and device_map is not None:
        raise LowprecError(f"{folder}: quantized weights take no device_map")
    if device_map is not None:
        options |= {"device_map": device_map}
    try:
        with _quiet():
            tokenizer = tokenizer_of(folder)
            if quantized:
                model = load_checkpoint(folder, dtype=dtype)
            else:
                model = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=dtype, use_safetensors=True, **options
                )
    except LowprecError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise LowprecError(
            f"{folder}: not loadable ({str(error).strip().splitlines()[0]})"
        ) from None
    return LoadedModel(model.eval(), tokenizer, name, digest(files))


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer in a model's folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def checked_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide the outputs of the model in `folder`; LowprecError where
    they are not as a conversion wrote them."""
    files = _files(folder)
    if (folder / MANIFEST).is_file():
        _check_manifest(folder, files)
    return files


def _load_gguf(path: Path, dtype: torch.dtype) -> LoadedModel:
    """The model of a .gguf file on its codes, with the tokenizer that is in it."""
    from transformers import AutoTokenizer

    model = load_checkpoint(path, dtype=dtype)
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LowprecError(f"{path}: no tokenizer that transformers reads ({reason})") from None
    return LoadedModel(model, tokenizer, path.stem, digest({path.name: sha256_file(path)}))


def _files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that decide the model's outputs."""
    weights = sorted(folder.glob("*.safetensors"))
    for path in (folder / "config.json", *weights):
        if not path.is_file():
            raise LowprecError(f"{path}: missing; expected a model folder")
    if not weights:
        raise LowprecError(f"{folder}: no .safetensors file; other weights are not read")
    others = [folder / file for file in ("config.json", "tokenizer.json")]
    return {path.name: sha256_file(path) for path in (*others, *weights) if path.is_file()}


def _check_manifest(folder: Path, files: dict[str, str]) -> None:
    """Raise LowprecError, and remove the converted folder, where a file is not as written."""
    try:
        expected = json.loads((folder / MANIFEST).read_text())["files"]
    except (ValueError, KeyError, TypeError):
        expected = {}
    for name in sorted(expected.keys() | files.keys()):
        if expected.get(name) != files.get(name):
            shutil.rmtree(folder)
            raise LowprecError(
                f"{folder / name}: altered since its conversion: expected sha256 "
                f"{expected.get(name)}, got {files.get(name)}; the folder was removed, "
                "so run again to convert it anew"
            )


def _converted(packaged: PackagedModel, say: Say) -> Path:
    """The folder of the converted model; converts at first use, in whole or not at all."""
    models = cache_dir() / "models"
    models.mkdir(exist_ok=True)
    folder = models / f"{packaged.name}-{packaged.pieces[0].sha256[:12]}"
    if folder.is_dir():
        return folder
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            partial = models / f".{folder.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # what a killed conversion left
            partial.mkdir()
            _convert(packaged, partial, say)
            partial.replace(folder)
    return folder


def _convert(packaged: PackagedModel, folder: Path, say: Say) -> None:
    """GGUF to safetensors and tokenizer.json, in `folder`, and a manifest of what was written."""
    from transformers import AutoTokenizer

    wheels = [fetch(piece, say) for piece in packaged.pieces]
    say(f"converting {packaged.title} to safetensors, once (a minute or more)")
    gguf = folder / "model.gguf"
    for piece, wheel in zip(packaged.pieces, wheels, strict=True):
        extract_member(wheel, piece.member, gguf, MAX_GGUF_BYTES)
    with _quiet():
        AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name).save_pretrained(folder)
        _dequantized(folder, gguf.name).save_pretrained(folder)
    gguf.unlink()
    manifest = {"wheels": [piece.sha256 for piece in packaged.pieces], "files": _files(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _dequantized(folder: Path, gguf_file: str) -> Any:
    """The GGUF's weights, dequantized to float32, in a plain model that can be saved."""
    from transformers import AutoModelForCausalLM, GgufConfig

    packed = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=gguf_file,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = copy.deepcopy(packed.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(packed.state_dict())
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars off for a while."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
