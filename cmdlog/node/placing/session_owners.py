"""Which partition each number of a client session was used on, so that the number on another partition is refused.

One rule: as with keys (`key_owners.py`), the tables of the partitions decide what is a repetition; this index only sees that
numbers do not wander, as they would when a deploy routes a call by another parameter. It holds the numbers above each floor.

A number has several homes when the directory was made from one of another number of partitions: any of them answers for it.
A session is dropped here when its idle time has passed by the machine's clock. The tables know it for at least as long.

A session takes some of its credential's share of the table of each partition that knows it. Which credential that is, its
fingerprint says: the log and the states name no credentials, and a start or a new leader counts what the states hold.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import apsw

from cmdlog.node.placing.shares import Shares
from procedures.idempotency.known_outcome import holder_of
from procedures.idempotency.session_calls import ENDED, SENT
from procedures.idempotency.session_row import Stage, stored_rows

EVERYWHERE: Final = -1  # owner of a name that was used on a multi-partition call
FULL: Final = -2  # a claim's answer: new on the partition, in whose table the credential has no share left
TABLE_TIMES: Final = 4  # one credential gets four fifths of a table, and most nodes have one (`cmdlog.node.placing.shares`)
EXPIRED: Final = -3  # a claim's answer: what the name stood for may have been forgotten
NUMBERS_SLACK: Final = 4  # numbers that a session may hold, beside twice those above the floor: many sessions hold it each

Owner = int | frozenset[int]


class LiveSession:
    """A session as the node sees it."""

    __slots__ = ("_holder", "_shares", "floor", "owners", "owners_max", "partitions", "used_at")

    def __init__(self, used_at: float, holder: str, shares: Mapping[int, Shares]) -> None:
        self._holder, self._shares = holder, shares
        self.floor = 0
        self.owners_max = NUMBERS_SLACK  # that there may be before those below the floor are dropped
        self.owners: dict[int, Owner] = {}  # number -> where it was used
        self.partitions: set[int] = set()  # that may know the session
        self.used_at = used_at

    def claim(self, number: int, floor: int, partition: int, *, now: float) -> int:
        """See `SessionOwners.claim`. The session is in use."""
        self.used_at = now
        if number <= self.floor:
            return EXPIRED
        if floor > self.floor:
            self._raise_floor(floor)
        owner = self.owners.get(number, partition)
        if owner != partition and not (isinstance(owner, frozenset) and partition in owner):
            return min(owner) if isinstance(owner, frozenset) else owner
        if partition not in self.partitions:
            if not self._shares[partition].take_share(self._holder, 1):
                return FULL
            self.partitions.add(partition)
        self.owners.setdefault(number, partition)
        return partition

    def claims_new(self, numbers: Sequence[int], floors: Sequence[int], partitions: Sequence[int], *, now: float) -> bool:
        """Claims calls that are all new, above every floor that they bring, and on partitions that know the session.

        False: nothing is claimed, look at each.
        """
        self.used_at = now
        highest = max(floors)
        if min(numbers) <= max(highest, self.floor) or not self.owners.keys().isdisjoint(numbers):
            return False
        if not self.partitions.issuperset(partitions):
            return False
        claimed = dict(zip(numbers, partitions, strict=True))
        if len(claimed) < len(numbers):
            return False
        if highest > self.floor:
            self._raise_floor(highest)
        self.owners.update(claimed)
        return True

    def end(self) -> None:
        """No call under it follows."""
        self.floor = ENDED
        self.owners.clear()

    def load_mention(self, floor: int, owner: int) -> None:
        """A partition's state names it."""
        self.floor = max(self.floor, floor)
        if owner not in self.partitions:
            self.partitions.add(owner)
            self._shares[owner].hold(self._holder, 1)

    def leave_shares(self) -> None:
        """It is dropped."""
        for partition in self.partitions:
            self._shares[partition].give_back(self._holder, 1)

    def _raise_floor(self, floor: int) -> None:
        """Its client has seen all outcomes up to there."""
        self.floor = floor
        if len(self.owners) > self.owners_max:
            self.owners = {number: owner for number, owner in self.owners.items() if number > floor}
            self.owners_max = 2 * len(self.owners) + NUMBERS_SLACK


