"""The shipped formats, and equality of tensors in every bit."""

from __future__ import annotations

from torch import Tensor

from lowprec import format as load_format
from lowprec import list_formats
from lowprec.eval.conformance.comparison import differing
from lowprec.spec import Format

FORMATS = [load_format(name) for name in list_formats()]
SCALARS = [fmt for fmt in FORMATS if isinstance(fmt, Format)]
BLOCKS = [fmt for fmt in FORMATS if not isinstance(fmt, Format)]


def assert_same_bits(found: Tensor, expected: Tensor, x: Tensor | None = None) -> None:
    """Equal in every bit, any NaN equal to any other."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    wrong = differing(found, expected)
    if wrong.any():
        at = [found[wrong][:5].tolist(), expected[wrong][:5].tolist()]
        of = "" if x is None else f" of {[v.hex() for v in x.expand_as(found)[wrong][:5].tolist()]}"
        raise AssertionError(f"{int(wrong.sum())} wrong: {at[0]}, expected {at[1]}{of}")
