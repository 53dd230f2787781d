"""How a batch differs from the live run, and the report about it: the place, the call that is set aside, a row that was touched.

One rule: it compares and describes, and changes nothing. Batches are run and rolled back by `replay.recover.partition_replay`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import apsw

from cmdlog.wal.format.batch import NO_KEY, Batch
from cmdlog.wal.format.record import Digest
from procedures.errors import BundleError
from procedures.execution.executor import Applied
from procedures.idempotency.known_outcome import Status
from procedures.storage.row_digest import ChangedRow
from replay.engine import CatalogMissing, Catalogs
from replay.errors import ROWS_MAX, DivergencePlace, RowDifference
from replay.recover.quarantine import Quarantined, Touch
from replay.state.live_rows import LiveRows
from replay.state.touched_rows import Key, Tables, routed

UNSTEADY: Final = "replayed again with a different result"
RERUNS: Final = 2


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """Why a batch is not simply applied."""

    kind: str  # divergence, fault, hang, death, code
    reason: str
    position: int  # -1: not known which call
    applied: Applied | None = None  # what it did, for a divergence
    live: Digest | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a batch that was rolled back."""

    statuses: Sequence[int]
    hashes: Sequence[int]
    rows_digest: int
    changed: Mapping[Key, ChangedRow]
    touched: Mapping[Key, list[int]]  # row -> positions of the calls that touched it

    def rows_of(self, position: int) -> list[Key]:
        return [key for key, positions in self.touched.items() if position in positions]


def compare_with_live(batch: Batch, applied: Applied, live: Digest, aside: Collection[int] = ()) -> BatchProblem | None:
    """How a replayed batch, or its first calls, differs from the live run; calls of `aside` are not compared."""
    if list(live.result_hashes[: len(applied.result_hashes)]) != list(applied.result_hashes):
        at = differing_calls(live.result_hashes, applied.result_hashes, aside)
        if at:
            return BatchProblem("divergence", "", at[0], applied, live)
    rows = live.rows_digest and applied.rows_digest and live.rows_digest != applied.rows_digest
    if rows and not aside and len(applied.result_hashes) == batch.count:
        return BatchProblem("divergence", "", -1, applied, live)
    return None


def differing_calls(live: Sequence[int], ours: Sequence[int], aside: Collection[int]) -> list[int]:
    """Positions at which the answers differ; those of `aside` do not count."""
    return [at for at, (a, b) in enumerate(zip(live, ours, strict=False)) if a != b and at not in aside]


def changers(trial: Trial) -> list[int]:
    """Positions of the calls that touched what the batch changed."""
    return sorted({at for key in trial.changed for at in trial.touched.get(key, ())})


def unsteady_call(trials: Sequence[Trial]) -> int:
    """The first call whose answer or rows differ between two trials; -1 when none does."""
    first, second = trials
    keys = [key for key in first.changed.keys() | second.changed.keys() if _new(first, key) != _new(second, key)]
    rows = [at for key in keys for at in [*first.touched.get(key, ()), *second.touched.get(key, ())]]
    return min([*rows, *differing_calls(first.hashes, second.hashes, ())], default=-1)


def _new(trial: Trial, key: Key) -> tuple[Any, ...] | None:
    changed = trial.changed.get(key)
    return () if changed is None else changed.new


def _reruns_in_words(problem: BatchProblem, trials: Sequence[Trial]) -> str:
    """What the trials say about the call; "" when there were none to compare."""
    if len(trials) < RERUNS or problem.applied is None:
        return ""
    at = problem.position
    hashes = (
        {trial.hashes[at] for trial in trials if at < len(trial.hashes)} | {problem.applied.result_hashes[at]}
        if at >= 0
        else set()
    )
    digests = {trial.rows_digest for trial in trials} | ({problem.applied.rows_digest} - {0})
    if len(hashes) > 1 or (at < 0 and len(digests) > 1) or (at >= 0 and unsteady_call(trials) == at):
        return f"{UNSTEADY}: the procedure is not deterministic"
    return "replayed again with the same result"


