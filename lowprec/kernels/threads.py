"""Threads for the core's functions, which run without Python's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def pool(threads: int) -> ThreadPoolExecutor:
    """One of so many threads, which lasts as long as the process."""
    return ThreadPoolExecutor(threads, thread_name_prefix="lowprec")
