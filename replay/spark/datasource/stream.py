"""`spark.readStream.format("cmdlog")`: the log as a stream, each call once with a checkpoint.

One rule: an offset holds, per partition, the last transaction that was delivered, and nothing else is remembered. Both ends of a
micro-batch are fixed by offsets before it is read, so Spark can read it again after a crash and get the same rows.

An offset is {partition: "transaction:entry:batch:term:checksum", "cluster": id}. The entry shows whether the log was truncated
past the reader, which TxnIds alone cannot: they advance while a partition is idle. Batch, term and checksum are index, term and
checksum of the last batch of which something was delivered: they bind the offset to one history
(`replay.spark.datasource.stream_history`).

A call that is skipped later (SKIP) was delivered if it was read before the SKIP was in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from replay.spark.base.options import Bound, ReadOptions
from replay.spark.base.user_errors import spoken, spoken_rows
from replay.spark.base.version_check import READS, check_versions, versions_for_reading
from replay.spark.datasource.stream_history import Offset, Reached, check_history, cluster_of, counting
from replay.spark.reading.arrow_rows import read_task
from replay.spark.reading.chosen_logs import NodeLog
from replay.spark.reading.read_plan import Chosen, check_named, choose, plan_read
from replay.spark.reading.read_task import Task, Want
from replay.spark.reading.segment_index import IndexedEntries, SegmentLook, txn_ids

if TYPE_CHECKING:
    import pyarrow as pa


class CallStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The calls, as they are committed."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options, self._columns, self._by = options, tuple(columns), versions_for_reading()
        self._is_checked = False

    @spoken
    def prepareForTriggerAvailableNow(self) -> None:
        """This run delivers only what exists now, although the node continues to write."""
        there = {p: of[-1].end.txn for p, of in _batches(self._chosen(Offset())).items() if of}
        self._options = replace(self._options, ending=Bound(0, there))

    @spoken
    def initialOffset(self) -> dict[str, str]:
        if not self._options.from_latest:
            return {}
        return self._ends(Offset()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_txns_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @spoken
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        before = Offset.of(start)
        if not isinstance(limit, ReadMaxRows):
            return self._ends(before).to_json()
        chosen = self._chosen(before)
        batches = _batches(chosen, before.reached)
        return Offset(_first_of(batches, before.reached, limit.max_rows), cluster_of(chosen)).to_json()

    @spoken
    def reportLatestOffset(self) -> dict[str, str]:
        return self._ends(Offset()).to_json()

    @spoken
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        before, upto = Offset.of(start), Offset.of(end)
        options = self._resumed_after(before)
        ending = Bound(0, {p: of.txn for p, of in upto.reached.items()})  # a partition that is not named gave nothing yet
        options = replace(options, ending=ending)
        chosen = choose(options, known=before.entries, held=before.txns)
        for offset in (before, upto):
            check_history(chosen, offset, self._options)
        return [InputPartition(task) for task in plan_read(options, known=before.entries, chosen=chosen).tasks]

    @spoken_rows
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        check_versions(self._by, READS)
        task = partition.value if partition is not None else None
        if isinstance(task, Task):
            yield from read_task(task, self._columns)

    def _ends(self, before: Offset) -> Offset:
        """The offset at which everything that exists has been delivered."""
        chosen = self._chosen(before)
        ends = {partition: of[-1].end for partition, of in _batches(chosen, before.reached).items() if of}
        return Offset({**before.reached, **ends}, cluster_of(chosen))

    def _chosen(self, before: Offset) -> Chosen:
        """What counts now. Raises: as `choose`; OtherHistory; BadOption.

        The first time, what the options name must be known: a misspelt procedure would give an empty stream for ever, and a new
        one must be deployed before its stream is started. Later this is not checked again, since the log may drop code that no
        longer has calls.
        """
        chosen = choose(self._resumed_after(before), known=before.entries, held=before.txns)
        check_history(chosen, before, self._options)
        if not self._is_checked:
            check_named(self._options, chosen)
            self._is_checked = True
        return chosen

    def _resumed_after(self, before: Offset) -> ReadOptions:
        """The same read, after what was delivered."""
        starting = self._options.starting
        named = {**(starting.by_partition or {}), **{partition: of.txn + 1 for partition, of in before.reached.items()}}
        return replace(self._options, starting=Bound(starting.default, named))


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A logged batch of which something is to be delivered."""

    log: NodeLog
    look: SegmentLook
    partition: int
    number: int  # of the partition's batches in the segment
    low: int  # TxnIds that are wanted, both inclusive
    high: int

    @property
    def _of(self) -> IndexedEntries:
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
        return self._reached(last, entry) if last <= self.high else self._reached(self.high, entry - 1)

    def _reached(self, txn: int, entry: int) -> Reached:
        of, number = self._of, self.number
        return Reached(txn, entry, of.indexes[number], of.terms[number], of.checksums[number])

    def txn_ids(self) -> Sequence[int]:
        """Of the calls that are wanted."""
        every = txn_ids(self.log.files, self.look, self.partition, self.number)
        return every if self._is_whole else [txn for txn in every if self.low <= txn <= self.high]

    def count(self) -> int:
        """Calls that are wanted."""
        return self._of.counts[self.number] if self._is_whole else len(self.txn_ids())

    def cut(self, calls: int) -> Reached:
        """Where the first of the wanted calls end; there are more."""
        return self._reached(self.txn_ids()[calls - 1], self._of.indexes[self.number] - 1)


def _batches(chosen: Chosen, reached: Mapping[int, Reached] | None = None) -> dict[int, list[LoggedBatch]]:
    """Partition -> what counts and was not yet delivered, ascending."""
    found: dict[int, list[LoggedBatch]] = {}
    for log, wants in chosen.wants:
        for partition, want in wants.items():
            low = max(want.low, (reached or {}).get(partition, Reached(0, 0)).txn + 1)
            of = found.setdefault(partition, [])
            for look in log.looks:
                of += _batches_in(log, look, partition, want, low)
    return {partition: sorted(of, key=lambda batch: batch.end) for partition, of in found.items()}


def _batches_in(log: NodeLog, look: SegmentLook, partition: int, want: Want, low: int) -> Iterator[LoggedBatch]:
    for number in counting(look, partition, want):
        of = look.by_partition[partition]
        if of.lasts[number] >= low and of.firsts[number] <= want.high:
            yield LoggedBatch(log, look, partition, number, low, want.high)


def _first_of(batches: Mapping[int, Sequence[LoggedBatch]], reached: Mapping[int, Reached], most: int) -> dict[int, Reached]:
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
