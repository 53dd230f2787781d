"""What a read does, fixed before it begins: which blocks of which files, and which of their entries count.

One rule: a task carries all that it needs, and nothing is decided when it runs. So the same tasks return the same rows while the
node continues to write; a segment that was recycled under them is an error.

A log interleaves the partitions, so a task is a stretch of one log with all partitions in it, not one partition.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.skips import Skips, united_skips
from replay.log.split_calls import PartitionSpan, find_parted, left_out
from replay.spark.base.options import TXN_MAX, BadOption, ReadOptions
from replay.spark.base.parallelism import parallelism
from replay.spark.reading.chosen_logs import Floor, Gap, LogRange, Logs, NodeLog, open_logs, wanted_partitions
from replay.spark.reading.read_task import DataLoss, Stretch, Task, Want
from replay.spark.reading.segment_index import SegmentLook, skips_of_stretches

TASK_BYTES: Final = 64 << 20  # about a second of work, so that the start of a task (30 ms) is lost in it
TASK_BYTES_MIN: Final = 1 << 20  # however many tasks are asked for
INDEX_MAX: Final = (1 << 63) - 1
NEAR_MAX: Final = 2  # names that a misspelt one may have meant
NAMES_MAX: Final = 30  # that a refusal lists


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A read."""

    tasks: tuple[Task, ...]
    gaps: tuple[Gap, ...]
    damages: tuple[Corrupt, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Everything that counts, by log."""

    logs: Logs
    wants: tuple[tuple[NodeLog, Mapping[int, Want]], ...]
    gaps: tuple[Gap, ...]


def plan_read(options: ReadOptions, *, known: Mapping[int, int] | None = None, chosen: Chosen | None = None) -> ReadPlan:
    """Reads the logs' indexes and decides.

    `known`: entries that the reader has had, partition -> index; then only later ones can be lost. `chosen`: what `choose`
    returned for these options, if the caller has called it already.

    Raises: DataLoss, Corrupt; what `open_logs` raises; BadOption.
    """
    chosen = chosen if chosen is not None else choose(options, known=known)
    if known is None:  # a stream has asked when it started
        check_named(options, chosen)
    target = _target(chosen, options.min_partitions or parallelism())
    tasks: list[Task] = []
    for log, wants in chosen.wants:
        names = {version: of for look in log.looks for version, of in look.names.items()}
        for other in chosen.logs.logs:  # one that begins later may know code that this one does not
            names = {version: of for look in other.looks for version, of in look.names.items()} | names
        task = Task(
            log.path, log.evidence.node_id, (), wants, names, options.procedures, options.params_format, options.fail_on_data_loss
        )
        tasks += [replace(task, stretches=part) for part in _parts(list(_stretches(log.looks, wants)), target)]
    return ReadPlan(tuple(tasks), chosen.gaps, tuple(damage for log in chosen.logs.logs for damage in log.damages))


def warn_of_gaps(gaps: Iterable[Gap]) -> None:
    """On the driver's stderr: rows do not show that a lost entry might have skipped one of them."""
    import logging  # noqa: PLC0415 - no task needs it

    for gap in gaps:
        what = f"partition {gap.partition}: entries {gap.first} to {gap.last} are in no log at hand"
        unknown = f"calls up to entry {gap.first - 1} that were skipped by the unreadable entries are returned anyway"
        logging.getLogger("replay.spark").warning("%s; %s", what, unknown)


def check_named(options: ReadOptions, chosen: Chosen) -> None:
    """What the options name exists in the logs: an unknown name would silently give no rows. Raises: BadOption."""
    for name, bound in (("startingTxn", options.starting), ("endingTxn", options.ending)):
        if unknown := sorted(set(bound.by_partition or ()) - set(chosen.logs.partitions)):
            raise BadOption(f"{name}: there is no partition {unknown[0]}; the log has {listed(chosen.logs.partitions)}")
    there = _procedures(look for log in chosen.logs.logs for look in log.looks)
    if not (options.procedures or frozenset()) <= there:
        there |= _procedures(look for log in chosen.logs.logs for look in log.heads())
    missing = sorted((options.procedures or frozenset()) - there)
    if not there or not missing:  # where no code was ever deployed, nothing is known
        return
    near = difflib.get_close_matches(missing[0], there, n=NEAR_MAX)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise BadOption(f"procedures: no code in the log has {missing[0]}; {hint}There are {listed(sorted(there))}")


def _procedures(looks: Iterable[SegmentLook]) -> set[str]:
    return {name for look in looks for of in look.names.values() for name, _ in of}


def listed(names: Sequence[Any]) -> str:
    """All of them, or the first ones and how many more."""
    more = len(names) - NAMES_MAX
    return ", ".join(map(str, names[:NAMES_MAX])) + (f" and {more} more" if more > 0 else "")


def choose(options: ReadOptions, *, known: Mapping[int, int] | None = None, held: Mapping[int, int] | None = None) -> Chosen:
    """Which entries of which log count. `held`: partition -> a TxnId that is also examined, though it is not wanted.

    Raises: as `plan_read`.
    """
    logs = open_logs(options.paths, fail=options.fail_on_data_loss)
    partitions = wanted_partitions(logs, options.partitions)
    if options.fail_on_data_loss:
        _check_counted(logs, partitions)
    floor: Floor = {partition: (held or {}).get(partition, options.starting.of(partition)) for partition in partitions}
    # Every copy of every log, or of each entry the one that counts.
    if not options.dedupe:
        return _raw(logs, options, floor)
    found: dict[str, dict[int, list[LogRange]]] = {}
    gaps: list[Gap] = []
    for partition in partitions:
        pieces, missing = logs.pieces(partition, floor, fail=options.fail_on_data_loss)
        gaps += missing
        if options.fail_on_data_loss:
            low, had = options.starting.of(partition), (known or {}).get(partition)
            if lost := _lost(logs, pieces, missing, low, had):
                raise DataLoss(f"partition {partition}: {lost}")
        for piece in pieces:
            found.setdefault(piece.log.directory, {}).setdefault(partition, []).append(piece)
    gone = {partition: _gone(logs, found, partition) for partition in partitions}
    if known is None:
        gone = unparted(logs, floor, gone, fail=options.fail_on_data_loss)
    wants = []
    for directory, by_partition in found.items():
        log = logs.by_directory(directory)
        wants.append(
            (
                log,
                {
                    partition: _want(options, log, partition, pieces, gone[partition])
                    for partition, pieces in by_partition.items()
                },
            )
        )
    return Chosen(logs, tuple(wants), tuple(gaps))


def _check_counted(logs: Logs, partitions: Iterable[int]) -> None:
    """A directory that was emptied or restored from an old copy proves nothing about what was committed. Raises: DataLoss."""
    for partition in partitions:
        of = logs.verdict.groups[partition]
        if of.doubt:
            raise DataLoss(f"partition {partition}: no log at hand counts: {of.chosen}: {of.doubt}")


def _raw(logs: Logs, options: ReadOptions, floor: Floor) -> Chosen:
    """Every batch of every log, committed or not, void or not."""
    wants = []
    for log in logs.logs:
        log.read(floor, fail=options.fail_on_data_loss)
        everything = {
            partition: Want(((-1, INDEX_MAX),), low or 0, _or(options.ending.of(partition), TXN_MAX))
            for partition, low in floor.items()
        }
        wants.append((log, everything))
    return Chosen(logs, tuple(wants), ())


def _lost(logs: Logs, pieces: Sequence[LogRange], gaps: Sequence[Gap], low: int | None, known: int | None) -> str:
    """What is wanted and missing; else ""."""
    strays = logs.describe_strays()
    if gaps:
        gap = gaps[0]
        return f"entries {gap.first} to {gap.last} are in no log at hand{strays and f': {strays}'}"
    if not pieces or (low is None and not strays):  # what was truncated was not asked for
        return ""
    first = pieces[-1]
    lost = first.after > known if known is not None else low is None or low <= first.base_txn
    if not (first.after and lost):
        return ""
    wanted = "all transactions" if low is None else f"transactions from {low} on"
    return (
        f"{wanted} were requested, and the logs at hand begin after entry {first.after}, transaction {first.base_txn}: "
        f"{strays or 'what came before was truncated'}"
    )


def _want(options: ReadOptions, log: NodeLog, partition: int, pieces: Sequence[LogRange], gone: Skips) -> Want:
    ranges = tuple(sorted((piece.after, piece.upto) for piece in pieces))
    voids = tuple(place for of in log.entries(partition) for place in of.voids)
    return Want(ranges, _or(options.starting.of(partition), 0), _or(options.ending.of(partition), TXN_MAX), voids, gone)


def _gone(logs: Logs, found: Mapping[str, Mapping[int, Sequence[LogRange]]], partition: int) -> Skips:
    """Calls that are skipped by what is read of any log: the SKIP may lie in another one than its batch."""
    gone: Skips = {}
    for directory, by_partition in found.items():
        if pieces := by_partition.get(partition):
            skips = skips_of_stretches(logs.by_directory(directory).entries(partition))
            gone = united_skips(gone, skips.by_batch(upto=max(piece.upto for piece in pieces)))
    return gone


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _stretches(looks: Sequence[SegmentLook], wants: Mapping[int, Want]) -> Iterator[Stretch]:
    """Per segment the blocks from the first to the last that hold anything wanted, cut where reading can begin."""
    for look in looks:
        blocks = [of for partition, want in wants.items() if (of := _blocks(look, partition, want)) is not None]
        if not blocks:
            continue
        low, high = min(first for first, _ in blocks), max(last for _, last in blocks)
        spots = [spot for spot in look.spots if spot.number <= high]
        begin = max(n for n, spot in enumerate(spots) if spot.number <= low)
        for number, spot in enumerate(spots[begin:], begin):
            after = spots[number + 1] if number + 1 < len(spots) else None
            size = (after.offset if after is not None else look.bytes + spots[0].offset) - spot.offset
            yield Stretch(look.segment, spot, min(high, after.number - 1) if after is not None else high, max(size, 1))


def _blocks(look: SegmentLook, partition: int, want: Want) -> tuple[int, int] | None:
    """First and last block with a batch that may be wanted."""
    of = look.by_partition.get(partition)
    if of is None or not of.indexes:
        return None
    indexes = np.array(of.indexes)
    good = np.zeros(len(indexes), dtype=np.bool_)
    for after, upto in want.ranges:
        good |= (indexes > after) & (indexes <= upto)
    good &= (np.array(of.lasts) >= want.low) & (np.array(of.firsts) <= want.high)
    at = np.flatnonzero(good)
    return (of.blocks[int(at[0])], of.blocks[int(at[-1])]) if len(at) else None


def _target(chosen: Chosen, least: int) -> int:
    total = sum(stretch.bytes for log, wants in chosen.wants for stretch in _stretches(log.looks, wants))
    return max(TASK_BYTES_MIN, min(TASK_BYTES, total // least))


def _parts(stretches: Sequence[Stretch], target: int) -> Iterator[tuple[Stretch, ...]]:
    """Consecutive stretches of about that size; those that follow each other in a segment are read in one go."""
    part: list[Stretch] = []
    size = 0
    for stretch in stretches:
        if part and size + stretch.bytes > target:
            yield tuple(part)
            part, size = [], 0
        if part and part[-1].segment is stretch.segment and part[-1].start.offset + part[-1].bytes == stretch.start.offset:
            part[-1] = replace(part[-1], upto=stretch.upto, bytes=part[-1].bytes + stretch.bytes)
        else:
            part.append(stretch)
        size += stretch.bytes
    if part:
        yield tuple(part)


def unparted(logs: Logs, floor: Floor, gone: Mapping[int, Skips], *, fail: bool) -> dict[int, Skips]:
    """What is omitted from each partition: `gone`, and calls on several partitions that a recovery of the same logs drops.

    Only where the logs prove every group: then a call that the chosen log of one partition lacks was acknowledged nowhere
    (`replay.log.split_calls`). A log that may just lag proves nothing. A stream does not check: it reads on, and has delivered
    such a call before the logs could show it, as with a SKIP that comes later.

    Raises: as `NodeLog.read`.
    """
    verdicts = logs.verdict.groups
    if len(logs.partitions) < 2 or not all(of.proved for of in verdicts.values()):
        return dict(gone)
    lines: dict[int, PartitionSpan] = {}
    for partition in logs.partitions:
        log = logs.by_directory(verdicts[partition].chosen)
        log.read(floor, fail=fail)
        if log.damages:
            return dict(gone)
        lines[partition] = _span_of(log, partition, verdicts[partition].last_index)
    found = find_parted(lines)
    return {p: {**of, **dict.fromkeys(left_out(found, p), (0,))} for p, of in gone.items()}


def _span_of(log: NodeLog, partition: int, upto: int) -> PartitionSpan:
    entries = log.entries(partition)
    line = PartitionSpan(next((of.base_txn for of in entries if of.based), 0))
    for number, of in enumerate(entries):
        later = [first for other in entries[number + 1 :] for _, _, first in other.voids]
        live = min([upto + 1, *later])  # entries from there on are void, or not on the line
        line.calls |= {txn: call for txn, call in of.multi.items() if call.index < live}
        line.ran |= {txn for txn in of.ran if of.multi[txn].index < live}
        line.passed = max(line.passed, min(of.executed, live - 1))
        line.terms.extend(of.term_table.upto(live - 1))
    line.skipped = skips_of_stretches(entries).by_batch(upto=upto).keys() & {call.index for call in line.calls.values()}
    return line
