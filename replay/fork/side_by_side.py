"""Runs one partition's history twice, batch by batch: as it was, and with other code. Notes for each row which call made it
differ.

One rule: the left side is the live history, run by its own code and compared with its digests (`replay.fork.baseline`); the right
side is a fork of it (`replay.fork.rerun`). Both apply a batch before either sees the next one, so what is held is one batch and,
on disk, one line for each row that ever differed: the first call that made it differ. The first note of a row stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import apsw
import orjson

from cmdlog.wal.format.batch import Batch
from cmdlog.wal.format.control_record import SchemaChange
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import Lsn
from procedures.execution.executor import Applied
from procedures.idempotency.known_outcome import KeyPolicy, Status
from procedures.numeric.marks import marked_numerics
from procedures.storage.state import PartitionState
from replay.engine import Catalogs
from replay.fork.baseline import Baseline
from replay.fork.rerun import ForkPlace, OtherCode, PartitionRerun, RerunBatch
from replay.fork.tally import Difference, LeftOut
from replay.log.scan import ScannedStream
from replay.loop import EntryQueue, ReplayLoop
from replay.results import PartitionResult
from replay.state.touched_rows import INTERNAL, Key, Row, RowTrail, Steps, Trails

_COLUMNS: Final = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid"
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"
_KEY: Final = "SELECT name FROM pragma_table_xinfo(?) WHERE pk > 0 ORDER BY pk"
_FIRSTS: Final = (
    "CREATE TABLE first (name TEXT, key TEXT, txn_id INTEGER, position INTEGER, procedure TEXT, PRIMARY KEY (name, key))"
    " WITHOUT ROWID"
)

Project = Callable[[Row], Any]
KeyedRow = tuple[tuple[Any, ...], Any]  # values of the primary key, what is compared


@dataclass(slots=True)
class Outcomes:
    """How the calls ended on both sides."""

    calls: int = 0  # that ran on both
    changed: int = 0  # … and ended differently
    first: Difference | None = None
    statuses: dict[str, int] = field(default_factory=dict)  # of the right side

    def to_json(self, left_out: Iterable[LeftOut]) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "changed": self.changed,
            "first": self.first.to_json() if self.first else None,
            "statuses": dict(sorted(self.statuses.items())),
            "left_out": [of.to_json() for of in left_out],
        }


class SideBySide:
    """Both histories of one partition after a fork, as one policy. One thread."""

    def __init__(
        self,
        *,
        stream: ScannedStream,
        place: ForkPlace,
        left: PartitionState,
        right: PartitionState,
        catalogs: Mapping[int, Mapping[str, Any]],
        row_digests: bool,
        code: OtherCode,
        firsts: FirstDifferences,
        progress: Callable[[int], None],
    ) -> None:
        """`left` is before the batch that the fork cuts, if it cuts one; `right` within it. Raises: SchemaConflict."""
        self.outcomes, code_of_log = Outcomes(), Catalogs()
        for version, value in catalogs.items():
            code_of_log.add_logged(version, value)
        self._stream, self._place, self._firsts, self._fitting = stream, place, firsts, code.fitting
        self._progress = progress
        self._left = Baseline(stream, place, left, code_of_log, row_digests=row_digests)
        self._trail = RowTrail(right.connection)
        self._views: dict[str, tuple[Project, Project] | None] = {}
        self._connections = left.connection, right.connection
        with self._trail.schema_change(), self._noting_migrations(right, right.position.txn_id):
            self._right = PartitionRerun(right, stream, place, code, begin_call=self._trail.begin_call)
        self._folder = os.path.dirname(right.path)

    def run(self, records: Iterable[tuple[Lsn, Record]]) -> tuple[PartitionResult, list[LeftOut]]:
        """Applies records until both are at the end.

        Raises: Divergence of the left side; CallUnfit, CodeMissing; what `ReplayLoop.run` raises; PlanOutdated.
        """
        partition = self._place.partition
        queue = EntryQueue(
            partition,
            self,
            after_index=min(self._left.state.position.index, self._right.done.at),
            to_index=self._stream.to_index,
            voids=self._stream.voids,
            progress=lambda _partition, calls: self._progress(calls),
        )
        ReplayLoop({partition: queue}).run(records, self._folder)
        result = self._right.finish()
        self._left.finish()
        return result, list(self._right.done.tally.left_out.values())

    @property
    def calls(self) -> int:
        return self._right.calls

    @property
    def awaits_digest(self) -> bool:
        return self._left.awaits_digest or self._right.awaits_digest

    def apply_entry(self, lsn: Lsn, record: Record, digest: Record | None) -> None:
        """On both sides; one of them may begin with the entry after it."""
        index, left, right = record.index, None, None
        if index > self._left.state.position.index:
            is_change = record.kind is RecordKind.SCHEMA
            at = SchemaChange.from_record(record).txn_id if is_change else 0
            with self._noting_migrations(self._left.state, at) if is_change else nullcontext():
                left = self._left.apply_entry(lsn, record, digest)
        if index > self._right.done.at:
            right = self._right.apply_entry(lsn, record, digest)
        self._compare(left, right)

    def compare_late(self, digest: Record) -> None:
        self._left.compare_late(digest)
        self._right.compare_late(digest)

    def change_key_policy(self, policy: KeyPolicy) -> None:
        self._left.change_key_policy(policy)
        self._right.change_key_policy(policy)

    @contextmanager
    def _noting_migrations(self, changing: PartitionState, at: int) -> Iterator[None]:
        """Inside, one side changes its tables. Rows that a migration makes differ are not the work of the next call."""
        done = set(changing.migrations_done())
        yield
        self._views.clear()
        ran = [name for name in changing.migrations_done() if name not in done]
        if not ran:
            return
        names = sorted(str(name) for (name,) in self._connections[0].execute(_TABLES) if not str(name).startswith(INTERNAL))
        cause = f"migration {', '.join(ran)}"
        self._firsts.add_calls(((name, key), at, 0, cause) for name in names for key in self._differing(name))

    def _differing(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Keys of the rows that are not the same on both sides, of a table that both have."""
        view = self._view(table)
        if view is None or view[0] is _presence:
            return
        keys = [str(row[0]) for row in self._connections[0].execute(_KEY, (table,))]
        order = ", ".join(f'"{key}"' for key in keys)
        left, right = (self._keyed_rows(of, table, order, keys, see) for of, see in zip(self._connections, view, strict=True))
        yield from _unequal(left, right)

    def _keyed_rows(self, of: apsw.Connection, table: str, order: str, keys: list[str], see: Project) -> Iterator[KeyedRow]:
        places = [[str(row[0]) for row in of.execute(_COLUMNS, (table,))].index(key) for key in keys]
        for row in of.execute(f'SELECT * FROM "{table}" ORDER BY {order}'):  # noqa: S608 - names of the schema
            yield tuple(row[place] for place in places), see(row)

    # -- what both did -------------------------------------------------------------------------------------------------------

    def _compare(self, left: tuple[Batch, Applied, Trails] | None, right: RerunBatch | None) -> None:
        batch = left[0] if left is not None else right.batch if right is not None else None
        if batch is None:
            return
        trails = self._trail.take_rows(right.applied.statuses, right.ran) if right is not None else {}
        mine = left[2] if left is not None else {}
        found = []
        for key in sorted(mine.keys() | trails.keys(), key=repr):
            at = self._parted(key, mine.get(key), trails.get(key))
            if at is not None:
                found.append((key, batch.txn_ids[at], at, self._name(batch, at)))
        self._firsts.add_calls(found)
        if left is not None and right is not None:
            self._count(batch, left[1], right)

    def _parted(self, key: Key, left: Steps | None, right: Steps | None) -> int | None:
        """Position of the first call after which the row is not the same, if it was before."""
        view = self._view(key[0])
        if view is None:
            return None
        of_left, of_right = view
        before_left = _seen(left.before, of_left) if left is not None else None
        before_right = _seen(right.before, of_right) if right is not None else before_left
        before_left = before_left if left is not None else before_right
        steps = [(at, 0, _seen(row, of_left)) for at, row in left.behind] if left is not None else []
        steps += [(at, 1, _seen(row, of_right)) for at, row in right.behind] if right is not None else []
        steps.sort(key=lambda step: step[:2])
        now = [before_left, before_right]
        for number, (at, side, row) in enumerate(steps):
            now[side] = row
            last_of_call = number + 1 == len(steps) or steps[number + 1][0] != at
            if last_of_call and now[0] != now[1]:
                return at
        return None

    def _view(self, table: str) -> tuple[Project, Project] | None:
        """What is compared of a row on each side; None when the table's keys are not those of the other side."""
        if table not in self._views:
            columns = [[str(row[0]) for row in of.execute(_COLUMNS, (table,))] for of in self._connections]
            keys = [[str(row[0]) for row in of.execute(_KEY, (table,))] for of in self._connections]
            one_sided = not all(columns)
            both = [name for name in columns[0] if name in columns[1]]
            if one_sided:
                self._views[table] = _presence, _presence
            elif keys[0] != keys[1]:
                self._views[table] = None
            else:
                exact = [marked_numerics(of, table) for of in self._connections]
                scales = [max(of[name][1] if name in of else 0 for of in exact) for name in both]
                self._views[table] = (
                    _projection([columns[0].index(name) for name in both], _factors(both, scales, exact[0])),
                    _projection([columns[1].index(name) for name in both], _factors(both, scales, exact[1])),
                )
        return self._views[table]

    def _count(self, batch: Batch, left: Applied, ended: RerunBatch) -> None:
        ran, right = ended.ran, ended.applied
        outcomes, first_at = self.outcomes, max(self._place.calls, 0) if left.index == self._place.index else 0
        for n, at in enumerate(ran):
            if not first_at <= at < len(left.result_hashes):
                continue
            outcomes.calls += 1
            status = Status(right.statuses[n]).name
            outcomes.statuses[status] = outcomes.statuses.get(status, 0) + 1
            if right.result_hashes[n] == left.result_hashes[at]:
                continue
            outcomes.changed += 1
            if outcomes.first is None:
                outcomes.first = self._difference(batch, at, (left, at), (right, n))

    def _difference(self, batch: Batch, at: int, left: tuple[Applied, int], right: tuple[Applied, int]) -> Difference:
        (was, was_at), (now, now_at) = left, right
        return Difference(
            txn_id=batch.txn_ids[at],
            partition=batch.record.partition,
            index=batch.record.index,
            position=at,
            procedure=self._name(batch, at),
            params=batch.params()[at],
            live_hash=was.result_hashes[was_at],
            status=Status(now.statuses[now_at]).name,
            outcome=orjson.loads(now.bodies[now_at]),
            live_status=Status(was.statuses[was_at]).name,
            live_outcome=orjson.loads(was.bodies[was_at]),
        )

    def _name(self, batch: Batch, at: int) -> str:
        return self._fitting.procedures(batch.catalog)[batch.procedures[at]].name


