"""The outcomes of a batch's calls with names, as a row of `_cmdlog_keys` or of `_cmdlog_sessions` holds them.

    u32 calls, u8 flags, u64 first transaction id
    with flag 1    u64 transaction id per call; without it they are one step of `TXN_STEP` apart
    with flag 2    u8 status per call; without it all are OK
    with flag 4    u64 request hash per call
    without it     u32 seed of the request hash per call, and at the end of all the calls' values, a JSON array of arrays
    u32 end of body per call, counted from the first body; the bodies

Little endian. Outcomes of keys have hashes. For calls of sessions a batch pays one call of orjson instead of a hash per call: the
hash is made from the text when a number comes back. A row that was written once more has hashes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any, Final

import orjson

from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import Fresh, KnownOutcome
from procedures.wire.sent_request import sent_hash

TXN_STEP: Final = 1 << 10  # between calls of a batch: a tick of the clock above the partition's bits
_TXNS, _STATUSES, _HASHES = 1, 2, 4
_HEAD: Final = struct.Struct("<IBQ")
_NOT_PARSED: Final[Any] = object()


Ended = tuple[bytearray, Sequence[int], list[bytes]]  # how calls ended: statuses, transaction ids, bodies


class NumberedCalls:
    """Session calls of a batch that ran, in columns."""

    __slots__ = ("bodies", "hashed", "keys", "params", "seeds", "statuses", "txn_ids")

    def __init__(
        self, names: Sequence[bytes], seeds: Sequence[int], params: Sequence[Sequence[Any]], *, hashed: bool, ended: Ended
    ) -> None:
        """`seeds` and `params` make the hashes of the requests; where they are `hashed` the seeds are the hashes."""
        self.keys, self.seeds, self.params, self.hashed = names, seeds, params, hashed
        self.statuses, self.txn_ids, self.bodies = ended

    def longest(self) -> int:
        """Bytes of the longest body."""
        return max(map(len, self.bodies))


def pack_numbered(calls: NumberedCalls) -> bytes:
    """The columns, with what makes the hashes instead of these, unless they are known."""
    count = len(calls.bodies)
    if calls.hashed:
        return _pack(calls, struct.pack(f"<{count}Q", *calls.seeds), _HASHES, b"")
    return _pack(calls, struct.pack(f"<{count}I", *calls.seeds), 0, orjson.dumps(calls.params))


def pack_fresh(fresh: Fresh) -> bytes:
    """The columns, with hashes."""
    count = len(fresh.bodies)
    return _pack(fresh, struct.pack(f"<{count}Q", *fresh.requests), _HASHES, b"")


def _pack(of: NumberedCalls | Fresh, requests: bytes, flags: int, text: bytes) -> bytes:
    bodies, txn_ids = of.bodies, of.txn_ids
    count = len(bodies)
    first = txn_ids[0] if count else 0
    txns = statuses = b""
    if not _is_stepping(txn_ids):
        flags |= _TXNS
        txns = struct.pack(f"<{count}Q", *txn_ids)
    if any(of.statuses):
        flags |= _STATUSES
        statuses = bytes(of.statuses)
    ends = struct.pack(f"<{count}I", *itertools.accumulate(map(len, bodies)))
    return b"".join((_HEAD.pack(count, flags, first), txns, statuses, requests, ends, *bodies, text))


def _is_stepping(txn_ids: Sequence[int]) -> bool:
    if isinstance(txn_ids, range):
        return txn_ids.step == TXN_STEP
    return not txn_ids or list(txn_ids) == list(range(txn_ids[0], txn_ids[0] + TXN_STEP * len(txn_ids), TXN_STEP))


class PackedOutcomes:
    """The columns of a row, laid open; the text of the requests is parsed once, if it is asked for."""

    def __init__(self, packed: bytes) -> None:
        """Raises: StateRefused, when the columns are shorter than they say."""
        try:
            count, flags, first = _HEAD.unpack_from(packed)
            at = _HEAD.size
            self._txn_ids: Sequence[int] = range(first, first + TXN_STEP * count, TXN_STEP)
            if flags & _TXNS:
                self._txn_ids = struct.unpack_from(f"<{count}Q", packed, at)
                at += 8 * count
            self._statuses = packed[at : at + count] if flags & _STATUSES else bytes(count)
            at += count if flags & _STATUSES else 0
            self._hashed = bool(flags & _HASHES)
            self._requests = struct.unpack_from(f"<{count}{'Q' if self._hashed else 'I'}", packed, at)
            at += (8 if self._hashed else 4) * count
            self._ends = (0, *struct.unpack_from(f"<{count}I", packed, at))
            self._bodies_at = at + 4 * count
        except struct.error:
            raise _short(packed) from None
        self._packed, self._params = packed, _NOT_PARSED
        if self._bodies_at + self._ends[-1] > len(packed):
            raise _short(packed)

    def outcome(self, position: int) -> KnownOutcome:
        """One of them. Raises: StateRefused."""
        try:
            begin, end = self._ends[position], self._ends[position + 1]
            request = self._requests[position]
            if not self._hashed:
                request = sent_hash(request, self._parameters()[position])
            body = self._packed[self._bodies_at + begin : self._bodies_at + end]
            return KnownOutcome(self._statuses[position], self._txn_ids[position], body, request)
        except (IndexError, orjson.JSONDecodeError):
            raise _short(self._packed) from None

    def _parameters(self) -> Any:
        if self._params is _NOT_PARSED:
            self._params = orjson.loads(self._packed[self._bodies_at + self._ends[-1] :])
        return self._params


def _short(packed: bytes) -> StateRefused:
    return StateRefused(f"{len(packed)} bytes of outcomes do not hold what they say")


def unpack_outcome_at(packed: bytes, position: int) -> KnownOutcome:
    """One outcome. Raises: StateRefused, when the columns are shorter than they say."""
    return PackedOutcomes(packed).outcome(position)


def pick_outcomes(packed: bytes, positions: Sequence[int]) -> bytes:
    """Some of them, packed; nothing for none, as in a row that had none."""
    if not positions:
        return b""
    fresh, outcomes = Fresh(), PackedOutcomes(packed)
    for at in positions:
        it = outcomes.outcome(at)
        fresh.add(at.to_bytes(4), it.request, it.status, it.txn_id, it.body)
    return pack_fresh(fresh)
