"""Idempotency: keys, what is known of them, and how outcomes are kept.

A *fingerprint* of 16 bytes stands for a key within its scope (the credential). What is answered for a known key is described in
`key_table.py`; here are the forms: fingerprints, requests, outcomes. `packed_outcomes.py` has how those of a batch are stored.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import google_crc32c
import orjson

KEY_BYTES = 16
HOLDER_BYTES: Final = 2  # at the end of a fingerprint
NO_KEY = bytes(KEY_BYTES)
_TIME_BIT = 1 << 63
_MS_MASK = (1 << 43) - 1
_HOLDER_MASK = (1 << 8 * HOLDER_BYTES) - 1
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_crc, _crc32, _dumps = google_crc32c.extend, zlib.crc32, orjson.dumps


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    ABORTED = 1
    FAILED = 2
    KEY_REUSED = 3
    SESSION_EXPIRED = 4
    SESSIONS_FULL = 5


def _refusals(reused: str, expired: str, full: str) -> dict[Status, bytes]:
    messages = {Status.KEY_REUSED: reused, Status.SESSION_EXPIRED: expired, Status.SESSIONS_FULL: full}
    return {status: orjson.dumps({"code": status.name.lower(), "message": message}) for status, message in messages.items()}


REFUSALS: Final = _refusals(
    "this idempotency key belongs to a call with other parameters",
    "this idempotency key is too old: its outcome is no longer known; the call is not run again",
    "the table of idempotency keys is full; try again later",
)
SESSION_REFUSALS: Final = _refusals(
    "this number of the session belongs to a call with other parameters",
    "the session has ended, or its client has seen the outcome of this number; the call is not run",
    "there are too many sessions; end some, or try again later",
)


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Limits of the tables; part of the log, because replicas and replays must decide alike."""

    window_ms: int = 86_400_000  # a day: longer than any client retries
    forget_ms: int = 604_800_000  # opaque keys stay refused for a week more
    keys_max: int = 1_000_000  # per partition; 145 to 210 MB of memory when full, and 125 in the node's index of keys
    stored_result_bytes_max: int = 1 << 20  # a keyed call with a longer result fails: it could not be answered twice
    clock_lead_max_ms: int = 60_000  # most that one batch advances the activity clock
    session_idle_ms: int = 3_600_000  # of the activity clock; a session without a call for so long is forgotten
    sessions_max: int = 200_000  # per partition, and as many of calls on all partitions; about 1 KB each


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """What a call answered."""

    status: int
    txn_id: int
    body: bytes
    request: int = 0


KEY_CHARS_MAX: Final = 255  # of an idempotency key


def key_fingerprint(scope: str, key: str) -> bytes:
    """16 bytes that stand for an idempotency key within its scope.

    Keys that are UUIDs of version 7 carry their time; the last 8 bytes then hold: 1 | 43 bits milliseconds | 4 bits of hash | the
    scope. For all others the first of these bits is 0. Never all zeros. Raises: TypeError for a key that is no text.
    """
    if not isinstance(key, str):
        raise TypeError(
            f"idempotency_key is text, not {type(key).__name__}; give a new one to each call, and the same to its retries"
        )
    digest = hashlib.blake2b(scope.encode() + b"\0" + key.encode(), digest_size=KEY_BYTES).digest()
    low = int.from_bytes(digest[8:])
    text = key.lower()
    if _UUID7.fullmatch(text):
        milliseconds = min(int(text[:8] + text[9:13], 16), _MS_MASK)  # beyond the year 2248 all times are the same
        low = _TIME_BIT | milliseconds << 20 | low & 0xFFFFF
    else:
        low &= _TIME_BIT - 1
    fingerprint = digest[:8] + (low & ~_HOLDER_MASK | _holder_in(scope)).to_bytes(8)
    return fingerprint if any(fingerprint) else NO_KEY[:-1] + b"\1"


@lru_cache(maxsize=1024)
def _holder_in(scope: str) -> int:
    return int.from_bytes(hashlib.blake2b(scope.encode(), digest_size=HOLDER_BYTES).digest())


def holder_of(fingerprint: bytes) -> str:
    """Stands for the scope of a key or session: whose share of the tables it takes. Two scopes have the same once in 65,536."""
    return _hex(fingerprint[KEY_BYTES - HOLDER_BYTES :])


_hex = lru_cache(maxsize=1024)(bytes.hex)  # one object each


def key_time_ms(fingerprint: bytes) -> int | None:
    """The time that a key carries; None for an opaque one."""
    low = int.from_bytes(fingerprint[8:])
    return low >> 20 & _MS_MASK if low & _TIME_BIT else None


def time_mark(milliseconds: int) -> bytes:
    """Last 8 bytes of the smallest fingerprint that carries this time, or a later one."""
    return (_TIME_BIT | min(max(0, milliseconds), _MS_MASK) << 20).to_bytes(8)


def refusal(status: Status) -> KnownOutcome:
    """The answer to a call that is not run; nothing of it is kept."""
    return KnownOutcome(status, 0, REFUSALS[status])


def session_refusal(status: Status) -> KnownOutcome:
    """The answer to a call of a session that is not run; nothing of it is kept."""
    return KnownOutcome(status, 0, SESSION_REFUSALS[status])


class Fresh:
    """The outcomes that a batch brings, in columns: they are written as columns, and most are never looked at."""

    __slots__ = ("bodies", "hashed", "keys", "parameters", "requests", "statuses", "txn_ids")

    def __init__(
        self,
        keys: Sequence[bytes] = (),
        requests: Iterable[int] = (),
        statuses: Iterable[int] = (),
        txn_ids: Iterable[int] = (),
        bodies: Iterable[bytes] = (),
        *,
        hashed: bool = False,
    ) -> None:
        self.keys = dict(zip(keys, range(len(keys)), strict=True))  # fingerprint -> position in the columns
        self.requests = list(requests)
        self.statuses = bytearray(statuses)
        self.txn_ids = list(txn_ids)
        self.bodies = list(bodies)
        self.hashed = hashed
        self.parameters: dict[bytes, tuple[int, Sequence[Any]]] = {}  # of calls of sessions: what makes their hash, or it

    def add(self, key: bytes, request: int, status: int, txn_id: int, body: bytes) -> None:
        self.keys[key] = len(self.bodies)
        self.requests.append(request)
        self.statuses.append(status)
        self.txn_ids.append(txn_id)
        self.bodies.append(body)

    def get(self, key: bytes) -> KnownOutcome | None:
        at = self.keys.get(key)
        return None if at is None else KnownOutcome(self.statuses[at], self.txn_ids[at], self.bodies[at], self.requests[at])

    def longest(self) -> int:
        return max(map(len, self.bodies), default=0)


NO_OUTCOMES: Final = Fresh()  # nothing is added to it


def split_keys(keys: bytes) -> tuple[bytes, ...]:
    return struct.unpack("16s" * (len(keys) // KEY_BYTES), keys)
