"""Applies the entries behind a fork with one other version of the code, and compares what the calls answer with the live run.

One rule: only the code is another. The calls, their order, their transaction ids, keys and skips are those of the log; the tables
are what this code finds and makes when it is started there. So SCHEMA entries of the log, which belong to the code that is
replaced, pass without effect, and what this code's tables lack stands before the first call, as at a start with changed code.

A stream that is forked has other entries than the log: the schema change, and the second half of a batch that the fork cuts.
Its indexes are the log's plus `shift`.

An interrupted run can be resumed: what was done so far (`RerunProgress`) is handed to `keep` within each transaction that makes
it so. That needs digests before their batches (`replay.fork.digest_lookahead`), so that nothing is half compared when a
transaction ends.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, Self

import orjson

from cmdlog.wal.format.batch import Batch, decode_batch
from cmdlog.wal.format.record import Record, RecordKind, decode_digest
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn
from procedures import Database
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Applied, Invocations
from procedures.execution.idempotency import KeyPolicy, Status
from procedures.storage.state import PartitionState
from replay.engine import Catalogs, PartitionEngine, replay_calls
from replay.errors import ReplayError
from replay.fork.bind_calls import Fit, Fitting, Unfit
from replay.log.scan import ScannedStream
from replay.loop.replay_loop import _end_of as end_of
from replay.results import PartitionResult

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
class ForkPlace:
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
    block: int = 0  # of the log, where its batch stands; 0 = not noted

    def to_json(self) -> dict[str, Any]:
        return {
            "txn_id": str(self.txn_id), "partition": self.partition, "index": self.index, "position": self.position,
            "procedure": self.procedure, "params": self.params, "live_hash": f"{self.live_hash:08x}",
            "status": self.status, "outcome": self.outcome,
            "live_status": self.live_status or None, "live_outcome": self.live_outcome,
        }  # fmt: skip

    def kept(self) -> dict[str, Any]:
        """All of it; `of_kept` reads it."""
        return asdict(self)

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Calls of one procedure that did not run, for one reason."""

    procedure: str
    why: str
    calls: int
    first_txn_id: int


@dataclass(slots=True)
class RerunTally:
    """What the calls did."""

    compared: int = 0  # calls whose live outcome the log knows
    changed: int = 0  # … and that ended otherwise
    first: Difference | None = None  # by transaction id
    statuses: Counter[int] = field(default_factory=Counter)  # `Status` -> calls
    left_out: dict[tuple[str, str], LeftOut] = field(default_factory=dict)

    def note_left_out(self, procedure: str, why: str, txn_id: int) -> None:
        known = self.left_out.get((procedure, why), LeftOut(procedure, why, 0, txn_id))
        self.left_out[procedure, why] = LeftOut(procedure, why, known.calls + 1, min(known.first_txn_id, txn_id))

    def add(self, other: RerunTally) -> None:
        """What another partition's calls did."""
        self.compared += other.compared
        self.changed += other.changed
        if other.first is not None and (self.first is None or other.first.txn_id < self.first.txn_id):
            self.first = other.first
        self.statuses.update(other.statuses)
        for key, of in other.left_out.items():
            known = self.left_out.get(key, replace(of, calls=0))
            self.left_out[key] = replace(of, calls=known.calls + of.calls, first_txn_id=min(known.first_txn_id, of.first_txn_id))

    def kept(self) -> dict[str, Any]:
        """All of it; `of_kept` reads it."""
        return {
            "compared": self.compared,
            "changed": self.changed,
            "first": self.first.kept() if self.first is not None else None,
            "statuses": sorted(self.statuses.items()),
            "left_out": [asdict(of) for of in self.left_out.values()],
        }

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> Self:
        first = Difference.of_kept(value["first"]) if value["first"] is not None else None
        tally = cls(value["compared"], value["changed"], first, Counter(dict(value["statuses"])))
        tally.left_out = {(of["procedure"], of["why"]): LeftOut(**of) for of in value["left_out"]}
        return tally


