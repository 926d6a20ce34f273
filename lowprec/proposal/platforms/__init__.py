"""A model under recipes on machines, as a partner who chooses between them needs it."""

from lowprec.proposal.platforms.compare import Platform, compare, named_recipes
from lowprec.proposal.platforms.page import page

__all__ = ["Platform", "compare", "named_recipes", "page"]
