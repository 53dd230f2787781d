"""httpx gives up a request after five seconds without a byte, which a busy machine may take; here it waits as every test does."""

from __future__ import annotations

from typing import Final

import httpx

from tests.waiting import PATIENCE_S

PHASES: Final = ("connect", "read", "write", "pool")


def install() -> None:
    """From now on requests of this process that state no limit have this one."""
    for phase in PHASES:
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, PATIENCE_S)
