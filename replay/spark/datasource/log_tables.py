"""The tables about the log: its segments, snapshots, what is missing, what is damaged.

One rule: they are read on the driver and are small, and they never fail because of what they show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from cmdlog.operator_error import full_text
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.ids import txn_millis
from replay.errors import NoLogs, ReplayError
from replay.plan.authority import decide
from replay.spark.base.filesystems import check_node, open_place
from replay.spark.base.options import ReadOptions
from replay.spark.reading.chosen_logs import NodeLog, open_each, open_logs
from replay.spark.reading.read_plan import choose
from replay.spark.reading.segment_index import SegmentLook
from snapshot.catalog import list_archived, list_snapshots

SCHEMAS: Final[Mapping[str, str]] = {
    "segments": "node int, directory string, segment string, sequence long, archived boolean, first_block long, last_block long, "
    "bytes long, partition_id int, first_txn long, last_txn long, first_ts timestamp, last_ts timestamp, entries long, "
    "calls long, problem string",
    "snapshots": "node int, directory string, name string, archived boolean, partition_id int, entry long, term long, "
    "txn_id long, ts timestamp, problem string",
    "gaps": "partition_id int, first_entry long, last_entry long, missing long",
    "faults": "node int, directory string, path string, offset long, block long, what string",
}
Row = tuple[Any, ...]


def check_paths(options: ReadOptions) -> None:
    """Checks that each is the directory of a node, even a damaged one. Raises: BadOption."""
    for path in options.paths:
        check_node(path, *open_place(path))


def rows_of(options: ReadOptions) -> Iterator[Row]:
    """The rows of `options.table`. Raises: what `decide` refuses, BadOption."""
    yield from _READERS[options.table](replace(options, fail_on_data_loss=False))


def _segments(options: ReadOptions) -> Iterator[Row]:
    """One row per segment and partition that has calls in it; one with no partition for a segment without any.

    Of a damaged segment each stretch that can be read has rows of its own.
    """
    logs = open_logs(options.paths, fail=False)
    for log in logs.logs:
        log.read(dict.fromkeys(logs.partitions), fail=False)
        for look in log.looks:
            segment = look.segment
            name = os.path.basename(segment.path)
            head: Row = (log.evidence.node_id, log.path, name, segment.sequence, name.endswith(".seg"))
            head += (look.first_block, look.last_block, look.bytes)
            problem = full_text(look.damage) if look.damage is not None else ""
            parts = list(_parts(look, options))
            for part in parts or [(None, None, None, None, None, 0, 0)]:
                yield (*head, *part, problem)


def _parts(look: SegmentLook, options: ReadOptions) -> Iterator[Row]:
    for partition, of in sorted(look.by_partition.items()):
        if not of.indexes or (options.partitions is not None and partition not in options.partitions):
            continue
        first, last = min(of.firsts), max(of.lasts)
        yield partition, first, last, _moment(first), _moment(last), len(of.indexes), sum(of.counts)


def _snapshots(options: ReadOptions) -> Iterator[Row]:
    for log in open_logs(options.paths, fail=False).logs:
        if log.problem or log.identity is None:
            continue
        live = list_snapshots(log.files, log.directory, log.identity)
        names = {(snapshot.partition, snapshot.name) for snapshot in live}
        old = [s for s in list_archived(log.files, log.directory, log.identity) if (s.partition, s.name) not in names]
        for archived, snapshot in [*((True, s) for s in old), *((False, s) for s in live)]:
            if options.partitions is not None and snapshot.partition not in options.partitions:
                continue
            m = snapshot.manifest
            facts = (m.index, m.term, m.txn_id, _moment(m.txn_id)) if m is not None else (snapshot.index, None, None, None)
            yield log.evidence.node_id, log.path, snapshot.name, archived, snapshot.partition, *facts, snapshot.problem


def _gaps(options: ReadOptions) -> Iterator[Row]:
    """Entries that no log at hand holds, up to what is known to be committed. What precedes the oldest log is not a gap."""
    for gap in choose(replace(options, dedupe=True)).gaps:
        yield gap.partition, gap.first, gap.last, gap.last - gap.first + 1


def _faults(options: ReadOptions) -> Iterator[Row]:
    """Everything that is wrong with the directories, blocks included: they are all read. What is wrong between directories, as
    that they are of two clusters, is a row without one."""
    logs, told = open_each(options.paths, fail=False), False
    for log in logs:
        log.read({}, fail=False)
        for fault in dict.fromkeys(_each_fault(log)):
            told = True
            yield (log.evidence.node_id or None, log.path, *fault)
    try:
        decide([log.evidence for log in logs], accept_data_loss=True)
    except NoLogs as error:
        if not told:
            yield None, None, None, None, None, full_text(error)
    except ReplayError as error:
        yield None, None, None, None, None, full_text(error)


def _each_fault(log: NodeLog) -> Iterator[tuple[str | None, int | None, int | None, str]]:
    refused = log.evidence.refused
    if refused is not None:  # the whole directory; nothing else of it was looked at
        yield refused.path or None, refused.offset, refused.block, refused.what
        return
    if log.problem:
        yield None, None, None, log.problem
    if log.evidence.fault_problem:
        yield None, None, None, f"fault log: {log.evidence.fault_problem}"
    damages: list[Corrupt] = log.damages
    for damage in damages:
        yield damage.path, damage.offset, damage.block, damage.what
    met = {(damage.path, damage.offset) for damage in damages}
    for fault in log.evidence.damage:
        if (fault.path, fault.offset) not in met:
            yield fault.path or None, fault.offset, fault.block, fault.what
    for snapshot in log.evidence.snapshots:
        if snapshot.problem:
            yield snapshot.name, None, None, f"snapshot: {snapshot.problem}"


def _moment(txn_id: int) -> datetime:
    return datetime.fromtimestamp(txn_millis(txn_id) / 1000, UTC)


_READERS: Final[Mapping[str, Callable[[ReadOptions], Iterator[Row]]]] = {
    "segments": _segments,
    "snapshots": _snapshots,
    "gaps": _gaps,
    "faults": _faults,
}
