"""Client sessions in another number of partitions: what was answered stays answered, and no number runs twice.

One rule, as for keys (`replay.repartition.keys`): a number that some old partition knew is known in every new partition to which
its call may now be routed. So what an old partition knows of sessions is *copied* to every new one that has some of its slots. A
node knows that a number may have several homes (`cmdlog.node.placing.session_owners`).

A session's floor says what its client has seen, on whatever partition. Where several old partitions meet, the highest one holds,
and outcomes up to it go. Sessions are forgotten by each partition alone. One that a partition knows, and another one that comes
to the same place may have forgotten, is *ended* there: which numbers the latter answered is no longer known. Only a session
older than `session_idle_ms` can be one of these.

Rows keep what is left of their time, as those of keys do: their clocks are moved to the highest, and they are in its order, which
`session_table` relies on. Calls on all partitions are known to all of them alike; the first new one stores their old answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

import apsw

from procedures.idempotency.known_outcome import KeyPolicy, key_time_ms
from procedures.idempotency.packed_outcomes import pick_outcomes
from procedures.idempotency.session_calls import ENDED, call_names
from procedures.idempotency.session_row import (
    SHARED_FIGURES,
    SINGLE_FIGURES,
    Forgotten,
    SessionRow,
    Stage,
    count_rows,
    forgotten_of,
    known_floors,
    outcomes_of,
    put_forgotten,
    put_row,
    stored_rows,
)
from procedures.storage.state_file import connect
from replay.errors import ReshapeRefused
from replay.repartition.keys import DISAGREEMENT, ClockLag, combined_outcomes

FIRST_ROW: Final = 1


@dataclass(frozen=True, slots=True)
class KeptSessions:
    """The sessions that the old partitions know."""

    sources: Sequence[str]
    policy: KeyPolicy
    lags: Sequence[ClockLag]
    forgotten: Sequence[Forgotten]  # of single-partition calls
    shared_forgotten: Sequence[Forgotten]
    rows_max: int  # at most so many rows come to one partition

    def write(self, connection: apsw.Connection, partition: int, parents: Sequence[int]) -> None:
        """Fills the table of a new partition. Raises: ReshapeRefused when it has no room."""
        with ExitStack() as stack:
            olds = [stack.enter_context(closing(connect(source, apsw.SQLITE_OPEN_READWRITE))) for source in self.sources]
            filling = _SessionFilling(connection)
            connection.execute("BEGIN")
            filling.put_single(self._single(olds, partition, parents))
            filling.put_shared([self._shared(old, lag) for old, lag in zip(olds, self.lags, strict=True)], first=partition == 0)
            for figures, of in ((SINGLE_FIGURES, self.forgotten), (SHARED_FIGURES, self.shared_forgotten)):
                if born := max(forgotten.born for forgotten in of):
                    put_forgotten(connection, figures, Forgotten(born))
            connection.execute("COMMIT")

    def _single(self, olds: Sequence[apsw.Connection], partition: int, parents: Sequence[int]) -> list[_Kept]:
        """What the old partitions know together, in the order of the clock that they come to have."""
        rows = {of: [row for row in stored_rows(olds[of]) if not row.shared] for of in parents}
        found = [(row.clock + self.lags[of].single, of, row) for of in parents for row in rows[of]]
        found.sort(key=lambda it: (it[0], it[1], it[2].idx))
        floors = known_floors(row for _, _, row in found)
        for of in parents:
            known = {session for row in rows[of] if row.stage != Stage.OLD for session in row.sessions}
            born = self.forgotten[of].born
            floors.update({session: ENDED for session in floors.keys() - known if (key_time_ms(session) or 0) < born})
        if len(floors) > self.policy.sessions_max:
            raise ReshapeRefused(
                f"partition {partition} would know {len(floors)} client sessions of the old partitions "
                f"{', '.join(map(str, parents))}, and sessions_max is {self.policy.sessions_max}; use more partitions, "
                f"preferably a multiple of {len(self.sources)}, or raise sessions_max in the old shape first"
            )
        return list(_needed([(olds[of], clock, row) for clock, of, row in found], floors))

    def _shared(self, old: apsw.Connection, lag: ClockLag) -> list[_Kept]:
        """What an old partition knows of calls on all partitions."""
        rows = [row for row in stored_rows(old) if row.shared]
        return list(_needed([(old, row.clock - lag.shared, row) for row in rows], known_floors(rows)))


def open_sessions(sources: Sequence[str], policy: KeyPolicy, lags: Sequence[ClockLag]) -> KeptSessions:
    """Reads what is needed before any table is written."""
    single, shared, rows = list[Forgotten](), list[Forgotten](), 0
    for source in sources:
        with closing(connect(source, apsw.SQLITE_OPEN_READWRITE)) as connection:
            single.append(forgotten_of(connection, SINGLE_FIGURES))
            shared.append(forgotten_of(connection, SHARED_FIGURES))
            rows += count_rows(connection)
    return KeptSessions(sources, policy, lags, single, shared, rows)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is needed of a row."""

    connection: apsw.Connection  # to the state that has it
    row: SessionRow
    clock: int  # moved
    mentioned: Mapping[bytes, int]  # session -> floor
    positions: Sequence[int]  # of its calls

    def calls(self) -> list[bytes]:
        """Their names."""
        row = self.row
        return call_names((row.sessions[row.ordinals[at]], row.numbers[at]) for at in self.positions)

    def outcomes(self) -> bytes:
        """Of its needed calls."""
        row, outcomes = outcomes_of(self.connection, self.row.idx)
        return outcomes if len(self.positions) == len(row.numbers) else pick_outcomes(outcomes, self.positions)


