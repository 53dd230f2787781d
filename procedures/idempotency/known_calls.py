"""What a partition knows of calls that have a name: keys in one table, numbers of sessions in two.

One rule: who asks need not know how a call is named. Names have 16 bytes (a key) or 24 (a call of a session); see
`session_calls.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from procedures.idempotency.key_table import FormerHashes, KeyTable, Kind
from procedures.idempotency.known_outcome import KEY_BYTES, NO_OUTCOMES, Fresh, KeyPolicy, KnownOutcome
from procedures.idempotency.packed_outcomes import NumberedCalls
from procedures.idempotency.session_calls import NAME_BYTES, NumberedNames
from procedures.idempotency.session_row import stored_rows
from procedures.idempotency.session_table import SessionTable
from procedures.storage.state import PartitionState

_MIXER: Final = 0x9E3779B97F4A7C15  # odd, so that multiplying by it loses nothing
_MASK: Final = (1 << 64) - 1


class KnownCalls:
    """The tables of one partition. One thread at a time.

    Attributes:
        idle: no table has a row, so a batch without names changes nothing here, and needs no `begin_batch`, `store` and `accept`.
        share: of these tables in the digest of the batch that was committed last, and of the outcomes that it stored; 0 as long
            as no call ever had a name. It stays as it is while the tables are idle: outcomes that were stored are rows.
    """

    def __init__(self, state: PartitionState, policy: KeyPolicy) -> None:
        self.keys = KeyTable(state, policy)
        rows = list(stored_rows(state.connection))
        self.sessions = SessionTable(state, shared=False, rows=[row for row in rows if not row.shared])
        self.shared_sessions = SessionTable(state, shared=True, rows=[row for row in rows if row.shared])
        self._floors: Mapping[bytes, int] = {}
        self._stored = self.sessions  # the one of the last batch
        self._changed = False  # whether that batch changed it
        self.idle, self.share = True, 0
        self._look_at_tables()

    def _look_at_tables(self) -> None:
        tables = (self.keys, self.sessions, self.shared_sessions)
        self.idle = not any(table.has_rows for table in tables)
        stored = self._stored.written if self._changed else 0
        self.share = (sum(table.digest for table in tables) + self.keys.written + stored) * _MIXER & _MASK

    def _sessions_of(self, kind: Kind) -> SessionTable:
        return self.sessions if kind == "single" else self.shared_sessions

    def begin_batch(self, floors: Mapping[bytes, int], *, txn_ms: int, kind: Kind) -> None:
        """The sessions that the calls of the next batch belong to, with the floors that they bring."""
        self._floors = floors
        if floors:
            self._sessions_of(kind).begin_batch(floors, txn_ms, self.keys.policy)

    def runs_plainly(self, names: Sequence[bytes], *, kind: Kind) -> bool:
        """Whether every call of the batch simply runs; decided for all together, since that is the common case."""
        if not self._floors:
            return self.keys.runs_plainly(names)
        if all_numbered(names):
            return self._sessions_of(kind).runs_plainly(names, self._floors)
        keys = [name for name in names if len(name) == KEY_BYTES]
        numbered = [name for name in names if len(name) == NAME_BYTES]
        plain = self.keys.runs_plainly(keys) if keys else True
        return plain and (not numbered or self._sessions_of(kind).runs_plainly(numbered, self._floors))

    def judge(self, name: bytes, request: int, fresh: Fresh, *, kind: Kind, former: FormerHashes = tuple) -> KnownOutcome | None:
        """The answer that the tables' rules give to a call with a name; None: the call runs."""
        if len(name) == KEY_BYTES:
            return self.keys.judge(name, request, fresh, kind=kind, former=former)
        return self._sessions_of(kind).judge(name, request, fresh, floors=self._floors, former=former)

    def store(self, index: int, fresh: Fresh | NumberedCalls, *, clock: int, txn_ms: int, kind: Kind) -> None:
        """Writes a batch's outcomes and forgets old ones, in the open transaction; `accept` follows its COMMIT."""
        of_keys, of_sessions = split_fresh(fresh)
        shared_clock = self.keys.store(
            index, of_keys, clock=clock, txn_ms=txn_ms, kind=kind, keyed=bool(of_keys.keys or self._floors)
        )
        self._stored = self._sessions_of(kind)
        self._changed = bool(self._floors) or self._stored.has_rows
        if self._changed:
            self._stored.store(
                index,
                of_sessions,
                floors=self._floors,
                clock=clock if kind == "single" else shared_clock,
                txn_ms=txn_ms,
                policy=self.keys.policy,
            )
        self._floors = {}

    def accept(self) -> None:
        """The transaction of `store` is committed."""
        self.keys.accept()
        if self._changed:
            self._stored.accept()
        self._look_at_tables()


def all_numbered(names: Sequence[bytes]) -> bool:
    """Whether every call has a number in a session."""
    return type(names) is NumberedNames or set(map(len, names)) == {NAME_BYTES}


def split_fresh(fresh: Fresh | NumberedCalls) -> tuple[Fresh, NumberedCalls | None]:
    """The outcomes of calls with keys, and those of calls of sessions."""
    if isinstance(fresh, NumberedCalls):
        return NO_OUTCOMES, fresh
    if not fresh.parameters:
        return fresh, None
    of_keys, of_sessions = Fresh(), Fresh()
    for name, at in fresh.keys.items():
        of = of_keys if len(name) == KEY_BYTES else of_sessions
        of.add(name, fresh.requests[at], fresh.statuses[at], fresh.txn_ids[at], fresh.bodies[at])
    seeds, params = zip(*(fresh.parameters[name] for name in of_sessions.keys), strict=True)
    return of_keys, NumberedCalls(
        tuple(of_sessions.keys),
        seeds,
        params,
        hashed=fresh.hashed,
        ended=(of_sessions.statuses, of_sessions.txn_ids, of_sessions.bodies),
    )
