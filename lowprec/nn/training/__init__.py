"""Backward matmuls, delayed scales, optimizer states."""
