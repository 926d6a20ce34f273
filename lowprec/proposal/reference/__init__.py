"""References of exactly one format that need no lowprec: a Python file and a C99 header."""

from lowprec.proposal.reference.generate import c_name, c_reference, python_reference

__all__ = ["c_name", "c_reference", "python_reference"]
