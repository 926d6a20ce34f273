"""The one error that users see, and the nearest valid name to go with it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LowprecError(ValueError):
    """Bad input: the message names the thing, what was expected and the nearest valid name.

    The command line prints it as one line and exits with code 2; no traceback.
    """


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'mxfp4'?"`` for the nearest of `known`; all of a short list; or nothing."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    if 0 < len(names) <= 12:
        return f"; expected one of {', '.join(names)}"
    return ""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> LowprecError:
    """The error for a `name` that is not among the `known` ones of its `kind`.

    `where` is the file and key it stands in, for example ``"study.toml: machines.0"``.
    """
    place = f"{where}: " if where else ""
    return LowprecError(f"{place}unknown {kind} {name!r}{did_you_mean(name, known)}")
