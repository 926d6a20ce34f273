"""The package that a vendor receives: one folder, made from records, formats and models alone."""

from lowprec.proposal.package.build import propose

__all__ = ["propose"]
