"""Conformance vectors: questions with the answers of `lowprec.exact`, in files that anyone reads.

    sets = generate(load_quantizer("mxfp4/floor"), "smoke")
    write(sets, Path("vectors"))
    read(Path("vectors/encode-element.hex"))

``docs/vectors.md`` describes the files.
"""

from lowprec.proposal.vectors.files import read, write
from lowprec.proposal.vectors.generate import generate
from lowprec.proposal.vectors.model import KINDS, LEVELS, SCHEMA, Column, VectorSet
from lowprec.proposal.vectors.target import load_target

__all__ = [
    "KINDS",
    "LEVELS",
    "SCHEMA",
    "Column",
    "VectorSet",
    "generate",
    "load_target",
    "read",
    "write",
]
