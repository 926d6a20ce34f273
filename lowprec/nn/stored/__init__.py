"""Modules whose weights stay code points."""
