"""Calls that one partition's replay leaves out, and which later calls met them.

One rule: it notes and compares. Batches are run and rolled back by `replay.recover.partition_replay`.

A call that was set aside leaves the rows that it touched in question; where none is known, the value that sent it to its
partition. A later call that meets them is listed. It may differ from the live run, since it read other rows; then what it touched
is also in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import apsw

from cmdlog.wal.format.batch import Batch
from cmdlog.wal.format.record import Digest
from procedures.execution.executor import Applied, Invocations
from replay.errors import DivergencePlace
from replay.recover.divergence import BatchProblem, DivergenceReporter, Trial, changers, differing_calls
from replay.recover.quarantine import TOUCHES_MAX, Aside, Quarantined, QuarantineFile, Touch
from replay.state.touched_rows import CallRows, Key, Tables, positions_of, routed

CALLS_MAX: Final = 1000  # of a partition; more is no matter of single calls
WATCHED_KEYS_MAX: Final = 100_000  # of a partition, about 30 MB
NONE: Final = frozenset[int]()


class SkippedCalls:
    """The calls of one partition that were set aside, and the rows in question. One thread."""

    def __init__(
        self, partition: int, reporter: DivergenceReporter, file: QuarantineFile | None, connection: apsw.Connection
    ) -> None:
        """With the calls of an earlier piece of the same recovery; None: nothing is set aside."""
        self.aside = Aside(partition)
        self._reporter, self._file = reporter, file
        self._keys: dict[Key, int] = {}  # row in question -> place in `aside.calls`
        self._routing: dict[str, int] = {}  # value that sent a call here, where no row of it is known -> the same
        if file is not None:
            self._remember(file.read(), Tables(connection))
        self._positions: dict[int, frozenset[int]] = {}  # index -> positions, of what this replay set aside
        self._accepted = -1  # index of a batch that is not compared: it differs since a call was set aside
        self._accepted_calls = NONE  # those of it that differ

    def __bool__(self) -> bool:
        return bool(self.aside.calls)

    def __contains__(self, index: object) -> bool:
        """Whether this replay set calls of that batch aside."""
        return index in self._positions

    def positions(self, index: int) -> frozenset[int]:
        """Of the calls of that batch which this replay set aside."""
        return self._positions.get(index, NONE)

    def too_many(self, more: int) -> str:
        """Why no more calls can be set aside; "" when they can."""
        if len(self.aside.calls) + more <= CALLS_MAX:
            return ""
        return f"{len(self.aside.calls)} calls were already set aside: code or environment differ entirely"

    def add_calls(
        self,
        connection: apsw.Connection,
        batch: Batch,
        positions: Sequence[int],
        *,
        problem: BatchProblem,
        place: DivergencePlace,
        trials: Sequence[Trial],
    ) -> None:
        """In the file first, durable, then here."""
        assert self._file is not None
        index, params = batch.record.index, batch.params()
        calls = [
            self._reporter.describe(connection, batch, at, params[at], problem=problem, place=place, trials=trials)
            for at in positions
        ]
        self._file.append(calls)
        for call in calls:
            self._add(call, trials[0].rows_of(call.position) if trials else ())
        self._positions[index] = self.positions(index) | frozenset(positions)

    def accept_difference(self, batch: Batch, live: Digest, trial: Trial) -> None:
        """The batch does the same thing twice: it differs from the live run since what was set aside is missing."""
        self._accepted = batch.record.index
        last = len(self.aside.calls) - 1
        differing = differing_calls(live.result_hashes, trial.hashes, self.positions(batch.record.index))
        self._accepted_calls = frozenset(differing or changers(trial))
        for at in sorted(self._accepted_calls):
            self._list_otherwise(self._reporter.touch(batch, at, otherwise=True))
            self._question(trial.rows_of(at), last)

    def check_batch(
        self, batch: Batch, calls: Invocations, applied: Applied, problem: BatchProblem | None, rows: CallRows
    ) -> BatchProblem | None:
        """Notes who touched rows in question. A difference is none of the batch's own when every call that differs did."""
        touched = rows.take_positions(applied.statuses)
        hits = self._hits(batch, calls, touched)
        differing = NONE
        if problem is not None and problem.live is not None:
            own = differing_calls(problem.live.result_hashes, applied.result_hashes, self.positions(applied.index))
            differing = frozenset(own)
            if applied.index != self._accepted and (not hits or not hits.keys() >= differing):
                return problem
        listed = self._accepted_calls if batch.record.index == self._accepted else NONE
        for at in sorted(hits.keys() - listed):
            for missing, key in hits[at]:
                named = (key[0], rows.tables.named_key(key)) if key is not None else ("", {})
                self._list_touch(missing, self._reporter.touch(batch, at, *named, otherwise=at in differing))
            if at in differing:
                self._question([key for key, positions in touched.items() if at in positions], hits[at][0][0])
        return None

    def _hits(
        self, batch: Batch, calls: Invocations, touched: Mapping[Key, Sequence[int]]
    ) -> dict[int, list[tuple[int, Key | None]]]:
        """Position -> each missing call before it whose rows it touched, or that was sent to where it was (no row is known)."""
        found: list[tuple[int, int, Key | None]] = [
            (at, self._keys[key], key) for at, keys in positions_of(touched, self._keys).items() for key in keys
        ]
        if self._routing and (names := self._reporter.procedures(batch)):
            for at, params in enumerate(calls.params):
                sent = routed(names, batch.procedures[at], params)
                found += [(at, self._routing[sent], None)] if sent in self._routing else []
        own = self.positions(batch.record.index)
        hits: dict[int, list[tuple[int, Key | None]]] = {}
        for at, missing, key in found:
            if batch.txn_ids[at] > self.aside.calls[missing].txn_id and at not in own:
                hits.setdefault(at, []).append((missing, key))
        return hits

    # -- rows in question ------------------------------------------------------------------------------------------------

    def _add(self, call: Quarantined, keys: Iterable[Key]) -> None:
        """The call was set aside; these are its rows."""
        self.aside.calls.append(call)
        at = len(self.aside.calls) - 1
        if call.routing is not None:
            self._routing.setdefault(call.routing, at)
        self._question(keys, at)

    def _remember(self, calls: Iterable[Quarantined], tables: Tables) -> None:
        """An earlier piece of the same recovery set these aside; those of other partitions do not count."""
        for call in calls:
            if call.partition == self.aside.partition:
                keys = [tables.key_from_named(table, key) for table, key in call.keys]
                self._add(call, [key for key in keys if key is not None])

    def _question(self, keys: Iterable[Key], at: int) -> None:
        """These rows are in question because of that call."""
        for key in keys:
            if key in self._keys:
                continue
            if len(self._keys) >= WATCHED_KEYS_MAX:
                self.aside.unwatched += 1
            else:
                self._keys[key] = at

    def _list_touch(self, at: int, touch: Touch) -> None:
        """A later call touched a row of that call."""
        listed = self.aside.touches.setdefault(at, [])
        if len(listed) < TOUCHES_MAX:
            listed.append(touch)
        else:
            self.aside.more[at] = self.aside.more.get(at, 0) + 1

    def _list_otherwise(self, touch: Touch) -> None:
        """A later call answered differently from the live run and touched no row in question."""
        if len(self.aside.otherwise) < TOUCHES_MAX:
            self.aside.otherwise.append(touch)
        else:
            self.aside.otherwise_more += 1
