"""Applies the entries behind a fork with one other version of the code, and compares what the calls answer with the live run.

One rule: only the code is another. The calls, their order, their transaction ids, keys and skips are those of the log; the tables
are what this code finds and makes when it is started there. So SCHEMA entries of the log, which belong to the code that is
replaced, pass without effect, and what this code's tables lack stands before the first call, as at a start with changed code.

A stream that is forked has other entries than the log: the schema change, and the second half of a batch that the fork cuts.
Its indexes are the log's plus `shift`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from cmdlog.wal.batch import Batch, decode_batch
from cmdlog.wal.errors import DiskFull, WriteFailed
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from cmdlog.wal.record import Kind, Record, decode_digest
from procedures import Database
from procedures.errors import EnvironmentFault
from procedures.executor import Applied, Invocations
from procedures.outcomes import KeyPolicy, Status
from procedures.state import PartitionState
from replay.apply import Result
from replay.engine import Catalogs, PartitionEngine
from replay.errors import ReplayError
from replay.fitting import Fit, Fitting, Unfit
from replay.scan import Stream

VERSION: Final = 1  # of the only code that runs here
PENDING_MAX: Final = 1024  # batches of a partition that wait for their digest; it stands a few blocks behind in the log
GROUP_CALLS_MAX: Final = 2000  # in one SQLite transaction, which is cheaper than one per batch
REPORT_EVERY_CALLS: Final = 2000
Missing = Literal["refuse", "skip"]


class CallUnfit(ReplayError):
    """A call of the log cannot run with the other code."""

    exit_code = 13
    hint = "give the code a procedure of that name and parameters, or leave such calls out with --skip-missing"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a partition leaves its log: behind `index`, or behind the first `calls` calls of it."""

    partition: int
    index: int = 0
    term: int = 0  # 0: not known
    checksum: int = 0
    calls: int = -1  # -1 = all


