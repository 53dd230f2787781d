"""`spark.readStream.format("cmdlog")`: the log as a stream, each call once with a checkpoint.

One rule: an offset says, per partition, the last transaction that was given out, and nothing else is remembered. Both ends of a
micro-batch are fixed by offsets before it is read, so Spark can read it again after a crash and get the same rows.

An offset is {partition: "transaction:entry"}. The entry tells whether the log was truncated behind the reader, which TxnIds alone
cannot: they go on while a partition is idle.

A call that is taken out later (SKIP) was given out if it was read before that stood in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from cmdlog.wal.ids import BlockNumber, Lsn
from replay.cursors import Lowest
from replay.spark.logs import NodeLog
from replay.spark.look import Entries, SegmentLook, txn_ids
from replay.spark.options import Bound, Options
from replay.spark.planning import Chosen, check_named, choose, plan_read
from replay.spark.rows import read_task
from replay.spark.spoken import spoken, spoken_rows
from replay.spark.tasks import Task, Want
from replay.spark.versions import READS, check_versions, versions_for_reading

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING: Final = "0:0"


class Reached(NamedTuple):
    """How far a partition was given out."""

    txn: int
    entry: int  # the last one of which everything was given out

    def __str__(self) -> str:
        return f"{self.txn}:{self.entry}"

    @classmethod
    def of(cls, text: str) -> Reached:
        """Reads an offset of a checkpoint."""
        txn, _, entry = text.partition(":")
        return cls(int(txn), int(entry))


class CallStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The calls, as they are committed."""

    def __init__(self, options: Options, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()
        self._is_checked = False

    @spoken
    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run gives, while the node writes on."""
        there = {p: of[-1].end.txn for p, of in _batches(self._chosen({})).items() if of}
        self._options = replace(self._options, ending=Bound(0, there))

    @spoken
    def initialOffset(self) -> dict[str, str]:
        if not self._options.from_latest:
            return {}
        return _to_json({partition: batches[-1].end for partition, batches in _batches(self._chosen({})).items() if batches})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_txns_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @spoken
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        reached = _from_json(start)
        batches = _batches(self._chosen(reached), reached)
        if not isinstance(limit, ReadMaxRows):
            return _to_json({**reached, **{p: of[-1].end for p, of in batches.items() if of}})
        return _to_json(_first_of(batches, reached, limit.max_rows))

    @spoken
    def reportLatestOffset(self) -> dict[str, str]:
        return _to_json({p: of[-1].end for p, of in _batches(self._chosen({})).items() if of})

    @spoken
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        before, upto = _from_json(start), _from_json(end)
        options = self._behind(before)
        ending = Bound(0, {partition: of.txn for partition, of in upto.items()})  # a partition that is not named gave nothing yet
        plan = plan_read(replace(options, ending=ending), known=_known(before))
        return [InputPartition(task) for task in plan.tasks]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        check_versions(self._by, READS)
        task = partition.value if partition is not None else None
        if isinstance(task, Task):
            yield from read_task(task, self._columns)

    def _chosen(self, reached: Mapping[int, Reached]) -> Chosen:
        """What counts now. Raises: as `choose`; BadOption.

        The first time, what the options name must be known: a misspelt procedure would give an empty stream for ever, and one
        that is still to come is deployed before its stream is started. Later it is not asked again, since the log may forget
        code that has no calls any more.
        """
        chosen = choose(self._behind(reached), known=_known(reached))
        if not self._is_checked:
            check_named(self._options, chosen)
            self._is_checked = True
        return chosen

    def _behind(self, reached: Mapping[int, Reached]) -> Options:
        """The same read, from behind what was given out."""
        starting = self._options.starting
        named = {**(starting.by_partition or {}), **{partition: of.txn + 1 for partition, of in reached.items()}}
        return replace(self._options, starting=Bound(starting.default, named))


@dataclass(frozen=True, slots=True)
class Batch:
    """A logged batch of which something is to be given out."""

    log: NodeLog
    look: SegmentLook
    partition: int
    number: int  # of the partition's batches in the segment
    low: int  # TxnIds that are wanted, both inclusive
    high: int

    @property
    def _of(self) -> Entries:
        return self.look.by_partition[self.partition]

    @property
    def _is_whole(self) -> bool:
        return self.low <= self._of.firsts[self.number] and self._of.lasts[self.number] <= self.high

    @property
    def first(self) -> int:
        return max(self.low, self._of.firsts[self.number])

    @property
    def end(self) -> Reached:
        last, entry = self._of.lasts[self.number], self._of.indexes[self.number]
        return Reached(last, entry) if last <= self.high else Reached(self.high, entry - 1)

    def txn_ids(self) -> Sequence[int]:
        """Of the calls that are wanted."""
        every = txn_ids(self.log.files, self.look, self.partition, self.number)
        return every if self._is_whole else [txn for txn in every if self.low <= txn <= self.high]

    def count(self) -> int:
        """Calls that are wanted."""
        return self._of.counts[self.number] if self._is_whole else len(self.txn_ids())

    def cut(self, calls: int) -> Reached:
        """Where the first of the wanted calls end; there are more."""
        return Reached(self.txn_ids()[calls - 1], self._of.indexes[self.number] - 1)


def _batches(chosen: Chosen, reached: Mapping[int, Reached] | None = None) -> dict[int, list[Batch]]:
    """Partition -> what counts and was not given out yet, ascending."""
    found: dict[int, list[Batch]] = {}
    for log, wants in chosen.wants:
        for partition, want in wants.items():
            low = max(want.low, (reached or {}).get(partition, Reached(0, 0)).txn + 1)
            of = found.setdefault(partition, [])
            for look in log.looks:
                of += _batches_in(log, look, partition, want, low)
    return {partition: sorted(of, key=lambda batch: batch.end) for partition, of in found.items()}


def _batches_in(log: NodeLog, look: SegmentLook, partition: int, want: Want, low: int) -> Iterator[Batch]:
    entries, lowest = look.by_partition.get(partition), Lowest(want.voids)
    if entries is None:
        return
    for number, (index, first, last) in enumerate(zip(entries.indexes, entries.firsts, entries.lasts, strict=True)):
        place = Lsn(BlockNumber(entries.blocks[number]), entries.offsets[number])
        if last >= low and first <= want.high and _counts(index, want.ranges) and lowest.behind(place) > index:
            yield Batch(log, look, partition, number, low, want.high)


def _counts(index: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(after < index <= upto for after, upto in ranges)


def _first_of(batches: Mapping[int, Sequence[Batch]], reached: Mapping[int, Reached], most: int) -> dict[int, Reached]:
    """The ends of the first calls by TxnId, over all partitions, that are no more than `most`."""
    ends = dict(reached)
    left = most
    for batch in sorted((batch for of in batches.values() for batch in of), key=lambda batch: (batch.first, batch.partition)):
        count = batch.count()
        if count > left:
            if left:
                ends[batch.partition] = batch.cut(left)
            break
        ends[batch.partition] = batch.end
        left -= count
    return ends


def _known(reached: Mapping[int, Reached]) -> dict[int, int]:
    return {partition: of.entry for partition, of in reached.items()}


def _from_json(offset: Mapping[str, Any]) -> dict[int, Reached]:
    return {int(partition): Reached.of(str(text)) for partition, text in offset.items()}


def _to_json(reached: Mapping[int, Reached]) -> dict[str, str]:
    return {str(partition): str(of) for partition, of in sorted(reached.items())}
