"""Scaled dot product attention and KV caches."""
