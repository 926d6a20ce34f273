"""Someone's results against a package's vectors: which rows differ, and why, in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.proposal.vectors import VectorSet, read
from lowprec.proposal.verify.compare import Mismatch, mismatches
from lowprec.proposal.verify.diagnose import diagnose, formats_of
from lowprec.proposal.verify.manifest import Integrity, check_manifest
from lowprec.proposal.verify.results import find_results, read_results

__all__ = ["Integrity", "Mismatch", "Verdict", "check_manifest", "verify"]

MAX_SETS = 200


@dataclass(frozen=True)
class Verdict:
    """What became of one set. answered: whether there were results; diagnoses: the mistakes that
    explain every mismatch, each alone."""

    name: str
    rows: int
    answered: bool
    wrong: tuple[Mismatch, ...] = ()
    diagnoses: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The verdict in words, with the first mismatches."""
        if not self.answered:
            return [f"{self.name}: no results"]
        if not self.wrong:
            return [f"{self.name}: all {self.rows} rows right"]
        why = "; or ".join(self.diagnoses) or "no known mistake explains all of them"
        lines = [f"{self.name}: {len(self.wrong)} of {self.rows} rows wrong: {why}"]
        return lines + [f"  {_line(mismatch)}" for mismatch in self.wrong[:3]]


def verify(package: Path, results: Path) -> list[Verdict]:
    """A verdict for every set in `package` (or in its folder ``vectors``).

    LowprecError for folders that hold no sets or no results, for files that are none, and for a
    package whose files are missing or not those of its manifest (see `check_manifest`).
    """
    integrity = check_manifest(package)
    if integrity is not None:
        integrity.require_whole(package)
    folder = package / "vectors" if (package / "vectors").is_dir() else package
    if folder.is_symlink():
        raise LowprecError(f"{folder}: expected a folder, no link")
    files = sorted(folder.glob("*.hex"))
    if not files or len(files) > MAX_SETS:
        raise LowprecError(f"{package}: {len(files)} vector files; expected 1 to {MAX_SETS}")
    if not results.is_dir():
        raise LowprecError(f"{results}: expected a folder of results")
    verdicts = [_verdict(read(path), results) for path in files]
    if not any(verdict.answered for verdict in verdicts):
        names = ", ".join(path.stem for path in files[:4])
        raise LowprecError(f"{results}: no results; expected files such as {names} (.hex, .csv)")
    return verdicts


def _verdict(asked: VectorSet, folder: Path) -> Verdict:
    path = find_results(folder, asked)
    if path is None:
        return Verdict(asked.name, asked.rows, answered=False)
    results = read_results(path, asked)
    wrong = mismatches(asked, results, formats_of(asked))
    diagnoses = diagnose(asked, results, wrong) if wrong else []
    return Verdict(asked.name, asked.rows, True, tuple(wrong), tuple(diagnoses))


def _line(mismatch: Mismatch) -> str:
    """One mismatch: the row, why it is asked, the inputs, the answers that differ."""
    differing = [n for n, words in mismatch.wanted.items() if mismatch.given[n] != words]
    asked = ", ".join(f"{n} {_words(w)}" for n, w in mismatch.asked.items())
    answers = ", ".join(
        f"{n} {_words(mismatch.given[n])} instead of {_words(mismatch.wanted[n])}"
        for n in differing
    )
    return f"row {mismatch.row + 1} ({mismatch.why}): {asked}: {answers}"


def _words(words: tuple[int, ...]) -> str:
    shown = ",".join(f"{word:#x}" for word in words[:6])
    return shown + (",..." if len(words) > 6 else "")
