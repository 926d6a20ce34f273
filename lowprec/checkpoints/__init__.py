"""Quantized checkpoints: read into codes, and written."""

from lowprec.checkpoints.load import is_quantized, load_checkpoint
from lowprec.checkpoints.write import save_checkpoint

__all__ = ["is_quantized", "load_checkpoint", "save_checkpoint"]
