"""Chips by what drivers, shops and papers call them: "NVIDIA H200 141GB HBM3e", "Gaudi3".

Makers and boards tell no two chips apart, nor do spaces and case; gigabytes do, and are held
against the capacity of the machine's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel", "google", "cloud", "aws",
           "amazon", "microsoft", "huawei", "gpu", "accelerator", "tensor", "core")  # fmt: skip
_NOISE = re.compile(rf"{'|'.join(_MAKERS)}|hgx|dgx|sxm\d?|oam")
_MEMORY = re.compile(r"hbm\de?|gddr\dx?")
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?) ?gi?b?\b")
# GB for GiB, or what a driver reports of it, is still the same chip.
_SLACK = 0.08


@dataclass(frozen=True, slots=True)
class Spelled:
    """key: the name in letters and digits without makers and boards; kind: of the memory, if
    said; gigabytes: of the memory, if said."""

    key: str
    kind: str
    gigabytes: float | None

    @classmethod
    def of(cls, name: str) -> Spelled:
        text = re.sub(r"[^a-z0-9.]+", " ", name.lower())
        size = _SIZE.search(text)
        words = _SIZE.sub(" ", text).split()
        kinds = [word for word in words if _MEMORY.fullmatch(word)]
        key = (word for word in words if not _NOISE.fullmatch(word) and word not in kinds)
        return cls("".join(key), "".join(kinds), float(size[1]) if size else None)

    def agrees(self, capacities: Iterable[float]) -> bool:
        """Whether the gigabytes, if any, are those of one of the capacities in bytes."""
        if self.gigabytes is None:
            return True
        return any(abs(self.gigabytes * 1e9 / c - 1) < _SLACK for c in capacities)


def meant(spelled: Spelled, known: Mapping[str, str]) -> list[str]:
    """The machines that a name may mean, given the machine of each known alias: those of the same
    key, of the same kind of memory where that tells them apart, and where the name says no
    gigabytes those of aliases that say none."""
    same = [(other, name) for alias, name in known.items() if (other := Spelled.of(alias)).key]
    same = [pair for pair in same if pair[0].key == spelled.key]
    same = [pair for pair in same if pair[0].kind == spelled.kind] or same
    same = [pair for pair in same if not pair[0].kind] or same
    if spelled.gigabytes is None:
        same = [pair for pair in same if pair[0].gigabytes is None] or same
    return list(dict.fromkeys(name for _, name in same))
