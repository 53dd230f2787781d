"""Idempotency: which keys were seen, and what their calls answered.

A *fingerprint* of 16 bytes stands for a key within its scope (the credential). One row of `_cmdlog_keys` holds what a batch
added, written in the batch's transaction; a dict in memory, rebuilt at open, finds it. Rules, first match wins:

1. known, outcome kept: the same request gets the stored outcome, another one KEY_REUSED;
2. known, outcome dropped (a *tombstone*): SESSION_EXPIRED;
3. unknown, but the key bears a time older than the window: SESSION_EXPIRED, it may have been forgotten;
4. the table is full: SESSIONS_FULL; nothing is evicted to make room, because that would forget an acknowledged call;
5. otherwise the call runs, and its result, abort or failure is kept.

Time here is the *activity clock* of the state: with each batch it advances by the step of the transaction ids, but by
`clock_lead_max_ms` at most. A clock that jumps a day ahead therefore expires nothing. Outcomes are dropped `window_ms` of
activity later; then keys that bear a time are forgotten as soon as rule 3 covers them, opaque ones after `forget_ms` more.
A key that claims a time further ahead than that is forgotten then, too: a wrong client clock must not fill the table.

All of it is a function of the state and the batch, so replicas and replays decide alike; the policy is logged.

Row: `keys` n * 16 bytes; `outcomes` n * u64 request hash, n * i64 txn id, n * u32 end of body, n * u8 status, bodies; little
endian. `due` is the activity time at which the row is dropped (outcomes kept) or forgotten (outcomes NULL).
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import google_crc32c
import orjson
from sortedcontainers import SortedList

from .errors import StateRefused
from .state import PartitionState, rows_of

KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)
ROWS_EXPIRED_PER_BATCH = 4  # a batch adds one row at most, so the table shrinks four times as fast as it grows
_TIME_BIT = 1 << 63
_MS_MASK = (1 << 43) - 1
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_POSITION_BITS = 20
_crc, _crc32, _dumps = google_crc32c.extend, zlib.crc32, orjson.dumps


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    ABORTED = 1
    FAILED = 2
    KEY_REUSED = 3
    SESSION_EXPIRED = 4
    SESSIONS_FULL = 5


REFUSALS = {
    status: orjson.dumps({"code": status.name.lower(), "message": message})
    for status, message in (
        (Status.KEY_REUSED, "this idempotency key belongs to a call with other parameters"),
        (Status.SESSION_EXPIRED, "this idempotency key is too old: its outcome is no longer known; the call is not run again"),
        (Status.SESSIONS_FULL, "the table of idempotency keys is full; try again later"),
    )
}


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Limits of the table; part of the log, because replicas and replays must decide alike."""

    window_ms: int = 86_400_000  # a day: longer than any client retries
    forget_ms: int = 604_800_000  # opaque keys stay refused for a week more
    keys_max: int = 1_000_000  # per partition; about 150 MB of memory when full
    stored_result_bytes_max: int = 1 << 20  # a keyed call with a longer result fails: it could not be answered twice
    clock_lead_max_ms: int = 60_000  # most that one batch advances the activity clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call answered."""

    status: int
    txn_id: int
    body: bytes
    request: int = 0


def key_fingerprint(scope: str, key: str) -> bytes:
    """16 bytes that stand for an idempotency key within its scope.

    Keys that are UUIDs of version 7 bear their time; the last 8 bytes then hold: 1 | 43 bits milliseconds | 20 bits of hash.
    For all others the first of these bits is 0. Never all zeros.
    """
    digest = hashlib.blake2b(scope.encode() + b"\0" + key.encode(), digest_size=KEY_BYTES).digest()
    low = int.from_bytes(digest[8:])
    text = key.lower()
    if _UUID7.fullmatch(text):
        milliseconds = int(text[:8] + text[9:13], 16) & _MS_MASK
        low = _TIME_BIT | milliseconds << 20 | low & 0xFFFFF
    else:
        low &= _TIME_BIT - 1
    fingerprint = digest[:8] + low.to_bytes(8)
    return fingerprint if any(fingerprint) else NO_KEY[:-1] + b"\1"


def key_time_ms(fingerprint: bytes) -> int | None:
    """The time that a key bears; None for an opaque one."""
    low = int.from_bytes(fingerprint[8:])
    return low >> 20 & _MS_MASK if low & _TIME_BIT else None


def request_seed(procedure: str) -> int:
    """The part of `request_hash` that the procedure's name gives."""
    return int(google_crc32c.value(procedure.encode()))


def request_hash(seed: int, params: list[Any]) -> int:
    """64 bits of a request: two CRCs, against accidents; a client that forges a collision only fools itself."""
    data = _dumps(params)
    request: int = _crc(seed, data) << 32 | _crc32(data)
    return request