@dataclass(slots=True)
class RerunProgress:
    """How far one partition has come behind the fork, and what its calls did."""

    at: int  # index of the last entry of the log that was applied
    shift: int = 0
    entries: int = 0
    calls: int = 0
    tally: RerunTally = field(default_factory=RerunTally)
    gone: list[list[Any]] = field(default_factory=list)  # [index of a batch, positions that the log had taken out], ascending
    open: list[int] = field(default_factory=list)  # batches of which no digest had come: the log may have grown one since

    def kept(self) -> dict[str, Any]:
        """All of it; `of_kept` reads it."""
        return {
            "at": self.at, "shift": self.shift, "entries": self.entries, "calls": self.calls, "tally": self.tally.kept(),
            "gone": self.gone, "open": self.open,
        }  # fmt: skip

    @classmethod
    def of_kept(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "tally": RerunTally.of_kept(value["tally"])})


@dataclass(frozen=True, slots=True)
class _WaitingBatch:
    """A batch that waits for its digest."""

    block: int
    batch: Batch
    ran: list[int]  # positions in the batch
    calls: Invocations
    applied: Applied


@dataclass(slots=True)
class _Lane:
    """One partition."""

    engine: PartitionEngine
    stream: ScannedStream
    place: ForkPlace
    done: RerunProgress
    reported: int = 0
    grouped: int = 0  # calls and entries in the open transaction
    pending: OrderedDict[int, _WaitingBatch] = field(default_factory=OrderedDict)  # index in the log -> …
    ahead: OrderedDict[int, Record] = field(default_factory=OrderedDict)  # index -> digest that came before its batch

    def wants(self, lsn: Lsn, index: int) -> bool:
        """Whether an entry of the log is to be applied."""
        return self.done.at < index <= self.stream.to_index and not is_void(self.stream, lsn, index)


Keep = Callable[[PartitionState, RerunProgress], None]