def _unequal(left: Iterator[KeyedRow], right: Iterator[KeyedRow]) -> Iterator[tuple[Any, ...]]:
    """Keys of the rows that are not in both, or not the same; both ascend by key."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            yield one[0]  # type: ignore[index]  # one of them is there
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0]
            other = next(right, None)
        else:
            if one[1] != other[1]:
                yield one[0]
            one, other = next(left, None), next(right, None)


def _seen(row: Row | None, project: Project) -> Any:
    return None if row is None else project(row)


def _presence(_row: Row) -> Any:
    return True


def _factors(columns: list[str], scales: list[int], exact: Mapping[str, tuple[int, int]]) -> list[int]:
    """By what a side's exact decimals are multiplied to have as many digits as those of the side that has more."""
    return [10 ** (scale - exact[name][1]) if name in exact else 1 for name, scale in zip(columns, scales, strict=True)]


def _projection(at: list[int], factors: list[int]) -> Project:
    if all(by == 1 for by in factors):
        return lambda row: [(type(row[n]), row[n]) for n in at]
    pairs = list(zip(at, factors, strict=True))
    return lambda row: [(type(row[n]), row[n] * by if type(row[n]) is int else row[n]) for n, by in pairs]


@dataclass(frozen=True, slots=True)
class First:
    """The call after which a row was not the same on both sides for the first time."""

    txn_id: int
    procedure: str


class FirstDifferences:
    """The calls that made rows differ, in a file of its own."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(_FIRSTS)

    def add_calls(self, found: Iterable[tuple[Key, int, int, str]]) -> None:
        """(row, transaction, position in its batch, procedure); what is already known of a row stays."""
        rows = [(key[0], repr(key[1]), txn_id, position, name) for key, txn_id, position, name in found]
        if rows:
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO first VALUES (?, ?, ?, ?, ?)", rows)

    def of(self, table: str, key: Row) -> First | None:
        rows = self._connection.execute(
            "SELECT txn_id, procedure FROM first WHERE name = ? AND key = ?", (table, repr(tuple(key)))
        ).fetchall()
        return First(int(str(rows[0][0])), str(rows[0][1])) if rows else None

    def close(self) -> None:
        self._connection.close()
