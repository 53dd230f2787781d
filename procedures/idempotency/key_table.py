"""The known idempotency keys of one partition: who is answered again, who is refused, and when a key is forgotten.

One row of `_cmdlog_keys` holds what a batch added, written in the batch's transaction; a dict in memory, rebuilt at open, finds
it. Rules for a call with a key, first match wins:

1. known, outcome kept: the same request gets the stored outcome, another one KEY_REUSED;
2. known, outcome dropped (a *tombstone*): SESSION_EXPIRED;
3. unknown, but the key carries a time below the *floor*: SESSION_EXPIRED, it may have been forgotten;
4. the table is full: SESSIONS_FULL; nothing is evicted to make room, because that would forget an acknowledged call;
5. otherwise the call runs, and its result, abort or failure is kept.

Time here is the *activity clock* of the state: with each batch it advances by the step of the transaction ids, but by
`clock_lead_max_ms` at most. A clock that jumps a day ahead therefore expires nothing. Outcomes are dropped `window_ms` of
activity later. Keys that carry a time are then forgotten as soon as that lies a window in the past, which raises the floor above
it; opaque ones after `forget_ms` more. A key that claims a time further ahead than that is forgotten then, too, and leaves the
floor alone: a wrong client clock must neither fill the table nor lock others out. Since only what was forgotten raises the floor,
a node whose clock was years off refuses no key of the right time.

**Calls on all partitions.** Their partitions must decide alike, or replicated tables drift apart; but each has an activity clock
of its own. So their keys are apart: judged among themselves, by a floor and an activity clock that count the batches of such
calls alone (each is a batch of its own, the same on all partitions), and never refused by rule 4, since another partition may
have room.

All of it is a function of the state and the batch, so replicas and replays decide alike; the policy is logged.

Row: `keys` n * 16 bytes; `outcomes` as in `packed_outcomes.py`; `due`, the activity time at which the row is dropped
(outcomes kept) or forgotten (outcomes NULL); `clock`, the activity time at which it was added, or -1 minus that for a call on all
partitions, whose `due` counts on the other clock. Row 0 holds `Figures` in `outcomes`; it appears when one of them changes.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import apsw
import google_crc32c
from sortedcontainers import SortedList

from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import (
    KEY_BYTES,
    NO_KEY,
    Fresh,
    KeyPolicy,
    KnownOutcome,
    Status,
    key_time_ms,
    refusal,
    split_keys,
    time_mark,
)
from procedures.idempotency.packed_outcomes import pack_fresh, unpack_outcome_at
from procedures.storage.state import PartitionState, rows_of

ROWS_EXPIRED_PER_BATCH = 4  # a batch adds one row at most, so the table shrinks four times as fast as it grows
ROWS_PER_CHUNK = 1024  # read at once when a table is loaded
FIGURES_ROW = 0  # no entry of a log has this index
_POSITION_BITS = 20
_MASK = (1 << 64) - 1
_PRIME = (1 << 64) - 59
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)  # odd, and large: small changes reach the high bits
_ROWS = "SELECT idx, due, clock, outcomes IS NOT NULL, keys FROM _cmdlog_keys WHERE idx > ? ORDER BY idx"
_crc, _crc32 = google_crc32c.value, zlib.crc32


@dataclass(frozen=True, slots=True)
class Figures:
    """What the table remembers beside its rows; times in milliseconds."""

    floor: int = 0  # keys of single-partition calls that carry an earlier time may have been forgotten
    shared_floor: int = 0  # those of calls on all partitions
    shared_clock: int = 0  # activity clock of calls on all partitions
    shared_last: int = 0  # time of the transaction up to which that one has counted; 0: no such call had a key yet

    @property
    def mark(self) -> bytes:
        """Last 8 bytes of the smallest fingerprint that carries a time which was not forgotten."""
        return time_mark(max(self.floor, self.shared_floor))

    def pack(self) -> bytes:
        return struct.pack("<4q", self.floor, self.shared_floor, self.shared_clock, self.shared_last)

    @classmethod
    def of(cls, connection: apsw.Connection) -> Figures:
        row = rows_of(connection, "SELECT outcomes FROM _cmdlog_keys WHERE idx = ?", (FIGURES_ROW,))
        return cls(*struct.unpack("<4q", row[0][0])) if row else cls()


class KeyRow(NamedTuple):
    """A row without its outcomes."""

    idx: int
    due: int
    clock: int
    kept: int  # 1: with outcomes; 0: tombstones
    keys: bytes

    @property
    def shared(self) -> bool:
        return self.clock < 0

    def digest(self) -> int:
        """A number against accidents, to be added up. Keys are random already; a checksum would take four times as long."""
        by_index, by_due, by_clock = _FACTORS
        return _keys_digest(self.keys, self.kept) + self.idx * by_index + self.due * by_due + self.clock * by_clock


def _keys_digest(keys: bytes, kept: int) -> int:
    return (int.from_bytes(keys, "little") % _PRIME) * (kept + 1)


def stored_keys(connection: apsw.Connection, *, after: int = FIGURES_ROW, rows: int = -1) -> Iterator[KeyRow]:
    """The rows of a state file after index `after`, at most so many, without building the table."""
    return map(KeyRow._make, connection.execute(f"{_ROWS} LIMIT ?", (after, rows)))


Kind = Literal["single", "everywhere"]
FormerHashes = Callable[[], Iterable[int]]


class KeyTable:
    """The known keys of one partition: dict in memory, rows in the state file.

    Attributes:
        digest: of all rows and figures, 0 for an empty table; it does not depend on the order in which they came.
    """

    def __init__(self, state: PartitionState, policy: KeyPolicy) -> None:
        self._state = state
        self.policy = policy
        self.digest = 0
        self._known: dict[bytes, int] = {}  # fingerprint -> idx << 20 | position in the row
        self._due: SortedList[int] = SortedList()  # due << 64 | idx of every row of single-partition calls
        self._shared_due: SortedList[int] = SortedList()  # of every other row, by the shared clock
        self._shared: set[int] = set()  # idx of the latter
        self._hidden: dict[bytes, int] = {}  # place of a single-partition call whose key a call on all partitions used again
        self._figures = Figures.of(state.connection)
        self._mark = self._figures.mark
        self._changes = self._unchanged = _Changes(self._figures)  # `_unchanged`: by a batch without keys while none is due
        self._load()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def written(self) -> int:
        """Checksum of the outcomes that the last batch stored."""
        return self._changes.written

    @property
    def has_rows(self) -> bool:
        """Whether a batch without keys may change the table: a row ages, or the clock of calls on all partitions counts."""
        return bool(self._due or self._figures.shared_last)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._known)

    def _load(self) -> None:
        """By columns: a million rows of one key each still take some seconds."""
        dues: list[int] = []
        digest = _figures_digest(self._figures)
        rows = self._state.connection.execute(_ROWS, (FIGURES_ROW,))
        while chunk := tuple(itertools.islice(rows, ROWS_PER_CHUNK)):
            idx, due, clock, kept, keys = zip(*chunk, strict=True)
            digest += sum(map(_keys_digest, keys, kept))
            digest += sum(idx) * _FACTORS[0] + sum(due) * _FACTORS[1] + sum(clock) * _FACTORS[2]
            shared = {number for number, since in zip(idx, clock, strict=True) if since < 0}
            if shared:  # one row after the other: such a row may hide an earlier one
                for number, several in zip(idx, keys, strict=True):
                    self._learn(number, split_keys(several), shared=number in shared)
            elif max(map(len, keys)) == KEY_BYTES:
                self._known.update(zip(keys, [number << _POSITION_BITS for number in idx], strict=True))
            else:
                for number, several in zip(idx, keys, strict=True):
                    base = number << _POSITION_BITS
                    self._known.update(zip(split_keys(several), range(base, base + len(several) // KEY_BYTES), strict=True))
            dues += map(_due_key, due, idx)
            self._shared |= shared
        self._shared_due.update(it for it in dues if it & _MASK in self._shared)
        self._due.update(it for it in dues if it & _MASK not in self._shared)
        self.digest = digest & _MASK

    def _learn(self, index: int, keys: Sequence[bytes], *, shared: bool) -> None:
        """The keys of a row, in the order of the rows."""
        known, base = self._known, index << _POSITION_BITS
        if shared:
            self._hidden.update((key, known[key]) for key in keys if key in known)
        known.update(zip(keys, range(base, base + len(keys)), strict=True))

    def _unlearn(self, key: bytes, index: int) -> None:
        """The row no longer has the key; one that it hid is known again, as it would be after the table was loaded."""
        known, hidden = self._known, self._hidden
        if known.get(key, -1) >> _POSITION_BITS != index:
            if hidden.get(key, -1) >> _POSITION_BITS == index:
                del hidden[key]
        elif key in hidden:
            known[key] = hidden.pop(key)
        else:
            del known[key]

    def runs_plainly(self, keys: Sequence[bytes]) -> bool:
        """Whether rule 5 holds for every call of a batch; decided for all keys together, since that is the common case."""
        if len(self._known) + len(keys) > self.policy.keys_max or not self._known.keys().isdisjoint(keys):
            return False
        given = [key for key in keys if key != NO_KEY] if NO_KEY in keys else keys
        if len(set(given)) != len(given):
            return False
        marks = b"".join(given)[8::KEY_BYTES]  # the bytes whose top bit says that the key carries a time
        if not marks or max(marks) < 0x80:
            return True
        mark = self._mark
        return all(key[8:] >= mark or key[8] < 0x80 for key in given)

    def judge(self, key: bytes, request: int, fresh: Fresh, *, kind: Kind, former: FormerHashes = tuple) -> KnownOutcome | None:
        """The answer that rules 1 to 4 give; None: the call runs.

        `fresh` holds the outcomes of this batch so far; `former` gives other hashes that stand for the same request.
        """
        found = fresh.get(key)
        place = self._known.get(key)
        if found is None and place is not None and (kind == "single" or place >> _POSITION_BITS in self._shared):
            found = self._stored(place)
            if found is None:
                return refusal(Status.SESSION_EXPIRED)
        if found is not None:
            return found if found.request == request or found.request in former() else refusal(Status.KEY_REUSED)
        mark = self._mark if kind == "single" else time_mark(self._figures.shared_floor)
        if key[8] >= 0x80 and key[8:] < mark:
            return refusal(Status.SESSION_EXPIRED)
        if kind == "single" and len(self._known) + len(fresh.keys) >= self.policy.keys_max:
            return refusal(Status.SESSIONS_FULL)
        return None

    def _stored(self, place: int) -> KnownOutcome | None:
        index, position = place >> _POSITION_BITS, place & (1 << _POSITION_BITS) - 1
        row = rows_of(self._state.connection, "SELECT outcomes FROM _cmdlog_keys WHERE idx = ?", (index,))
        if len(row) != 1:
            raise StateRefused(f"{self._state.path}: outcomes of batch {index} are missing from _cmdlog_keys")
        return None if row[0][0] is None else unpack_outcome_at(row[0][0], position)

    def store(self, index: int, fresh: Fresh, *, clock: int, txn_ms: int, kind: Kind, keyed: bool) -> int:
        """Writes a batch's outcomes and expires old ones, in the open transaction; `accept` follows its COMMIT.

        `keyed`: some call of the batch has a key, or a number in a session. Returns the activity clock of its kind of calls.
        """
        if not (fresh.keys or self._due) and kind == "single":
            self._changes = self._unchanged
            return clock
        changes = self._changes = _Changes(self._figures)
        self._expire(self._due, clock, txn_ms)
        if kind == "everywhere":
            clock = self._count_shared(txn_ms, keyed=keyed)
            self._expire(self._shared_due, clock, txn_ms)
        if fresh.keys:
            self._add(index, fresh, clock=clock, shared=kind == "everywhere")
        if changes.figures != self._figures:
            self._state.connection.execute(
                "INSERT OR REPLACE INTO _cmdlog_keys VALUES (?, 0, 0, x'', ?)", (FIGURES_ROW, changes.figures.pack())
            )
            changes.digest += _figures_digest(changes.figures) - _figures_digest(self._figures)
        return clock

    def _count_shared(self, txn_ms: int, *, keyed: bool) -> int:
        """The other activity clock after this batch; it stops until a call on all partitions has a key."""
        figures = self._figures
        if figures.shared_last or keyed:
            step = min(max(0, txn_ms - figures.shared_last), self.policy.clock_lead_max_ms) if figures.shared_last else 0
            last = max(txn_ms, figures.shared_last)
            self._changes.figures = replace(self._changes.figures, shared_clock=figures.shared_clock + step, shared_last=last)
        return self._changes.figures.shared_clock

    def _add(self, index: int, fresh: Fresh, *, clock: int, shared: bool) -> None:
        changes, packed = self._changes, pack_fresh(fresh)
        row = KeyRow(index, clock + self.policy.window_ms, -1 - clock if shared else clock, 1, b"".join(fresh.keys))
        self._state.connection.execute("INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, ?)", (*row[:3], row.keys, packed))
        changes.added = row
        changes.keys = tuple(fresh.keys)
        changes.dues.append(row)
        changes.digest += row.digest()
        changes.written = int(_crc(packed)) << 32 | _crc32(packed)

    def _expire(self, dues: SortedList[int], clock: int, txn_ms: int) -> None:
        for due in dues.islice(0, ROWS_EXPIRED_PER_BATCH):
            if due >> 64 > clock:
                return
            row = next(stored_keys(self._state.connection, after=(due & _MASK) - 1, rows=1))
            self._changes.done.append(row)
            self._changes.digest -= row.digest()
            self._shrink(row, clock, txn_ms)

    def _shrink(self, row: KeyRow, clock: int, txn_ms: int) -> None:
        """Drops a row's outcomes and leaves the tombstones that are still needed; a row of tombstones is forgotten."""
        execute, changes = self._state.connection.execute, self._changes
        covered = txn_ms - self.policy.window_ms  # a key of an earlier time is forgotten under the floor
        keys = split_keys(row.keys)
        tombs = [key for key in keys if not _bears_time_below(key, covered)] if row.kept else []
        if tombs:
            left = KeyRow(row.idx, max(self._forgotten_at(key, clock, txn_ms) for key in tombs), row.clock, 0, b"".join(tombs))
            sql = "UPDATE _cmdlog_keys SET due = ?, keys = ?, outcomes = NULL WHERE idx = ?"
            execute(sql, (left.due, left.keys, left.idx))
            changes.dues.append(left)
            changes.digest += left.digest()
        else:
            execute("DELETE FROM _cmdlog_keys WHERE idx = ?", (row.idx,))
        kept = set(tombs)
        forgotten = [key for key in keys if key not in kept]
        changes.forgotten += [(key, row.idx) for key in forgotten]
        self._raise_floor([key for key in forgotten if _bears_time_below(key, covered)], shared=row.shared)

    def _raise_floor(self, keys: Sequence[bytes], *, shared: bool) -> None:
        figures = self._changes.figures
        floor = 1 + max((key_time_ms(key) or 0 for key in keys), default=-1)
        if shared:
            self._changes.figures = replace(figures, shared_floor=max(floor, figures.shared_floor))
        else:
            self._changes.figures = replace(figures, floor=max(floor, figures.floor))

    def _forgotten_at(self, key: bytes, clock: int, txn_ms: int) -> int:
        """Activity time from which the floor may cover the key, or its tombstone has been kept long enough.

        Activity never runs ahead of the transaction ids, so after that much activity at least as much time has passed.
        """
        time = key_time_ms(key)
        wait = self.policy.forget_ms
        if time is not None:
            wait = min(wait, time + self.policy.window_ms - txn_ms + 1)
        return clock + max(1, wait)

    def accept(self) -> None:
        """The transaction of `store` is committed."""
        changes = self._changes
        if changes is self._unchanged:
            return
        for row in changes.done:
            (self._shared_due if row.shared else self._due).remove(_due_key(row.due, row.idx))
        for key, index in changes.forgotten:
            self._unlearn(key, index)
            self._shared.discard(index)
        for row in changes.dues:
            (self._shared_due if row.shared else self._due).add(_due_key(row.due, row.idx))
        if changes.added is not None:
            self._learn(changes.added.idx, changes.keys, shared=changes.added.shared)
            if changes.added.shared:
                self._shared.add(changes.added.idx)
        if changes.figures is not self._figures:
            self._figures, self._mark = changes.figures, changes.figures.mark
        self.digest = (self.digest + changes.digest) & _MASK
        self._changes = _Changes(self._figures, written=changes.written)


@dataclass(slots=True)
class _Changes:
    """What `accept` does to the table."""

    figures: Figures
    added: KeyRow | None = None
    keys: Sequence[bytes] = ()  # of `added`
    done: list[KeyRow] = field(default_factory=list)  # rows as they were before they expired
    dues: list[KeyRow] = field(default_factory=list)  # rows that wait for their due: the added one and tombstones
    forgotten: list[tuple[bytes, int]] = field(default_factory=list)  # key, index of its row
    digest: int = 0  # to be added to that of the table
    written: int = 0  # checksum of the outcomes that were added


def _due_key(due: int, idx: int) -> int:
    """Sorts by due; a number, since a million pairs take three times the memory and the collector's time."""
    return due << 64 | idx


def _bears_time_below(key: bytes, milliseconds: int) -> bool:
    return key[8] >= 0x80 and key[8:] < time_mark(milliseconds)


def _figures_digest(figures: Figures) -> int:
    """0 for those of a new table."""
    if figures == Figures():
        return 0
    data = figures.pack()
    return int(_crc(data)) << 32 | _crc32(data)
