"""The hash seed of processes that run logged calls: it is pinned, so that the order of a set of strings repeats.

A process gets its seed when it starts and keeps it, so one that does not have this seed cannot replay: it starts another, or
itself again. Only the process that calls `cmdlog.open` runs procedures under a seed of its own choice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "PYTHONHASHSEED"
PINNED: Final = "0"  # no chance at all; any other number would do


def is_pinned() -> bool:
    """Whether this process runs under the pinned seed."""
    return not sys.flags.hash_randomization


def pin(environment: Mapping[str, str] = os.environ) -> None:
    """Starts the program at hand again under the pinned seed, unless it has it, or cannot get it (`python -E`)."""
    if not is_pinned() and environment.get(VARIABLE) != PINNED and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, VARIABLE: PINNED})  # noqa: S606 - this very program