class DivergenceReporter:
    """Describes the batches of one run."""

    def __init__(self, catalogs: Catalogs, live_rows: LiveRows | None) -> None:
        self._catalogs, self._live_rows = catalogs, live_rows

    def describe(
        self,
        connection: apsw.Connection,
        batch: Batch,
        at: int,
        params: list[Any],
        *,
        problem: BatchProblem,
        place: DivergencePlace,
        trials: Sequence[Trial],
    ) -> Quarantined:
        """The call at this position, for the record."""
        record, names = batch.record, self.procedures(batch)
        number = batch.procedures[at]
        keys = batch.key_list()
        rows = trials[0].rows_of(at) if trials else []
        tables = Tables(connection)
        # Where no row is known, the value that sent the call to its partition takes the place of rows.
        return Quarantined(
            partition=record.partition,
            index=record.index,
            position=at,
            txn_id=batch.txn_ids[at],
            procedure=self._name(batch, number),
            catalog=batch.catalog,
            source_hash=place.source_hash,
            params=dict(zip(names[number].parameter_names, params, strict=False)) if names else params,
            idempotency_key=keys[at].hex() if keys is not None and keys[at] != NO_KEY else "",
            kind=problem.kind,
            reason=problem.reason
            or f"live {place.expected}, replayed {place.got}" + (f"; {place.reruns}" if place.reruns else ""),
            routing=None if rows or problem.kind == "divergence" or not names else routed(names, number, params),
            rows=tuple(row for row in place.rows if row.txn_id == batch.txn_ids[at]),
            keys=tuple((key[0], tables.named_key(key)) for key in rows),
        )

    def touch(self, batch: Batch, at: int, table: str = "", key: Mapping[str, Any] | None = None, *, otherwise: bool) -> Touch:
        name = self._name(batch, batch.procedures[at])
        return Touch(batch.txn_ids[at], batch.record.index, at, name, table, key or {}, otherwise)

    def procedures(self, batch: Batch) -> Sequence[Any]:
        """() when the code is missing."""
        try:
            return self._catalogs(batch.catalog).procedure_list
        except (CatalogMissing, BundleError):
            return ()

    def _name(self, batch: Batch, number: int) -> str:
        procedures = self.procedures(batch)
        return str(procedures[number].name) if procedures else f"procedure number {number}"

    def place(
        self,
        connection: apsw.Connection,
        batch: Batch,
        problem: BatchProblem,
        trials: Sequence[Trial] = (),
        suspects: Sequence[int] = (),
    ) -> DivergencePlace:
        """The call in question, with its rows when there are trials; the connection sees the state before the batch.

        `suspects`: positions of the calls that a quarantine sets aside.
        """
        at, record = problem.position, batch.record
        numbers = [batch.procedures[at]] if at >= 0 else sorted(set(batch.procedures))
        expected, got = self._both(problem)
        rows = self._rows(connection, batch, problem, trials[0]) if trials else []
        return DivergencePlace(
            record.partition,
            record.index,
            batch.txn_ids[max(at, 0)],
            at,
            ", ".join(sorted(self._name(batch, number) for number in numbers)),
            expected,
            got,
            batch.catalog,
            self._catalogs.hashes.get(batch.catalog, ""),
            tuple(rows[:ROWS_MAX]),
            len(rows[ROWS_MAX:]),
            _reruns_in_words(problem, trials),
            problem.kind,
            tuple((batch.txn_ids[at], self._name(batch, batch.procedures[at])) for at in suspects[:ROWS_MAX]),
            len(suspects[ROWS_MAX:]),
        )

    def _both(self, problem: BatchProblem) -> tuple[str, str]:
        """What the live run did and what the replay did."""
        applied, live, at = problem.applied, problem.live, problem.position
        if applied is None or live is None:
            return "ran to its end", problem.reason
        if at >= 0 and live.result_hashes[at] != applied.result_hashes[at]:
            status = Status(applied.statuses[at]).name
            return f"answered with hash {live.result_hashes[at]:08x}", f"{status} with hash {applied.result_hashes[at]:08x}"
        return f"changed rows with digest {live.rows_digest:016x}", f"changed rows with digest {applied.rows_digest:016x}"

    def _rows(self, connection: apsw.Connection, batch: Batch, problem: BatchProblem, trial: Trial) -> list[RowDifference]:
        """The rows that the call, or the whole batch, changed; those that differ from the live ones first."""
        keys = trial.rows_of(problem.position) if problem.position >= 0 else list(trial.changed)
        keys = sorted(keys, key=repr)
        tables = Tables(connection)
        live = self._live_rows
        found = live.read(batch.record.partition, batch.record.index, tables, keys) if live is not None else None
        rows = []
        for key in keys:
            changed = trial.changed.get(key)
            last = max(trial.touched.get(key, (-1,)))
            row = changed.new if changed is not None else tables.read(connection, key)
            as_of = found.index if found is not None else None
            theirs = tables.named_row(key[0], found.rows.get(key)) if found is not None else None
            txn = batch.txn_ids[last] if last >= 0 else 0
            rows.append(RowDifference(key[0], tables.named_key(key), txn, tables.named_row(key[0], row), theirs, as_of))
        return sorted(rows, key=lambda row: row.live_as_of_index is None or row.replayed == row.live)
