"""npz: an array of unsigned integers per column, read without numpy's own archive reader.

COLUMN holds the words, and of a column of many COLUMN.start the place of each row's first word
and the end. `why` holds places in the head's list `reasons`; `head` is JSON as bytes.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import head
from lowprec.proposal.vectors.model import MAX_COLUMNS, MAX_WORDS, VectorSet, Words

if TYPE_CHECKING:
    import numpy as np

MAX_MEMBER = 8 * MAX_WORDS
MAX_TOTAL = 2 * MAX_MEMBER
# What zipfile raises for damaged archives, encrypted ones and unknown compressions.
_BAD = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError,
    ValueError, OverflowError, struct.error,
)  # fmt: skip


def dump(found: VectorSet) -> bytes:
    import numpy as np

    reasons = sorted(set(found.why))
    top = head.text(found.head | {"reasons": reasons}).encode()
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "head": np.frombuffer(top, np.uint8),
        "why": np.array([reasons.index(why) for why in found.why], np.uint16),
    }
    for column in found.columns:
        flat = [word for words in column.words for word in words]
        arrays[column.name] = np.array(flat, _dtype(column.bits))
        if column.many:
            counts = [0, *(len(words) for words in column.words)]
            arrays[f"{column.name}.start"] = np.cumsum(counts).astype(np.uint32)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            # A fixed time: the same set gives the same bytes.
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, member.getvalue())
    return buffer.getvalue()


def _dtype(bits: int) -> str:
    return next(f"<u{size // 8}" for size in (8, 16, 32, 64) if bits <= size)


def load(data: bytes) -> VectorSet:
    arrays = read_arrays(data)
    if "head" not in arrays or "why" not in arrays:
        raise LowprecError("no array 'head' or no array 'why'")
    top = head.parse(arrays["head"].tobytes())
    found, reasons = head.check(top), top.get("reasons")
    if not isinstance(reasons, list) or not all(isinstance(each, str) for each in reasons):
        raise LowprecError("head: reasons: expected a list of words")
    places = arrays["why"].tolist()
    if any(place >= len(reasons) for place in places):
        raise LowprecError("why: a place beyond the list of reasons")
    words = [column_words(arrays, each, len(places)) for each in found["columns"]]
    return head.assemble(found, words, tuple(reasons[place] for place in places))


def column_words(
    arrays: dict[str, np.ndarray[Any, Any]], column: Any, rows: int
) -> tuple[Words, ...]:
    """The words of each row of the column that a head describes."""
    name = column["name"]
    if name not in arrays:
        raise LowprecError(f"no array {name[:40]!r}")
    flat = arrays[name].tolist()
    if not column["many"]:
        return tuple((word,) for word in flat)
    if f"{name}.start" not in arrays:
        raise LowprecError(f"no array '{name[:40]}.start'")
    starts = arrays[f"{name}.start"].tolist()
    rising = all(a <= b for a, b in pairwise(starts))
    if len(starts) != rows + 1 or not rising or starts[0] != 0 or starts[-1] != len(flat):
        raise LowprecError(f"{name}.start: expected {rows + 1} rising places from 0 to the end")
    return tuple(tuple(flat[a:b]) for a, b in pairwise(starts))


def read_arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """One-dimensional arrays of unsigned integers by name; LowprecError for anything else."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if len(infos) > 2 * MAX_COLUMNS + 2:
                raise LowprecError(f"{len(infos)} arrays; at most {2 * MAX_COLUMNS + 2}")
            if sum(info.file_size for info in infos) > MAX_TOTAL:
                raise LowprecError(f"unpacks to more than {MAX_TOTAL >> 20} MiB; not read")
            if len({info.filename for info in infos}) != len(infos):
                raise LowprecError("two arrays have the same name")
            return {info.filename.removesuffix(".npy"): _array(archive, info) for info in infos}
    except LowprecError:
        raise
    except _BAD as error:
        raise LowprecError(f"no npz: {error}") from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    import numpy as np

    name = info.filename[:60]
    if info.file_size > MAX_MEMBER or info.flag_bits & 1:
        raise LowprecError(f"{name}: too large, or encrypted; not read")
    with archive.open(info) as file:
        # No more than promised, whatever the compressed data say.
        content = io.BytesIO(file.read(info.file_size))
    try:
        version = np.lib.format.read_magic(content)
        if version != (1, 0):
            raise LowprecError(f"{name}: npy version {version}; expected 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    except LowprecError:
        raise
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise LowprecError(f"{name}: {str(error)[:80]}") from None
    rest = content.read()
    if dtype.kind != "u" or dtype.itemsize > 8 or len(shape) != 1:
        raise LowprecError(f"{name}: expected one dimension of unsigned integers")
    if shape[0] * dtype.itemsize != len(rest):
        raise LowprecError(f"{name}: {len(rest)} bytes do not fill the shape {shape}")
    return np.frombuffer(rest, dtype)
