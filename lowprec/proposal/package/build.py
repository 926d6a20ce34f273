"""Write the package: into a folder beside the target first, which then takes its name."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lowprec.errors import LowprecError
from lowprec.proposal.document import Document
from lowprec.proposal.document.html import html
from lowprec.proposal.document.markdown import FIGURES, markdown
from lowprec.proposal.document.pdf import pages, pdf, require_typst
from lowprec.proposal.evidence import SEARCH, STUDY, Evidence, load_evidence
from lowprec.proposal.package.hardware import check_tools, synthesised, verilog
from lowprec.proposal.package.readme import readme, rendered
from lowprec.proposal.package.specs import datapath_file, format_files
from lowprec.proposal.pricing import price
from lowprec.proposal.reference import c_reference, python_reference
from lowprec.proposal.sections import document
from lowprec.proposal.subject import Proposal, make_proposal
from lowprec.proposal.vectors import VectorSet, generate, write
from lowprec.proposal.vectors.model import Level
from lowprec.spec import Projection, Quantizer

MANIFEST = "manifest.json"
SCHEMA = 1
Say = Callable[[str], None]


def propose(
    study: str | Path,
    format: str | Path,
    out: str | Path,
    baseline: str | None = None,
    level: Level = "standard",
    say: Say | None = None,
) -> Path:
    """Write the package of a format, from a study's folder, to the folder `out`; its path.

    format: a name or a file, or with its scale rule as in ``my.toml/amax``. level: how many
    vectors. say: is told what is being made. The same study, format and versions of the tools give
    the same bytes. An earlier package in `out` is replaced as a whole; nothing half-written stays.
    LowprecError: no study, no such format, a folder in `out` that is no package, a missing tool.
    """
    target = Path(out)
    _check_target(target)
    require_typst()
    check_tools()
    proposal = make_proposal(load_evidence(Path(study)), str(format), baseline)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".writing-"))
    try:
        _write(proposal, work, level, say or _silent)
        work.chmod(0o755)
        _replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _silent(text: str) -> None:
    del text


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise LowprecError(f"{target}: is a file; expected a folder to write the proposal to")
    if any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise LowprecError(f"{target}: holds something else than a proposal; name another folder")


def _replace(work: Path, target: Path) -> None:
    """`work` under the name of `target`, whose old content goes."""
    if target.exists():
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=".old-"))
        target.rename(old / target.name)
        try:
            work.rename(target)
        except OSError:
            (old / target.name).rename(target)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
    else:
        work.rename(target)


def _write(p: Proposal, folder: Path, level: Level, say: Say) -> None:
    say("definitions, references and vectors")
    for name, content in format_files(p):
        _put(folder / "formats" / name, content)
    if p.ours.unit is not None:
        _put(folder / "datapath" / f"{p.ours.unit.name}.toml", datapath_file(p.ours.unit, p.name))
    for name, text in references(p).items():
        _put(folder / "reference" / name, text.encode())
    sets = vector_sets(p, level)
    write(sets, folder / "vectors")
    _put(folder / "check.py", rendered("check.py.jinja", name=p.name).encode())
    say("hardware")
    hardware = verilog(p)
    for name, text in hardware.files.items():
        _put(folder / "rtl" / name, text.encode())
    say("throughput and cost")
    made = document(p, price(p), sets, synthesised(p))
    say("the document")
    _documents(made, folder)
    _records(p.evidence, folder / "records")
    _put(folder / "README.md", readme(p, sets, hardware).encode())
    _put(folder / MANIFEST, manifest(p, folder).encode())


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _documents(made: Document, folder: Path) -> None:
    _put(folder / "proposal.md", markdown(made).encode())
    for figure in made.figures:
        _put(folder / FIGURES / f"{figure.name}.svg", figure.svg.encode())
    _put(folder / "proposal.html", html(made).encode())
    _put(folder / "proposal.pdf", pdf(made))
    _put(folder / "proposal.png", pages(made)[0])


def references(p: Proposal) -> dict[str, str]:
    """The single-file references by name; with a dot product where one can be written."""
    quantizer, found = p.ours.quantizer, {}
    for name, write_one in ((f"{p.name}.py", python_reference), (f"{p.name}.h", c_reference)):
        try:
            found[name] = write_one(quantizer, p.ours.unit)
        except LowprecError:
            found[name] = write_one(quantizer)
    random = Projection(rounding="stochastic", saturation=quantizer.projection.saturation, bits=8)
    try:
        stochastic = Quantizer.model_validate(dict(quantizer) | {"projection": random})
        found[f"{p.name}_stochastic.py"] = python_reference(stochastic)
    except LowprecError:
        pass
    return found


def vector_sets(p: Proposal, level: Level) -> Sequence[VectorSet]:
    """Those of the quantizer and of the unit."""
    sets = generate(p.ours.quantizer, level)
    return sets if p.ours.unit is None else sets + generate(p.ours.unit, level)


def _records(evidence: Evidence, folder: Path) -> None:
    """The records of recipes that the study names, and the study, as they are."""
    for cell in evidence.cells:
        _put(folder / cell.file, (evidence.folder / cell.file).read_bytes())
    for name in (STUDY, SEARCH):
        if (evidence.folder / name).is_file():
            _put(folder / name, (evidence.folder / name).read_bytes())


def manifest(p: Proposal, folder: Path) -> str:
    """Every file of the package with its SHA-256 and size."""
    from lowprec import __version__

    found = {
        path.relative_to(folder).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    data = {
        "schema": SCHEMA,
        "format": p.name,
        "baseline": p.baseline.name if p.baseline else None,
        "lowprec": __version__,
        "files": found,
    }
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
