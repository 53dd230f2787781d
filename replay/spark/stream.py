"""`spark.readStream.format("cmdlog")`: the log as a stream, each call once with a checkpoint.

One rule: an offset says, per partition, the last transaction that was given out, and nothing else is remembered. Both ends of a
micro-batch are fixed by offsets before it is read, so Spark can read it again after a crash and get the same rows.

An offset is {partition: "transaction:entry"}. The entry tells whether the log was truncated behind the reader, which TxnIds alone
cannot: they go on while a partition is idle.

A call that is taken out later (SKIP) was given out if it was read before that stood in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from replay.chunks import TICK
from replay.spark.options import Bound, Options
from replay.spark.planning import Chosen, choose, plan_read
from replay.spark.rows import read_task
from replay.spark.tasks import Task

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
        self._options, self._columns = options, tuple(columns)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run gives, while the node writes on."""
        there = {p: of[-1].last for p, of in _batches(self._chosen({})).items() if of}
        self._options = replace(self._options, ending=Bound(0, there))

    def initialOffset(self) -> dict[str, str]:
        if not self._options.from_latest:
            return {}
        return _to_json({partition: batches[-1].end for partition, batches in _batches(self._chosen({})).items() if batches})

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_txns_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        reached = _from_json(start)
        batches = _batches(self._chosen(reached), reached)
        if not isinstance(limit, ReadMaxRows):
            return _to_json({**reached, **{p: of[-1].end for p, of in batches.items() if of}})
        return _to_json(_first_of(batches, reached, limit.max_rows))

    def reportLatestOffset(self) -> dict[str, str]:
        return _to_json({p: of[-1].end for p, of in _batches(self._chosen({})).items() if of})

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        before, upto = _from_json(start), _from_json(end)
        options = self._behind(before)
        ending = Bound(0, {partition: of.txn for partition, of in upto.items()})  # a partition that is not named gave nothing yet
        plan = plan_read(replace(options, ending=ending), known=_known(before))
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        task = partition.value if partition is not None else None
        if isinstance(task, Task):
            yield from read_task(task, self._columns)

    def _chosen(self, reached: Mapping[int, Reached]) -> Chosen:
        return choose(self._behind(reached), known=_known(reached))

    def _behind(self, reached: Mapping[int, Reached]) -> Options:
        """The same read, from behind what was given out."""
        starting = self._options.starting
        named = {**(starting.by_partition or {}), **{partition: of.txn + 1 for partition, of in reached.items()}}
        return replace(self._options, starting=Bound(starting.default, named))


class Batch(NamedTuple):
    """A logged batch that is to be given out."""

    first: int
    last: int
    calls: int
    entry: int

    @property
    def end(self) -> Reached:
        return Reached(self.last, self.entry)


def _batches(chosen: Chosen, reached: Mapping[int, Reached] | None = None) -> dict[int, list[Batch]]:
    """Partition -> what counts, ascending; the part of a batch that was given out already is left out."""
    found: dict[int, list[Batch]] = {}
    for log, wants in chosen.wants:
        for partition, want in wants.items():
            of = found.setdefault(partition, [])
            after = (reached or {}).get(partition, Reached(0, 0)).txn
            for look in log.looks:
                entries = look.by_partition.get(partition)
                if entries is None:
                    continue
                for index, first, last, calls in zip(entries.indexes, entries.firsts, entries.lasts, entries.counts, strict=True):
                    if last <= after or last < want.low or first > want.high or not _counts(index, want.ranges):
                        continue
                    low = max(first, after + 1, want.low)
                    of.append(Batch(low, min(last, want.high), min(calls, (last - low) // TICK + 1), index))
    return {partition: sorted(of, key=lambda batch: batch.entry) for partition, of in found.items()}


def _counts(index: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(after < index <= upto for after, upto in ranges)


def _first_of(batches: Mapping[int, Sequence[Batch]], reached: Mapping[int, Reached], most: int) -> dict[int, Reached]:
    """The ends of the first calls by TxnId, over all partitions, that are no more than `most`, and at least one."""
    ends = dict(reached)
    left = most
    for batch, partition in sorted((batch, partition) for partition, of in batches.items() for batch in of):
        if batch.calls > left:  # ids of a batch are a tick apart or more, so this range holds no more than what is left
            if left:
                ends[partition] = Reached(
                    min(batch.last - 1, batch.first + (left - 1) * TICK), batch.entry - 1
                )  # the rest of it is to come
            break
        ends[partition] = batch.end
        left -= batch.calls
    return ends


def _known(reached: Mapping[int, Reached]) -> dict[int, int]:
    return {partition: of.entry for partition, of in reached.items()}


def _from_json(offset: Mapping[str, Any]) -> dict[int, Reached]:
    return {int(partition): Reached.of(str(text)) for partition, text in offset.items()}


def _to_json(reached: Mapping[int, Reached]) -> dict[str, str]:
    return {str(partition): str(of) for partition, of in sorted(reached.items())}