class Fresh:
    """The outcomes that a batch brings, in columns: they are written as columns, and most are never looked at."""

    __slots__ = ("bodies", "keys", "requests", "statuses", "txn_ids")

    def __init__(
        self,
        keys: Sequence[bytes] = (),
        requests: Iterable[int] = (),
        statuses: Iterable[int] = (),
        txn_ids: Iterable[int] = (),
        bodies: Iterable[bytes] = (),
    ) -> None:
        self.keys = dict(zip(keys, range(len(keys)), strict=True))  # fingerprint -> position in the columns
        self.requests = list(requests)
        self.statuses = bytearray(statuses)
        self.txn_ids = list(txn_ids)
        self.bodies = list(bodies)

    def add(self, key: bytes, request: int, status: int, txn_id: int, body: bytes) -> None:
        self.keys[key] = len(self.bodies)
        self.requests.append(request)
        self.statuses.append(status)
        self.txn_ids.append(txn_id)
        self.bodies.append(body)

    def get(self, key: bytes) -> Outcome | None:
        at = self.keys.get(key)
        return None if at is None else Outcome(self.statuses[at], self.txn_ids[at], self.bodies[at], self.requests[at])

    def longest(self) -> int:
        return max(map(len, self.bodies), default=0)

    def pack(self) -> bytes:
        """The columns as `_cmdlog_keys.outcomes` holds them."""
        count = len(self.bodies)
        ends = itertools.accumulate(map(len, self.bodies))
        head = struct.pack(f"<{count}Q{count}q{count}I", *self.requests, *self.txn_ids, *ends)
        return b"".join((head, self.statuses, *self.bodies))


def stored_keys(state: PartitionState) -> Iterator[bytes]:
    """Every fingerprint that the state file remembers, without building the table."""
    for (keys,) in rows_of(state.connection, "SELECT keys FROM _cmdlog_keys ORDER BY idx"):
        yield from split_keys(keys)