class Rerun:
    """Feeds the entries behind the fork to engines that run other code. One thread."""

    def __init__(
        self,
        states: Mapping[int, PartitionState],
        streams: Mapping[int, ScannedStream],
        places: Mapping[int, ForkPlace],
        *,
        db: Database,
        fitting: Fitting,
        missing: Missing,
        progress: Callable[[int, int], None],
        begin_call: Callable[[int], object] | None = None,
        ended: Callable[[Batch, list[int], Applied], None] = lambda _batch, _ran, _applied: None,
        begins: Callable[[Record, list[int]], None] = lambda _record, _ran: None,
        done: Mapping[int, RerunProgress] | None = None,
        keep: Keep = lambda _state, _done: None,
    ) -> None:
        """Brings the tables to those of the code. Raises: SchemaConflict.

        `begins` is told which calls of a batch will run, `begin_call` before each call which of them it is; `ended` when a batch
        has run, with the positions in it of those calls. `done` says where partitions of which a run before has applied something
        stand; `keep` notes that in the state's open transaction.
        """
        self._fitting, self._missing, self._progress = fitting, missing, progress
        self._begins, self._ended, self._keep = begins, ended, keep
        catalogs = Catalogs()
        catalogs.add_live(VERSION, db)
        self._lanes = {p: _lane(state, streams[p], places[p], catalogs, begin_call) for p, state in states.items()}
        for p, lane in self._lanes.items():
            if done is not None and p in done:
                lane.done = done[p]
            else:
                self._change_schema(lane, db)

    def _change_schema(self, lane: _Lane, db: Database) -> None:
        """As at a start with changed code: what the tables lack."""
        state, executor = lane.engine.state, lane.engine.executor
        statements = db.plan_schema(state.schema())
        if not statements:
            return
        state.rehearse_schema(statements)
        index, stands = state.position.index + 1, state.position
        executor.begin_group()
        executor.apply_schema(index=index, term=stands.term, checksum=0, txn_id=stands.txn_id, statements=statements)
        lane.done.shift += 1
        lane.grouped = 1
        self._end_group(lane)

    @property
    def finished(self) -> bool:
        """Every partition stands at its end, and nothing waits for a digest."""
        return all(lane.done.at >= lane.stream.to_index and not lane.pending for lane in self._lanes.values())

    @property
    def tally(self) -> RerunTally:
        """What the calls of all partitions did."""
        total = RerunTally()
        for _, lane in sorted(self._lanes.items()):
            total.add(lane.done.tally)
        return total

    def wants(self, lsn: Lsn, record: Record) -> bool:
        """Whether the record is a batch of which something will run."""
        lane = self._lanes.get(record.partition)
        return lane is not None and record.kind is RecordKind.BATCH and lane.wants(lsn, record.index)

    def run(self, records: Iterable[tuple[Lsn, Record]]) -> list[PartitionResult]:
        """Takes records until all is done. Raises: CallUnfit, CodeMissing, DiskFull, WriteFailed, EnvironmentFault."""
        try:
            for lsn, record in records:
                if self.finished:
                    break
                self.take(lsn, record)
        except EnvironmentFault as fault:
            folder = next((os.path.dirname(lane.engine.state.path) for lane in self._lanes.values()), "")
            raise end_of(fault, folder) from fault
        return [self._end(lane) for _, lane in sorted(self._lanes.items())]

    def take(self, lsn: Lsn, record: Record) -> None:
        """Takes the next record of the log."""
        if record.partition == CLUSTER_GROUP:
            self._cluster(record)
        elif (lane := self._lanes.get(record.partition)) is None:
            return
        elif record.is_entry:
            if lane.wants(lsn, record.index):
                self._entry(lane, lsn, record)
        elif record.kind is RecordKind.DIGEST:
            self._digest(lane, record)

    def _cluster(self, record: Record) -> None:
        if record.kind is RecordKind.CONFIGURATION:
            configuration = record.json()
        elif record.kind is RecordKind.CHECKPOINT and record.json()["configurations"]:
            configuration = record.json()["configurations"][-1][2]
        else:
            return
        policy = KeyPolicy(**configuration.get("key_policy", {}))
        for lane in self._lanes.values():
            lane.engine.executor.key_policy = policy

    def _entry(self, lane: _Lane, lsn: Lsn, record: Record) -> None:
        executor, done = lane.engine.executor, lane.done
        if not lane.grouped:
            executor.begin_group()
        lane.grouped += 1
        done.entries += 1
        stands = {"index": record.index + done.shift, "term": record.term, "checksum": record.checksum}
        if record.kind is RecordKind.BATCH:
            self._batch(lane, lsn, record)
        elif record.kind is RecordKind.SCHEMA:  # its time passes, its statements are those of other code
            executor.apply_schema(**stands, txn_id=record.json()["txn_id"], statements=())
        else:
            executor.advance(**stands)
        done.at = record.index
        if lane.grouped >= GROUP_CALLS_MAX or record.index == lane.stream.to_index:
            self._end_group(lane)
        if done.calls - lane.reported >= REPORT_EVERY_CALLS:
            lane.reported = done.calls
            self._progress(lane.place.partition, lane.reported)

    def _batch(self, lane: _Lane, lsn: Lsn, record: Record) -> None:
        batch = decode_batch(record)
        low = max(lane.place.calls, 0) if record.index == lane.place.index else 0
        cut = record.index == lane.stream.to_index and lane.stream.to_calls >= 0
        high = lane.stream.to_calls if cut else batch.count
        ran, calls = self._fitted(lane, batch, range(low, high))
        if not ran:
            last = {"term": record.term, "checksum": record.checksum, "txn_id": batch.txn_ids[high - 1]}
            lane.engine.executor.apply_schema(index=calls.index, **last, statements=())
            return
        self._begins(record, ran)
        applied = replay_calls(lane.engine.executor, calls)
        self._ended(batch, ran, applied)
        lane.done.tally.statuses.update(applied.statuses)
        lane.done.calls += len(ran)
        lane.grouped += len(ran)
        kept = replace(applied, bodies=[b"%b" % body for body in applied.bodies])  # orjson's keep 4 KiB each
        lane.pending[record.index] = _WaitingBatch(int(lsn.block), batch, ran, calls, kept)
        if (digest := lane.ahead.pop(record.index, None)) is not None:
            self._digest(lane, digest)
        if len(lane.pending) > PENDING_MAX:
            lane.pending.popitem(last=False)

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
                self._leave_out(lane, fit, batch, at, str(why))
                continue
            numbers.append(fit.number)
            ran.append(at)
        keys, skips = batch.key_list(), lane.stream.skips.get(record.index, ())
        if skips:
            lane.done.gone.append([record.index, list(skips)])
        return ran, Invocations(
            index=record.index + lane.done.shift,
            term=record.term,
            checksum=record.checksum,
            catalog=VERSION,
            txn_ids=[batch.txn_ids[at] for at in ran],
            procedures=numbers,
            params=params,
            keys=None if keys is None else [keys[at] for at in ran],
            skips=frozenset(n for n, at in enumerate(ran) if at in skips),
        )

    def _leave_out(self, lane: _Lane, fit: Fit, batch: Batch, at: int, why: str) -> None:
        txn_id, record = batch.txn_ids[at], batch.record
        if self._missing == "skip":
            lane.done.tally.note_left_out(fit.name, why, txn_id)
            return
        raise CallUnfit(
            f"transaction {txn_id} (partition {record.partition}, index {record.index}, call {at}) ran {fit.was}; "
            f"the code has {fit.now}: {why}"
        )

    def _digest(self, lane: _Lane, record: Record) -> None:
        ran, tally = lane.pending.get(record.index), lane.done.tally
        if ran is None and record.index > lane.done.at:
            lane.ahead[record.index] = record
            if len(lane.ahead) > PENDING_MAX:
                lane.ahead.popitem(last=False)
            return
        if ran is None or ran.batch.record.term != record.term:
            return
        del lane.pending[record.index]
        hashes = decode_digest(record).result_hashes
        live = [hashes[at] for at in ran.ran]
        tally.compared += len(live)
        if live == ran.applied.result_hashes:
            return
        others = [n for n, (a, b) in enumerate(zip(live, ran.applied.result_hashes, strict=True)) if a != b]
        tally.changed += len(others)
        n = others[0]
        if tally.first is None or ran.calls.txn_ids[n] < tally.first.txn_id:
            tally.first = self._difference(ran, n, live[n])

    def _difference(self, ran: _WaitingBatch, n: int, live_hash: int) -> Difference:
        record, at = ran.batch.record, ran.ran[n]
        return Difference(
            txn_id=ran.calls.txn_ids[n],
            partition=record.partition,
            index=record.index,
            position=at,
            procedure=self._fitting.procedures(ran.batch.catalog)[ran.batch.procedures[at]].name,
            params=ran.calls.params[n],
            live_hash=live_hash,
            status=Status(ran.applied.statuses[n]).name,
            outcome=orjson.loads(ran.applied.bodies[n]),
            block=ran.block,
        )

    def _end_group(self, lane: _Lane) -> None:
        if lane.grouped:
            lane.done.open = list(lane.pending)
            self._keep(lane.engine.state, lane.done)
        lane.engine.executor.end_group()
        lane.grouped = 0

    def _end(self, lane: _Lane) -> PartitionResult:
        self._end_group(lane)
        self._progress(lane.place.partition, lane.done.calls)
        position, done = lane.engine.state.position, lane.done
        return PartitionResult(
            lane.place.partition,
            entries=done.entries,
            calls=done.calls,
            index=position.index,
            term=position.term,
            checksum=position.checksum,
            txn_id=position.txn_id,
        )


def _lane(
    state: PartitionState, stream: ScannedStream, place: ForkPlace, catalogs: Catalogs, begin_call: Callable[[int], object] | None
) -> _Lane:
    engine = PartitionEngine(state, catalogs, digest_rows=False, policy=KeyPolicy(), progress=begin_call)
    same_cut = stream.to_index == place.index and stream.to_calls == place.calls
    if place.calls >= 0 and not same_cut:  # the rest of that batch becomes an entry of its own
        return _Lane(engine, stream, place, RerunProgress(place.index - 1, shift=1))
    return _Lane(engine, stream, place, RerunProgress(place.index))


def is_void(stream: ScannedStream, lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log put this entry out of force."""
    return any(index >= first and (lsn.block, lsn.offset) < (block, offset) for block, offset, first in stream.voids)
