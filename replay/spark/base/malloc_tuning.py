"""Asks the C library to keep freed memory, for processes that make one array after another.

One rule: it also works without that. As it is, glibc hands each freed array of some hundred kilobytes back to the system, and
the next one is zeroed page by page again: a fifth of the CPU time of a read.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

MMAP_FROM_BYTES: Final = 32 << 20  # the most that glibc takes; larger arrays go back to the system at once
KEPT_BYTES_MAX: Final = 64 << 20  # free at the heap's end: some times what the arrays of a turn take together
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of malloc.h


@cache
def keep_freed() -> bool:
    """Once per process; False where the C library has no such option."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, MMAP_FROM_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX))