@dataclass(frozen=True, slots=True)
class Difference:
    """A call that ended otherwise than live."""

    txn_id: int
    partition: int
    index: int  # of the log that was forked
    position: int
    procedure: str
    params: list[Any]
    live_hash: int  # CRC-32C of status and answer: all that the log keeps of an outcome
    status: str
    outcome: Any
    live_status: str = ""  # "": not looked for, or not found
    live_outcome: Any = None

    def to_json(self) -> dict[str, Any]:
        return {
            "txn_id": str(self.txn_id), "partition": self.partition, "index": self.index, "position": self.position,
            "procedure": self.procedure, "params": self.params, "live_hash": f"{self.live_hash:08x}",
            "status": self.status, "outcome": self.outcome,
            "live_status": self.live_status or None, "live_outcome": self.live_outcome,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Calls of one procedure that did not run, for one reason."""

    procedure: str
    why: str
    calls: int
    first_txn_id: int


@dataclass(slots=True)
class Tally:
    """What the calls did."""

    compared: int = 0  # calls whose live outcome the log knows
    changed: int = 0  # … and that ended otherwise
    first: Difference | None = None  # by transaction id
    first_batch: Batch | None = None  # … and the batch in which it stands
    statuses: Counter[int] = field(default_factory=Counter)  # `Status` -> calls
    left_out: dict[tuple[str, str], LeftOut] = field(default_factory=dict)

    def note_left_out(self, procedure: str, why: str, txn_id: int) -> None:
        known = self.left_out.get((procedure, why), LeftOut(procedure, why, 0, txn_id))
        self.left_out[procedure, why] = LeftOut(procedure, why, known.calls + 1, min(known.first_txn_id, txn_id))


@dataclass(frozen=True, slots=True)
class _Done:
    """A batch that waits for its digest."""

    batch: Batch
    ran: list[int]  # positions in the batch
    calls: Invocations
    applied: Applied


@dataclass(slots=True)
class _Lane:
    """One partition."""

    engine: PartitionEngine
    stream: Stream
    place: Place
    result: Result
    at: int  # index of the last entry of the log that was applied
    shift: int = 0
    reported: int = 0
    grouped: int = 0  # calls in the open transaction
    pending: OrderedDict[int, _Done] = field(default_factory=OrderedDict)  # index in the log -> …


class Rerun:
    """Feeds the entries behind the fork to engines that run other code. One thread."""

    def __init__(
        self,
        states: Mapping[int, PartitionState],
        streams: Mapping[int, Stream],
        places: Mapping[int, Place],
        *,
        db: Database,
        fitting: Fitting,
        missing: Missing,
        progress: Callable[[int, int], None],
        begin_call: Callable[[int], object] | None = None,
        ended: Callable[[Batch, list[int], Applied], None] = lambda _batch, _ran, _applied: None,
    ) -> None:
        """Brings the tables to those of the code. Raises: SchemaConflict.

        `begin_call` is told before each call which of those of its batch that run it is; `ended` when a batch has run, with the
        positions in it of those calls.
        """
        self.tally = Tally()
        self._fitting, self._missing, self._progress, self._ended = fitting, missing, progress, ended
        catalogs = Catalogs()
        catalogs.add_live(VERSION, db)
        self._lanes = {p: _lane(state, streams[p], places[p], catalogs, begin_call) for p, state in states.items()}
        for lane in self._lanes.values():
            _change_schema(lane, db)

    @property
    def finished(self) -> bool:
        """Every partition stands at its end, and nothing waits for a digest."""
        return all(lane.at >= lane.stream.to_index and not lane.pending for lane in self._lanes.values())

    def run(self, records: Iterable[tuple[Lsn, Record]]) -> list[Result]:
        """Takes records until all is done. Raises: CallUnfit, CodeMissing, DiskFull, WriteFailed, EnvironmentFault."""
        try:
            for lsn, record in records:
                if self.finished:
                    break
                self.take(lsn, record)
        except EnvironmentFault as fault:
            if isinstance(fault.__cause__, KeyboardInterrupt):  # Ctrl-C within a procedure
                raise KeyboardInterrupt from fault
            kinds = {"disk_full": DiskFull, "io": WriteFailed}
            raise kinds[fault.kind](str(fault)) if fault.kind in kinds else fault from fault
        return [_end(lane) for _, lane in sorted(self._lanes.items())]

    def take(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record of the log."""
        if record.partition == CLUSTER_GROUP:
            self._cluster(record)
        elif (lane := self._lanes.get(record.partition)) is None:
            return
        elif record.is_entry:
            if lane.at < record.index <= lane.stream.to_index and not _is_void(lane.stream, lsn, record.index):
                self._entry(lane, record)
        elif record.kind is Kind.DIGEST:
            self._digest(lane, record)

    def _cluster(self, record: Record) -> None:
        if record.kind is Kind.CONFIGURATION:
            configuration = record.json()
        elif record.kind is Kind.CHECKPOINT and record.json()["configurations"]:
            configuration = record.json()["configurations"][-1][2]
        else:
            return
        policy = KeyPolicy(**configuration.get("key_policy", {}))
        for lane in self._lanes.values():
            lane.engine.executor.key_policy = policy

    def _entry(self, lane: _Lane, record: Record) -> None:
        lane.at = record.index
        if record.kind is Kind.BATCH:
            self._batch(lane, record)
            return
        _end_group(lane)
        stands = {"index": record.index + lane.shift, "term": record.term, "checksum": record.checksum}
        if record.kind is Kind.SCHEMA:  # its time passes, its statements are those of other code
            lane.engine.executor.apply_schema(**stands, txn_id=record.json()["txn_id"], statements=())
        else:
            lane.engine.executor.advance(**stands)
        lane.result.entries += 1

    def _batch(self, lane: _Lane, record: Record) -> None:
        batch = decode_batch(record)
        low = max(lane.place.calls, 0) if record.index == lane.place.index else 0
        cut = record.index == lane.stream.to_index and lane.stream.to_calls >= 0
        high = lane.stream.to_calls if cut else batch.count
        lane.result.entries += 1
        ran, calls = self._fitted(lane, batch, range(low, high))
        if not ran:
            _end_group(lane)
            last = {"term": record.term, "checksum": record.checksum, "txn_id": batch.txn_ids[high - 1]}
            lane.engine.executor.apply_schema(index=calls.index, **last, statements=())
            return
        if not lane.grouped:
            lane.engine.executor.begin_group()
        applied = lane.engine.executor.apply(calls)
        self._ended(batch, ran, applied)
        self.tally.statuses.update(applied.statuses)
        lane.pending[record.index] = _Done(batch, ran, calls, applied)
        if len(lane.pending) > PENDING_MAX:
            lane.pending.popitem(last=False)
        lane.grouped += len(ran)
        lane.result.calls += len(ran)
        if lane.grouped >= GROUP_CALLS_MAX or record.index == lane.stream.to_index:
            _end_group(lane)
        if lane.result.calls - lane.reported >= REPORT_EVERY_CALLS:
            lane.reported = lane.result.calls
            self._progress(lane.place.partition, lane.reported)

    def _fitted(self, lane: _Lane, batch: Batch, wanted: range) -> tuple[list[int], Invocations]:
        """(positions that run, those calls as today's code takes them)."""
        record, all_params = batch.record, batch.params()
        fits = self._fitting.procedures(batch.catalog)
        ran: list[int] = []
        numbers, params = [], []
        for at in wanted:
            fit, txn_id = fits[batch.procedures[at]], batch.txn_ids[at]
            try:
                params.append(self._fitting.params(fit, all_params[at], txn_id=txn_id, partition=record.partition))
            except Unfit as why:
                self._leave_out(fit, batch, at, str(why))
                continue
            numbers.append(fit.number)
            ran.append(at)
        keys, skips = batch.key_list(), lane.stream.skips.get(record.index, ())
        return ran, Invocations(
            index=record.index + lane.shift,
            term=record.term,
            checksum=record.checksum,
            catalog=VERSION,
            txn_ids=[batch.txn_ids[at] for at in ran],
            procedures=numbers,
            params=params,
            keys=None if keys is None else [keys[at] for at in ran],
            skips=frozenset(n for n, at in enumerate(ran) if at in skips),
        )

    def _leave_out(self, fit: Fit, batch: Batch, at: int, why: str) -> None:
        txn_id, record = batch.txn_ids[at], batch.record
        if self._missing == "skip":
            self.tally.note_left_out(fit.name, why, txn_id)
            return
        raise CallUnfit(
            f"transaction {txn_id} (partition {record.partition}, index {record.index}, call {at}) ran {fit.was}; "
            f"the code has {fit.now}: {why}"
        )

    def _digest(self, lane: _Lane, record: Record) -> None:
        done = lane.pending.get(record.index)
        if done is None or done.batch.record.term != record.term:
            return
        del lane.pending[record.index]
        hashes = decode_digest(record).result_hashes
        live = [hashes[at] for at in done.ran]
        self.tally.compared += len(live)
        if live == done.applied.result_hashes:
            return
        others = [n for n, (a, b) in enumerate(zip(live, done.applied.result_hashes, strict=True)) if a != b]
        self.tally.changed += len(others)
        n = others[0]
        if self.tally.first is None or done.calls.txn_ids[n] < self.tally.first.txn_id:
            self.tally.first, self.tally.first_batch = self._difference(done, n, live[n]), done.batch

    def _difference(self, done: _Done, n: int, live_hash: int) -> Difference:
        record, at = done.batch.record, done.ran[n]
        return Difference(
            txn_id=done.calls.txn_ids[n],
            partition=record.partition,
            index=record.index,
            position=at,
            procedure=self._fitting.procedures(done.batch.catalog)[done.batch.procedures[at]].name,
            params=done.calls.params[n],
            live_hash=live_hash,
            status=Status(done.applied.statuses[n]).name,
            outcome=orjson.loads(done.applied.bodies[n]),
        )


def _lane(
    state: PartitionState, stream: Stream, place: Place, catalogs: Catalogs, begin_call: Callable[[int], object] | None
) -> _Lane:
    engine = PartitionEngine(state, catalogs, digest_rows=False, policy=KeyPolicy(), progress=begin_call)
    lane = _Lane(engine, stream, place, Result(place.partition), at=place.index)
    same_cut = stream.to_index == place.index and stream.to_calls == place.calls
    if place.calls >= 0 and not same_cut:  # the rest of that batch becomes an entry of its own
        lane.at, lane.shift = place.index - 1, 1
    return lane


def _change_schema(lane: _Lane, db: Database) -> None:
    """As at a start with changed code: what the tables lack."""
    state = lane.engine.state
    statements = db.plan_schema(state.schema())
    if not statements:
        return
    state.rehearse_schema(statements)
    position = state.position
    lane.engine.executor.apply_schema(
        index=position.index + 1, term=position.term, checksum=0, txn_id=position.txn_id, statements=statements
    )
    lane.shift += 1


def _end_group(lane: _Lane) -> None:
    lane.engine.executor.end_group()
    lane.grouped = 0


def _end(lane: _Lane) -> Result:
    _end_group(lane)
    position, result = lane.engine.state.position, lane.result
    result.index, result.term, result.checksum = position.index, position.term, position.checksum
    result.txn_id = position.txn_id
    return result


def _is_void(stream: Stream, lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log put this entry out of force."""
    return any(index >= first and (lsn.block, lsn.offset) < (block, offset) for block, offset, first in stream.voids)
