"""Waiting for what another thread or process brings about: the one module of the tests that sleeps.

One rule: a wait is for a condition and ends with it. The bound is there for a test that fails; no test measures a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 300.0  # many times what anything here takes, also on a slow machine that does ten other things
LOOK_EVERY_S: Final = 0.005
ASK_EVERY_S: Final = 0.05  # of servers, which share the processor with who asks
SELDOM: Final = 5.0  # so many times as long between two looks, once somebody has looked for a while: a look may cost milliseconds


def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S, *, every_s: float = LOOK_EVERY_S) -> bool:
    """Whether it becomes true."""
    deadline, looks = time.monotonic() + patience_s, 0
    while not condition():
        if time.monotonic() > deadline:
            return False
        looks += 1
        time.sleep(every_s * min(SELDOM, 1 + looks / 50))
    return True


def wait_for(
    condition: Callable[[], T],
    patience_s: float = PATIENCE_S,
    why: object = "it did not happen in time",
    *,
    every_s: float = LOOK_EVERY_S,
) -> T:
    """What the condition found. Raises: AssertionError with `why`; called, if it is a function."""
    found: list[T] = []

    def look() -> T:
        found[:] = [condition()]
        return found[0]

    assert eventually(look, patience_s, every_s=every_s), why() if callable(why) else why
    return found[0]


def ask_for(condition: Callable[[], T], patience_s: float = PATIENCE_S, why: object = "it did not happen in time") -> T:
    """As `wait_for`, for conditions that ask servers or start a program."""
    return wait_for(condition, patience_s, why, every_s=ASK_EVERY_S)