class KeyTable:
    """The known keys of one partition: dict in memory, rows in the state file."""

    def __init__(self, state: PartitionState, policy: KeyPolicy) -> None:
        self._state = state
        self.policy = policy
        self._known: dict[bytes, int] = {}  # fingerprint -> idx << 20 | position in the row
        self._due: SortedList[tuple[int, int]] = SortedList()  # (due, idx) of every row
        self._pending: list[tuple[str, Any]] = []  # what accept() does to the two above
        self._load()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def _load(self) -> None:
        rows = rows_of(self._state.connection, "SELECT idx, due, keys FROM _cmdlog_keys ORDER BY idx")
        due = []
        for index, row_due, keys in rows:
            due.append((row_due, index))
            base = index << _POSITION_BITS
            self._known.update(zip(split_keys(keys), range(base, base + len(keys) // KEY_BYTES), strict=True))
        self._due.update(due)

    def runs_plainly(self, keys: Sequence[bytes], txn_ms_max: int) -> bool:
        """Whether rule 5 holds for every call of a batch; told for all keys together, since that is the common case."""
        if len(self._known) + len(keys) > self.policy.keys_max or not self._known.keys().isdisjoint(keys):
            return False
        given = [key for key in keys if key != NO_KEY] if NO_KEY in keys else keys
        if len(set(given)) != len(given):
            return False
        marks = b"".join(given)[8::KEY_BYTES]  # the bytes whose top bit says that the key bears a time
        if not marks or max(marks) < 0x80:
            return True
        floor = self.oldest_time(txn_ms_max)
        return all(key[8:] >= floor or key[8] < 0x80 for key in given)

    def oldest_time(self, txn_ms: int) -> bytes:
        """Last 8 bytes of the smallest fingerprint whose time lies within the window."""
        return (_TIME_BIT | max(0, txn_ms - self.policy.window_ms) << 20).to_bytes(8)

    def judge(self, key: bytes, request: int, txn_ms: int, fresh: Fresh) -> Outcome | None:
        """The answer that rules 1 to 4 give; None: the call runs. `fresh` holds the outcomes of this batch so far."""
        found = fresh.get(key)
        if found is None and key in self._known:
            found = self._stored(self._known[key])
            if found is None:
                return _refusal(Status.SESSION_EXPIRED)
        if found is not None:
            return found if found.request == request else _refusal(Status.KEY_REUSED)
        if key[8] >= 0x80 and key[8:] < self.oldest_time(txn_ms):
            return _refusal(Status.SESSION_EXPIRED)
        if len(self._known) + len(fresh.keys) >= self.policy.keys_max:
            return _refusal(Status.SESSIONS_FULL)
        return None

    def _stored(self, place: int) -> Outcome | None:
        index, position = place >> _POSITION_BITS, place & (1 << _POSITION_BITS) - 1
        row = rows_of(self._state.connection, "SELECT keys, outcomes FROM _cmdlog_keys WHERE idx = ?", (index,))
        if len(row) != 1:
            raise StateRefused(f"{self._state.path}: outcomes of batch {index} are missing from _cmdlog_keys")
        keys, outcomes = row[0]
        return None if outcomes is None else unpack_outcome(outcomes, len(keys) // KEY_BYTES, position)

    def clock_after(self, txn_ms: int, last_ms: int) -> int:
        """Activity clock after a batch whose last transaction is at `txn_ms`."""
        return self._state.clock + min(max(0, txn_ms - last_ms), self.policy.clock_lead_max_ms)

    def store(self, index: int, fresh: Fresh, *, clock: int, txn_ms: int) -> None:
        """Writes a batch's outcomes and expires old ones, in the open transaction; `accept` follows its COMMIT."""
        self._pending = []
        execute = self._state.connection.execute
        self._expire(clock, txn_ms)
        if not fresh.keys:
            return
        due = clock + self.policy.window_ms
        execute("INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, ?)", (index, due, clock, b"".join(fresh.keys), fresh.pack()))
        base = index << _POSITION_BITS
        self._pending.append(("add", zip(fresh.keys, range(base, base + len(fresh.keys)), strict=True)))
        self._pending.append(("due", (due, index)))

    def _expire(self, clock: int, txn_ms: int) -> None:
        for due, index in self._due.islice(0, ROWS_EXPIRED_PER_BATCH):
            if due > clock:
                return
            ((keys, kept),) = rows_of(
                self._state.connection, "SELECT keys, outcomes IS NOT NULL FROM _cmdlog_keys WHERE idx = ?", (index,)
            )
            self._pending.append(("done", (due, index)))
            self._shrink(index, list(split_keys(keys)), clock, txn_ms, bury=bool(kept))

    def _shrink(self, index: int, keys: list[bytes], clock: int, txn_ms: int, *, bury: bool) -> None:
        """Drops a row's outcomes and leaves the tombstones that are still needed; without `bury` it forgets all."""
        execute = self._state.connection.execute
        floor = self.oldest_time(txn_ms)
        tombs = [key for key in keys if key[8] < 0x80 or key[8:] >= floor] if bury else []
        if tombs:
            due = max(self._forgotten_at(key, clock, txn_ms) for key in tombs)
            execute("UPDATE _cmdlog_keys SET due = ?, keys = ?, outcomes = NULL WHERE idx = ?", (due, b"".join(tombs), index))
            self._pending.append(("due", (due, index)))
        else:
            execute("DELETE FROM _cmdlog_keys WHERE idx = ?", (index,))
        gone = set(keys).difference(tombs)
        self._pending.append(("forget", [key for key in keys if key in gone]))

    def _forgotten_at(self, key: bytes, clock: int, txn_ms: int) -> int:
        """Activity time from which rule 3 covers the key, or its tombstone has stood long enough.

        Activity never runs ahead of the transaction ids, so after that much activity at least as much time has passed.
        """
        time = key_time_ms(key)
        wait = self.policy.forget_ms
        if time is not None:
            wait = min(wait, time + self.policy.window_ms - txn_ms + 1)
        return clock + max(1, wait)

    def accept(self) -> None:
        """The transaction of `store` is committed."""
        for what, value in self._pending:
            if what == "add":
                self._known.update(value)
            elif what == "due":
                self._due.add(value)
            elif what == "done":
                self._due.remove(value)
            else:
                for key in value:
                    self._known.pop(key, None)
        self._pending = []


def _refusal(status: Status) -> Outcome:
    return Outcome(status, 0, REFUSALS[status])


def split_keys(keys: bytes) -> tuple[bytes, ...]:
    return struct.unpack("16s" * (len(keys) // KEY_BYTES), keys)


def unpack_outcome(packed: bytes, count: int, position: int) -> Outcome:
    """One outcome of a packed row.

    Raises:
        StateRefused: the row is shorter than it says.
    """
    bodies = 21 * count
    if position >= count or len(packed) < bodies:
        raise StateRefused(f"_cmdlog_keys: {len(packed)} bytes of outcomes do not hold number {position} of {count}")
    (request,) = struct.unpack_from("<Q", packed, 8 * position)
    (txn_id,) = struct.unpack_from("<q", packed, 8 * count + 8 * position)
    (end,) = struct.unpack_from("<I", packed, 16 * count + 4 * position)
    start = struct.unpack_from("<I", packed, 16 * count + 4 * position - 4)[0] if position else 0
    if not start <= end <= len(packed) - bodies:
        raise StateRefused(f"_cmdlog_keys: body {position} lies outside of its row")
    return Outcome(packed[20 * count + position], txn_id, packed[bodies + start : bodies + end], request)
