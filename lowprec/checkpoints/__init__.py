"""Quantized checkpoints: read into codes, and written."""

from lowprec.checkpoints.load import load_checkpoint

__all__ = ["load_checkpoint"]
