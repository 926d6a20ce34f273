"""The header of a GGUF file, every size in it checked against the file before it is believed.

github.com/ggml-org/ggml, docs/gguf.md: magic, version, counts; keys with typed values; for each
tensor its name, dimensions (the fastest first), type and offset. gguf's own reader would follow a
damaged count until memory ends.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from lowprec.errors import LowprecError

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_ARCHITECTURE, _ALIGNMENT = "general.architecture", "general.alignment"
_DEEPEST = 4


@dataclass(frozen=True)
class GgufTensor:
    """shape: as torch has it. data: its bytes, mapped from the file and not read yet."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray


def read_header(path: Path) -> tuple[str, list[GgufTensor]]:
    """The architecture and the tensors of a file; LowprecError where it is damaged or no GGUF."""
    try:
        data = np.memmap(path, np.uint8, "r")
    except FileNotFoundError:
        raise LowprecError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise LowprecError(f"{path}: {str(error).splitlines()[0]}") from None
    header = _Header(data, str(path))
    if bytes(data[:4]) != b"GGUF":
        raise LowprecError(f"{path}: no GGUF file")
    version, tensors, keys = header.take("IQQ")
    if version not in _VERSIONS:
        raise LowprecError(f"{path}: GGUF version {version}; expected 2 or 3, little-endian")
    found = {}
    for _ in range(keys):
        key = header.string()
        found[key] = header.value(*header.take("I"))
    table = [header.tensor() for _ in range(tensors)]
    alignment, architecture = found.get(_ALIGNMENT, 32), found.get(_ARCHITECTURE)
    if not isinstance(architecture, str):
        raise LowprecError(f"{path}: {_ARCHITECTURE}: missing")
    if not isinstance(alignment, int) or alignment < 1:
        raise LowprecError(f"{path}: {_ALIGNMENT}: {alignment}; expected a positive integer")
    start = -(-header.at // alignment) * alignment
    return architecture, [_tensor(data, start, *entry, str(path)) for entry in table]


class _Header:
    """Reads on from `at`, never beyond the end."""

    def __init__(self, data: np.ndarray, where: str) -> None:
        self.data, self.where, self.at = data, where, 4

    def bytes(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise LowprecError(
                f"{self.where}: damaged: {count} bytes at byte {self.at} end beyond the file's "
                f"{len(self.data)}"
            )
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))

    def string(self) -> str:
        try:
            return self.bytes(*self.take("Q")).decode()
        except UnicodeDecodeError:
            raise LowprecError(f"{self.where}: damaged: text that is not UTF-8") from None

    def value(self, kind: int, depth: int = 0) -> Any:
        """A scalar or string; arrays are passed over."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _DEEPEST:
            each, count = self.take("IQ")
            if each in _SCALARS:
                self.bytes(count * struct.calcsize(f"<{_SCALARS[each]}"))
                return None
            for _ in range(count):
                self.bytes(*self.take("Q")) if each == _STRING else self.value(each, depth + 1)
            return None
        if kind not in _SCALARS:
            raise LowprecError(f"{self.where}: damaged: a value of type {kind}")
        return self.take(_SCALARS[kind])[0]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, (rank,) = self.string(), self.take("I")
        if rank > 8:
            raise LowprecError(f"{self.where}: {name}: damaged: {rank} dimensions")
        return name, self.take(f"{rank}Q")[::-1], *self.take("IQ")


def _tensor(
    data: np.ndarray,
    start: int,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    offset: int,
    where: str,
) -> GgufTensor:
    try:
        type_ = GGMLQuantizationType(kind)
    except ValueError:
        raise LowprecError(f"{where}: {name}: type {kind}, which gguf does not know") from None
    size, bytes_ = GGML_QUANT_SIZES[type_]
    if not shape or shape[-1] % size:
        raise LowprecError(f"{where}: {name}: shape {shape}; {type_.name} has blocks of {size}")
    count = math.prod(shape) // size * bytes_
    if start + offset + count > len(data):
        raise LowprecError(
            f"{where}: {name}: {count} bytes at {start + offset} end beyond the file's {len(data)}"
        )
    return GgufTensor(name, type_, shape, data[start + offset : start + offset + count])
