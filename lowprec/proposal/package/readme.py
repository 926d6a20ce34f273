"""The package's own README: what is where, and how to check an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from lowprec.proposal.package.hardware import Verilog
from lowprec.proposal.reference import c_name
from lowprec.proposal.subject import Proposal
from lowprec.proposal.vectors import VectorSet


def rendered(template: str, **what: Any) -> str:
    """A template of this package."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = files("lowprec.proposal.package").joinpath(template).read_text()
    return environment.from_string(text).render(**what)


def readme(p: Proposal, sets: Sequence[VectorSet], hardware: Verilog) -> str:
    """README.md."""
    return rendered(
        "README.md.jinja",
        name=p.name,
        c_name=c_name(p.ours.quantizer),
        baseline=p.baseline is not None,
        unit=p.ours.unit is not None,
        rtl=[f"`{name}`" for name in hardware.files],
        missing=hardware.missing,
        sets=sets,
    )