class SessionOwners:
    """Thread-safe."""

    def __init__(self, idle_s: float, *, sessions_max: int, clock: Callable[[], float]) -> None:
        """`sessions_max` of one partition's table, and of that for calls on all partitions."""
        self._idle_s, self._clock = idle_s, clock
        self.shares = defaultdict[int, Shares](lambda: Shares(sessions_max, times=TABLE_TIMES))  # by partition, and EVERYWHERE
        self._lock = threading.Lock()
        self._sessions: dict[bytes, LiveSession] = {}
        self._tidied_at = clock()

    def __len__(self) -> int:
        return len(self._sessions)

    def claim(self, sent: bytes, partition: int) -> int:
        """The given partition, or EVERYWHERE, if the number is new or its own; else its owner, FULL or EXPIRED."""
        session, number, floor = SENT.unpack(sent)
        with self._lock:
            return self._claim(session, number, floor, partition, self._clock())

    def claim_all(self, sent: Sequence[bytes], partitions: Sequence[int]) -> list[int]:
        """`claim` of each, in this order; new numbers of one session are claimed without a loop over them."""
        sessions, numbers, floors = zip(*SENT.iter_unpack(b"".join(sent)), strict=True)
        owners: list[int] = []
        with self._lock:
            now = self._clock()
            live = self._sessions.get(sessions[0])
            if live is not None and len(set(sessions)) == 1 and live.claims_new(numbers, floors, partitions, now=now):
                return list(partitions)
            for session, number, floor, partition in zip(sessions, numbers, floors, partitions, strict=True):
                owners.append(self._claim(session, number, floor, partition, now))
        return owners

    def _claim(self, session: bytes, number: int, floor: int, partition: int, now: float) -> int:
        live = self._sessions.get(session)
        if live is not None:
            return live.claim(number, floor, partition, now=now)
        live = self._begin_session(session, now)
        owner = live.claim(number, floor, partition, now=now)
        if owner != FULL:
            self._sessions[session] = live
        return owner

    def _begin_session(self, session: bytes, now: float) -> LiveSession:
        return LiveSession(now, holder_of(session), self.shares)

    def end(self, session: bytes) -> list[int]:
        """Nothing is placed under the session from now on; the partitions that may know it."""
        with self._lock:
            live = self._sessions.get(session)
            if live is None or live.floor == ENDED:
                return []
            live.end()
            return sorted(live.partitions - {EVERYWHERE})

    def clear(self) -> None:
        """Forgets everything: the states say more, since another node has led."""
        with self._lock:
            self._sessions.clear()
            self.shares.clear()

    def load(self, connection: apsw.Connection, partition: int) -> None:
        """What a state file holds, before any call."""
        now, rows = self._clock(), list(stored_rows(connection))
        # What makes a session known may come after older rows with outcomes of it.
        for row in rows:
            for session in row.sessions if row.stage != Stage.OLD else ():
                if session not in self._sessions:
                    self._sessions[session] = self._begin_session(session, now)
        for row in rows:
            owner = EVERYWHERE if row.shared else partition
            for session, floor in zip(row.sessions, row.floors, strict=True):
                if session in self._sessions:
                    self._sessions[session].load_mention(floor, owner)
            for ordinal, number in zip(row.ordinals, row.numbers, strict=True):
                known = self._sessions.get(row.sessions[ordinal])
                if known is not None:
                    _add_home(known.owners, number, owner)

    def tidy(self) -> None:
        """Drops idle sessions, a quarter of the idle time after the last look; costs nothing before."""
        now = self._clock()
        if now - self._tidied_at < self._idle_s / 4:
            return
        self._tidied_at = now
        with self._lock:
            idle = [session for session, live in self._sessions.items() if now - live.used_at > self._idle_s]
            for session in idle:
                self._sessions.pop(session).leave_shares()


def _add_home(owners: dict[int, Owner], number: int, owner: int) -> None:
    """A number that another partition may know, too: a copy."""
    known = owners.setdefault(number, owner)
    if known == owner:
        return
    if EVERYWHERE in (known, owner):
        owners[number] = EVERYWHERE
    else:
        owners[number] = (known if isinstance(known, frozenset) else frozenset({known})) | {owner}
