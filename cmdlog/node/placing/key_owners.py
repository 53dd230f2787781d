"""Which partition an idempotency key was used on, so that the same key on another partition is refused (`key_reused`).

One rule: it knows every key that some partition's table (`procedures.idempotency.key_table`) knows or will know, and few
others. The tables decide whether a call is a repetition; this index only sees that keys do not wander. So it forgets nothing by a
clock of its own: what is older than the window is looked up in the state files, step by step, and dropped when no table holds it
any more.

Where a key is, by what became of the call that claimed it: *under way* (placed, not answered; never dropped), *young* (answered
within the window), *old*. A claim whose call was refused, or was answered with nothing stored, is taken back at once. At a start
everything comes from the state files.

A key has several *homes* when the directory was made from one of another number of partitions (`replay.repartition.keys`): which
of them its call goes to is not known, so each table has a copy. A claim of any of them gets it.

Full means: refused here, before anything is logged, because the credential has its share of the table (`shares.py`). Calls on
all partitions need room in each table. The tables have a limit of their own, which these calls pass, because the partitions must
decide alike. A table forgets as batches come, so one whose only callers are refused here never would: one call a minute gets in.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

import apsw

from cmdlog.node.placing.session_owners import EVERYWHERE, EXPIRED, FULL, TABLE_TIMES, SessionOwners
from cmdlog.node.placing.shares import Shares
from cmdlog.node.settings import Settings
from procedures.idempotency.key_table import Figures, KeyRow, stored_keys
from procedures.idempotency.known_outcome import HOLDER_BYTES, KEY_BYTES, holder_of
from procedures.storage.state import open_reader

HOLDER: Final = struct.Struct(f"{KEY_BYTES - HOLDER_BYTES}x{HOLDER_BYTES}s")  # of a key
LET_IN_S: Final = 60.0  # as far as a batch moves a table's time (`KeyPolicy.clock_lead_max_ms`)
SLICES: Final = 16  # a key is looked up first when it is a window old, and a sixteenth more at most
STEP_KEYS: Final = 4096  # looked up in one step, a millisecond or two
STEP_ROWS: Final = 2000

Look = Callable[[int, int], tuple[Figures, Sequence[KeyRow]] | None]
"""(partition, index) -> figures and next rows after it, of a state that has applied all that was answered; None: not now."""


Place = tuple[tuple[int, ...], str]
"""Where a key is, and whose: its homes, ascending, or only EVERYWHERE; what stands for its credential. One object for all such
keys."""


@dataclass(slots=True)
class _Sweep:
    """One pass over all tables, and then over what was not found in them."""

    missing: set[int]  # old keys that were not found so far
    partition: int = 0
    after: int = 0
    mark: bytes = bytes(8)  # highest floor that was met

    def find(self, keys: Iterable[int]) -> set[int]:
        """Those of the missing that are among these keys, which are missing no longer."""
        found = self.missing.intersection(keys)
        self.missing -= found
        return found

    def pass_rows(self, figures: Figures, rows: Sequence[KeyRow]) -> None:
        """The table was read up to the last of these rows; without any, to its end."""
        if rows:
            self.after = rows[-1].idx
        else:
            self.mark = max(self.mark, figures.mark)
            self.partition, self.after = self.partition + 1, 0


class KeyOwners:
    """Thread-safe. Holds the first 8 bytes of each fingerprint: 2**-64 per pair of live keys to refuse one wrongly."""

    def __init__(
        self,
        window_s: float,
        *,
        keys_max: int,
        partitions: int,
        sessions: SessionOwners,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys_max` of one partition's table. `sessions` has the names that are numbers of sessions."""
        self.sessions = sessions
        self._window_s, self._clock = window_s, clock
        self.shares = [Shares(keys_max, times=TABLE_TIMES) for _ in range(partitions)]  # a key counts in each of its homes
        self._lock = threading.Lock()
        self._owner: dict[int, Place] = {}
        self._places: dict[Place, Place] = {}
        self._under_way: dict[int, int] = {}  # -> calls that claimed the key and are not settled
        self._slices: deque[tuple[float, list[int]]] = deque([(clock(), [])])  # young keys, by the time of their answer
        self._old: list[int] = []
        self._new: set[int] = set()  # those under way that no table knows yet: neither young nor old
        self._sweep: _Sweep | None = None
        # When a call was admitted though its credential had no share left.
        self._let_in_s = dict.fromkeys((EVERYWHERE, *range(partitions)), clock())
        self._mark = bytes(8)  # keys that carry an earlier time may have been forgotten, on whatever partition

    def __len__(self) -> int:
        return len(self._owner)

    def claim(self, key: bytes, partition: int) -> int:
        """The given partition, or EVERYWHERE for a call on all, if the key is new or its own; else its owner, FULL or EXPIRED.

        A claim that got what it asked for is followed by `release_key`.
        """
        if len(key) != KEY_BYTES:
            return self.sessions.claim(key, partition)
        short = int.from_bytes(key[:8], "little")
        with self._lock:
            known = self._owner.get(short)
            if known is None:
                return self._claim_new(key, short, partition)
            homes, _ = known
            if partition in homes:
                self._under_way[short] = self._under_way.get(short, 0) + 1
                self._rescue(short)
                return partition
            return homes[0]

    def _claim_new(self, key: bytes, short: int, partition: int) -> int:
        if key[8] >= 0x80 and key[8:] < self._mark:
            return EXPIRED
        homes, holder = (partition,), holder_of(key)
        if not all(table.allows(holder, 1) for table in self._tables(homes)) and not self._lets_in(partition):
            return FULL
        self._own(short, (homes, holder))
        self._under_way[short] = 1
        self._new.add(short)
        return partition

    def _own(self, short: int, place: Place) -> None:
        self._owner[short] = self._places.setdefault(place, place)
        homes, holder = place
        for table in self._tables(homes):
            table.hold(holder, 1)

    def _tables(self, homes: tuple[int, ...]) -> Sequence[Shares]:
        return self.shares if homes[0] == EVERYWHERE else [self.shares[home] for home in homes]

    def _lets_in(self, partition: int) -> bool:
        now = self._clock()
        if now - self._let_in_s[partition] < LET_IN_S:
            return False
        self._let_in_s[partition] = now
        return True

    def largest_shares(self) -> dict[str, float]:
        """The largest part of a table that one credential holds. Any thread."""
        tables = {"idempotency_keys": self.shares, "sessions": list(self.sessions.shares.values())}
        return {of: max([share.largest() for share in shares], default=0) for of, shares in tables.items()}

    def release_key(self, key: bytes, *, stored: bool) -> None:
        """The call that claimed the key is answered, or was refused. `stored`: its outcome may be in a table."""
        short = int.from_bytes(key[:8], "little")
        with self._lock:
            if short not in self._under_way:
                return  # claimed before `clear`
            calls = self._under_way.pop(short) - 1
            if calls:
                self._under_way[short] = calls
            self._rescue(short)
            if short not in self._new:
                return
            if stored:
                self._new.discard(short)
                self._slices[-1][1].append(short)
            elif not calls:
                self._new.discard(short)
                self._drop(short)

    def _rescue(self, short: int) -> None:
        """A table that has forgotten the key is about to know it again: a look-up under way may have passed that table."""
        if self._sweep is not None and short in self._sweep.missing:
            self._sweep.missing.discard(short)
            self._old.append(short)

    def _drop(self, short: int) -> None:
        homes, holder = self._owner.pop(short)
        for table in self._tables(homes):
            table.give_back(holder, 1)

    def clear(self) -> None:
        """Forgets everything: the states say more, since another node has led."""
        self.sessions.clear()
        with self._lock:
            self._owner.clear()
            self._places.clear()
            for table in self.shares:
                table.clear()
            self._under_way.clear()
            self._slices = deque([(self._clock(), [])])
            self._old.clear()
            self._new.clear()
            self._sweep, self._mark = None, bytes(8)

    def load(self, connection: apsw.Connection, partition: int) -> None:
        """What a state file holds, before any call."""
        self.sessions.load(connection, partition)
        self._mark = max(self._mark, Figures.of(connection).mark)
        for where, owner in (("clock >= 0", partition), ("clock < 0", EVERYWHERE)):
            rows = connection.execute(f"SELECT keys FROM _cmdlog_keys WHERE {where}")  # noqa: S608 - one of the two above
            while chunk := tuple(itertools.islice(rows, STEP_ROWS)):
                self._load_keys(b"".join(keys for (keys,) in chunk), owner)

    def _load_keys(self, keys: bytes, owner: int) -> None:
        shorts, holders = _shorts(keys), [holder for (holder,) in HOLDER.iter_unpack(keys)]
        homes = (owner,)
        self._old += shorts
        known = not self._owner.keys().isdisjoint(shorts)
        for holder in set(holders):
            name = holder.hex()
            place = self._places.setdefault((homes, name), (homes, name))
            held = shorts if holders.count(holder) == len(holders) else compress(shorts, [of == holder for of in holders])
            if known:
                for short in held:
                    self._load_again(short, place)
            else:
                before = len(self._owner)
                self._owner.update(dict.fromkeys(held, place))
                for table in self._tables(homes):
                    table.hold(name, len(self._owner) - before)

    def _load_again(self, short: int, place: Place) -> None:
        """A key that another table may know, too: a call on all partitions, or a copy."""
        known = self._owner.get(short)
        if known == place:
            return
        if known is not None:
            self._drop(short)
            homes = {*known[0], *place[0]}
            place = (EVERYWHERE,) if EVERYWHERE in homes else tuple(sorted(homes)), known[1]
        self._own(short, place)

    def tidy(self, look: Look) -> None:
        """A step of the look-up, if one is due; costs nothing if not. Called again and again by one thread."""
        self.sessions.tidy()
        sweep = self._sweep or self._begin_generation()
        if sweep is None:
            return
        if sweep.partition < len(self.shares):
            found = look(sweep.partition, sweep.after)
            if found is not None:
                self._find(sweep, *found)
            return
        with self._lock:
            for _ in range(min(STEP_KEYS, len(sweep.missing))):
                short = sweep.missing.pop()
                if short in self._under_way:
                    self._old.append(short)
                else:
                    self._drop(short)
            if not sweep.missing:
                self._mark = max(self._mark, sweep.mark)
                self._sweep = None

    def _begin_generation(self) -> _Sweep | None:
        now = self._clock()
        if now - self._slices[-1][0] < self._window_s / SLICES:
            return None
        with self._lock:
            self._slices.append((now, []))
            # A slice ends where the next one begins.
            while len(self._slices) > 1 and now - self._slices[1][0] >= self._window_s:
                self._old += self._slices.popleft()[1]
        if not self._old:
            return None
        sweep = _Sweep(set(self._old))  # not under the lock: it takes long, and without a sweep nobody else touches these
        with self._lock:
            self._sweep, self._old = sweep, []
        return sweep

    def _find(self, sweep: _Sweep, figures: Figures, rows: Sequence[KeyRow]) -> None:
        with self._lock:
            for row in rows:
                self._old += sweep.find(_shorts(row.keys))
            sweep.pass_rows(figures, rows)


def make_owners(settings: Settings, clock: Callable[[], float]) -> KeyOwners:
    """The empty index of a node."""
    sessions = SessionOwners(settings.session_idle_s, sessions_max=settings.sessions_max, clock=clock)
    return KeyOwners(
        settings.key_window_s, keys_max=settings.keys_max, partitions=settings.partitions, sessions=sessions, clock=clock
    )


def look_up(path: str, *, after: int, answered: int) -> tuple[Figures, list[KeyRow]] | None:
    """Some rows of a state file after index `after`; None while it lacks a batch up to `answered`, for it is being restored."""
    try:
        connection, _ = open_reader(path)
    except apsw.Error:
        return None
    try:
        connection.execute("BEGIN")  # one frozen state
        if connection.execute("SELECT idx FROM _cmdlog_meta").get < answered:
            return None
        rows: list[KeyRow] = []
        count = 0
        for row in stored_keys(connection, after=after, rows=STEP_ROWS):
            rows.append(row)
            count += len(row.keys) // KEY_BYTES
            if count >= STEP_KEYS:
                break
        return Figures.of(connection), rows
    except apsw.Error:
        return None
    finally:
        connection.close(True)


def _shorts(keys: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(keys) // 8}Q", keys)[:: KEY_BYTES // 8]
