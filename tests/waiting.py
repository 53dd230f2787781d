"""Waiting for what another thread or process brings about: the one module of the tests that sleeps.

One rule: a wait is for a condition and ends with it. The bound is there for a test that fails; no test measures a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 60.0  # many times what anything here takes, also on a machine that does something else
LOOK_EVERY_S: Final = 0.005


def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Whether it becomes true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def wait_for(condition: Callable[[], T], patience_s: float = PATIENCE_S, why: object = "it did not happen in time") -> T:
    """What the condition found. Raises: AssertionError with `why`; called, if it is a function."""
    found: list[T] = []

    def look() -> T:
        found[:] = [condition()]
        return found[0]

    assert eventually(look, patience_s), why() if callable(why) else why
    return found[0]
