"""The safetensors files of a folder: what they declare, and one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lowprec.checkpoints.source import Plain
from lowprec.errors import LowprecError

MAX_JSON_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "U16": torch.uint16, "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64,
    "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What the header of `file` says of a tensor."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


class Files:
    """The tensors of a folder by name. Headers are read and checked now, tensors when asked for.

    LowprecError: no safetensors file; a file that is truncated, or declares what it does not
    hold; a dtype that torch lacks; a tensor in two files; an index that names another folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        for path in _paths(folder):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    if name in self.entries:
                        raise LowprecError(f"{path}: {name}: also in {self.entries[name].file}")
                    each = file.get_slice(name)
                    self.entries[name] = Entry(
                        path, _dtype(each.get_dtype(), path, name), tuple(each.get_shape())
                    )

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def read(self, name: str) -> Tensor:
        """The tensor, in memory of its own."""
        with _opened(self.entries[name].file) as file:
            return file.get_tensor(name).clone()

    def read_at(self, name: str, index: int) -> Tensor:
        """One entry along the first axis, in memory of its own, without the others."""
        with _opened(self.entries[name].file) as file:
            return file.get_slice(name)[index].clone()

    def plain(self, name: str) -> Plain:
        entry = self.entries[name]
        return Plain(entry.shape, entry.dtype, lambda: self.read(name))

    def expect(self, name: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> None:
        """LowprecError unless the tensor is there, of one of the dtypes and shapes."""
        if name not in self.entries:
            raise LowprecError(f"{self.folder}: {name}: missing")
        entry = self.entries[name]
        if entry.dtype not in dtypes or (shapes and entry.shape not in shapes):
            wanted = f" of {' or '.join(map(str, shapes))}" if shapes else ""
            raise LowprecError(
                f"{entry.file}: {name}: {entry.dtype} of {entry.shape}; expected "
                f"{' or '.join(map(str, dtypes))}{wanted}"
            )


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file of at most 64 MiB."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LowprecError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB; not read")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LowprecError(f"{path}: missing; expected a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LowprecError(f"{path}: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict):
        raise LowprecError(f"{path}: expected an object")
    return data


def _paths(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise LowprecError(f"{index}: weight_map: expected an object of file names")
        for name in names.values():
            if Path(name).name != name:
                raise LowprecError(f"{index}: {name!r}: expected a file of the same folder")
        return [folder / name for name in sorted(set(names.values()))]
    found = sorted(folder.glob("*.safetensors"))
    if (folder / "model.safetensors") in found:
        found = [folder / "model.safetensors"]
    if found:
        return found
    pickles = [p.name for p in sorted(folder.iterdir()) if p.suffix in _PICKLES]
    if pickles:
        raise LowprecError(
            f"{folder / pickles[0]}: a pickle, which can run code; only safetensors are read"
        )
    raise LowprecError(f"{folder}: no .safetensors file")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise LowprecError(f"{path}: {str(error).splitlines()[0]}") from None


def _dtype(name: str, path: Path, tensor: str) -> torch.dtype:
    if name not in _DTYPES:
        raise LowprecError(f"{path}: {tensor}: dtype {name}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[name]