class _SessionFilling:
    """One table that is being written."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._idx = FIRST_ROW

    def put_single(self, rows: Iterable[_Kept]) -> None:
        for kept in rows:
            self._put(kept, kept.outcomes())

    def put_shared(self, sides: Sequence[Sequence[_Kept]], *, first: bool) -> None:
        """Calls on all partitions, as each old partition knows them. Raises: ReshapeRefused when they know different ones."""
        if len({tuple([(tuple(kept.mentioned), *kept.calls()) for kept in side]) for side in sides}) > 1:
            raise ReshapeRefused(DISAGREEMENT)
        for several in zip(*sides, strict=True):
            packed, count = [kept.outcomes() for kept in several], len(several[0].positions)
            self._put(several[0], combined_outcomes(packed, count, first=first))

    def _put(self, kept: _Kept, outcomes: bytes) -> None:
        row, places = kept.row, {session: at for at, session in enumerate(kept.mentioned)}
        ordinals = tuple([places[row.sessions[row.ordinals[at]]] for at in kept.positions])
        numbers = tuple([row.numbers[at] for at in kept.positions])
        mentioned, floors = tuple(kept.mentioned), tuple(kept.mentioned.values())
        put_row(self._connection, SessionRow(self._idx, kept.clock, row.stage, mentioned, floors, ordinals, numbers), outcomes)
        self._idx += 1


def _needed(rows: Sequence[tuple[apsw.Connection, int, SessionRow]], floors: Mapping[bytes, int]) -> Iterator[_Kept]:
    """(state, clock, row) in order: what of each is above the floors, and not a copy, or is the latest to mention a session."""
    latest: dict[bytes, int] = {}
    for place, (_, _, row) in enumerate(rows):
        if row.stage != Stage.OLD:
            latest.update(dict.fromkeys(row.sessions, place))
    known: set[tuple[bytes, int]] = set()
    for place, (connection, clock, row) in enumerate(rows):
        names = [(row.sessions[ordinal], number) for ordinal, number in zip(row.ordinals, row.numbers, strict=True)]
        positions = [at for at, name in enumerate(names) if name[0] in floors and name[1] > floors[name[0]] and name not in known]
        known.update(names[at] for at in positions)
        sessions = [session for session in row.sessions if latest.get(session) == place]
        sessions += [names[at][0] for at in positions]
        if sessions:
            yield _Kept(connection, row, clock, {session: floors[session] for session in sessions}, positions)
