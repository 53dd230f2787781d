"""Idempotency keys: UUIDs of version 7, so that a server can tell from the key alone that it is too old, and forget it.

One rule: the time in a key follows the server's clock when ours is behind. A key that carries an old time may be refused as
expired, so a machine that woke up with its clock an hour back could call nothing at all.
"""

from __future__ import annotations

import email.utils
import os
import re
import time
from collections.abc import Callable
from typing import Final

from cmdlog.errors import InvalidParameters

KEY_CHARS_MAX: Final = 255
VISIBLE: Final = re.compile(rf"[!-~]{{1,{KEY_CHARS_MAX}}}", re.ASCII)
VARIANTS: Final = "89ab"  # first digit of a UUID's fourth group
SKEW_S_MIN: Final = 5.0  # a smaller difference is the way between us
DATE_STEP_S: Final = 1.0  # a `Date` leaves out the fraction; a key must not be born a second old


def uuid7(milliseconds: int, chance: bytes) -> str:
    """A UUID of version 7 (RFC 9562, 5.7). `chance` holds 10 bytes."""
    text = (milliseconds.to_bytes(6) + chance).hex()
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-{VARIANTS[chance[2] >> 4 & 3]}{text[17:20]}-{text[20:]}"


def time_of(key: str) -> float:
    """The time in a key of `uuid7`, in seconds."""
    return int(key[:8] + key[9:13], 16) / 1000


class KeyGenerator:
    """New keys. Threads may share one."""

    def __init__(self, *, wall: Callable[[], float] = time.time, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._wall, self._entropy = wall, entropy
        self._behind_s = 0.0

    def new(self) -> str:
        return uuid7(int((self._wall() + self._behind_s) * 1000), self._entropy(10))

    def better(self, key: str, date: str) -> str | None:
        """A key in place of one that was made here and carries a time of the past, as the server's `Date` shows."""
        try:
            there = email.utils.parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError, OverflowError):
            return None
        if there - time_of(key) < SKEW_S_MIN:
            return None
        self._behind_s = max(self._behind_s, there + DATE_STEP_S - self._wall())
        return self.new()


def check_key(key: str | None) -> str | None:
    """The key itself. Raises: InvalidParameters."""
    if key is not None and not VISIBLE.fullmatch(key):
        raise InvalidParameters(problems=[("idempotency_key", f"must have 1 to {KEY_CHARS_MAX} visible ASCII characters")])
    return key
