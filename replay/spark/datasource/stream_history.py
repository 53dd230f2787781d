"""The history that a stream's checkpoint belongs to, and whether the log at hand is that one.

One rule: an entry proves a history. Of the last batch that was delivered of each partition an offset keeps index, term and
checksum, and it is resumed only on a log that holds the same batches. The same log recovered to an earlier moment reaches those
indexes again with other batches, or does not reach them; another cluster has another id. A recovery to a later moment, another
node of the cluster and a log that was archived hold the same batches, whatever epoch their configuration has, and are resumed.

What is checked: a batch by reading it; one right before a log, whose blocks are gone, by what the head of the first segment
states of the last entry before it. What lies further back cannot be read, so it is data loss before it is a question of
history; with failOnDataLoss=false a warning reports that it was not checked.

An offset has at most 90 bytes for each partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from cmdlog.wal.ids import BlockNumber, Lsn
from replay.errors import ReplayError
from replay.log.log_fold import Lowest
from replay.spark.base.options import ReadOptions
from replay.spark.reading.chosen_logs import NodeLog
from replay.spark.reading.read_plan import Chosen
from replay.spark.reading.read_task import Want
from replay.spark.reading.segment_index import IndexedEntries, SegmentLook

CLUSTER: Final = "cluster"  # the key next to those of partitions


class OtherHistory(ReplayError):
    """The checkpoint belongs to calls that this log does not hold."""

    hint = (
        "load the directories that the stream was started with; to read this log, start the query with a new checkpointLocation "
        "(and with startingTxn if its sink already has the earlier calls)"
    )


class Reached(NamedTuple):
    """How far a partition was delivered."""

    txn: int
    entry: int  # the last one of which everything was given out
    batch: int = 0  # index of the last one of which something was, with its term and checksum
    term: int = 0
    checksum: int = 0

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> Reached:
        """Reads an offset of a checkpoint."""
        return cls(*map(int, text.split(":")))


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a stream was delivered."""

    reached: Mapping[int, Reached] = field(default_factory=dict)
    cluster: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Offset:
        """Reads an offset as Spark keeps it."""
        reached = {int(partition): Reached.of(str(text)) for partition, text in value.items() if partition != CLUSTER}
        return cls(reached, str(value.get(CLUSTER, "")))

    def to_json(self) -> dict[str, str]:
        """The inverse; nothing for a stream that has delivered nothing yet."""
        value = {str(partition): str(of) for partition, of in sorted(self.reached.items())}
        return value | ({CLUSTER: self.cluster} if value else {})

    @property
    def entries(self) -> dict[int, int]:
        return {partition: of.entry for partition, of in self.reached.items()}

    @property
    def txns(self) -> dict[int, int]:
        return {partition: of.txn for partition, of in self.reached.items()}


def cluster_of(chosen: Chosen) -> str:
    """The cluster to which all the directories belong."""
    return next((log.evidence.cluster_id for log in chosen.logs.logs if log.evidence.cluster_id), "")


def counting(look: SegmentLook, partition: int, want: Want) -> Iterator[int]:
    """Numbers of the partition's batches of the segment that count."""
    entries, lowest = look.by_partition.get(partition), Lowest(want.voids)
    for number, index in enumerate(entries.indexes if entries is not None else ()):
        assert entries is not None
        place = Lsn(BlockNumber(entries.blocks[number]), entries.offsets[number])
        if any(after < index <= upto for after, upto in want.ranges) and lowest.next_after(place) > index:
            yield number


def check_history(chosen: Chosen, offset: Offset, options: ReadOptions) -> None:
    """Raises: OtherHistory when the log does not hold what was delivered up to the offset."""
    where, cluster = ", ".join(options.paths), cluster_of(chosen)
    if offset.cluster and offset.cluster != cluster:
        raise OtherHistory(f"the stream's checkpoint is of cluster {offset.cluster}, and {where} is of cluster {cluster}")
    for partition, reached in sorted(offset.reached.items()):
        if options.partitions is not None and partition not in options.partitions:
            continue
        if problem := _differs(chosen, partition, reached, where):
            raise OtherHistory(
                f"the stream's checkpoint belongs to another history than {where}: for partition {partition} it has delivered "
                f"transaction {reached.txn} in entry {reached.batch} (term {reached.term}, checksum {reached.checksum:08x}), "
                f"and {problem}"
            )


def _differs(chosen: Chosen, partition: int, reached: Reached, where: str) -> str:
    """What the log holds instead of the batch; "" if it holds the same one, or nothing there can be read."""
    found = list(_stated_entries(chosen, partition, reached.batch))
    if (reached.term, reached.checksum) in found:
        return ""
    if found:
        return "the log holds " + " and ".join(f"term {term}, checksum {checksum:08x}" for term, checksum in found)
    spans = [span for _, wants in chosen.wants if (want := wants.get(partition)) for span in want.ranges]
    bases = [of.base for log in chosen.logs.logs if (of := _first(log, partition)) is not None]
    end = max([0, *bases, *(upto for _, upto in spans)])
    if reached.batch > end:
        return f"the log ends at entry {end}: it was recovered to an earlier moment, or is an older copy"
    is_lost = any(gap.partition == partition and gap.first <= reached.batch <= gap.last for gap in chosen.gaps)
    if is_lost or all(reached.batch <= base for base in bases):
        _warn(f"entry {reached.batch}, the last one that was delivered, is no longer in the log", partition, where)
        return ""
    return "the log holds no calls in that entry"


def _stated_entries(chosen: Chosen, partition: int, index: int) -> Iterator[tuple[int, int]]:
    """Term and checksum of the entry in every log where it counts: by the batch itself, or by the head after it.

    A log that the commit mark has not yet reached counts up to that entry: what was delivered was committed.
    """
    for log, wants in chosen.wants:
        if (want := wants.get(partition)) is None:
            continue
        last = max((upto for _, upto in want.ranges), default=0)
        ranges = (*want.ranges, (last, index)) if index > last else want.ranges
        for look in log.looks:
            of = look.by_partition.get(partition)
            for number in counting(look, partition, replace(want, ranges=ranges)):
                if of is not None and of.indexes[number] == index:
                    yield of.terms[number], of.checksums[number]
    for log in chosen.logs.logs:
        of = _first(log, partition)
        if of is not None and of.base == index and of.base_term:
            yield of.base_term, of.base_checksum


def _first(log: NodeLog, partition: int) -> IndexedEntries | None:
    """The first range that is read of the log."""
    return next((of for look in log.looks if (of := look.by_partition.get(partition)) is not None), None)


_warned: set[tuple[str, int]] = set()


def _warn(what: str, partition: int, where: str) -> None:
    """On the driver's stderr, once: Spark asks at every trigger."""
    if (where, partition) not in _warned:
        _warned.add((where, partition))
        logging.getLogger("replay.spark").warning(
            "partition %d: %s; whether %s holds what the stream has delivered is not checked", partition, what, where
        )
