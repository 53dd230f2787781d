"""Which logs a history is read from, and the parts of it that each of them gives.

One rule: the log that counts for a partition serves it, or one that holds the very same. What that log does not reach back to is
read in another one that knows it to be committed; what is nowhere is a hole, which is named.

Where the loss is accepted, a damaged log gives what lies around its damage: what lies between two damaged places is a history of
its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.group_state import GroupState, GroupStates
from cmdlog.wal.ids import PARTITIONS_MAX, txn_millis
from cmdlog.wal.skips import Skips, united_skips
from replay.errors import ReplayError
from replay.history.merge import MERGE_WINDOW_BYTES_MAX, Merge, streams_of
from replay.history.merge_stream import Invocation, MergeStream
from replay.log.archive_reach import describe_stray, nearest_stray
from replay.log.evidence import NodeEvidence
from replay.log.scan import scan
from replay.log.source import LogSource, in_front, open_source
from replay.log.spans import Span, pieces_of, salvage, skips_of_pieces, spans_of
from replay.log.split_calls import check_whole, find_parted, left_out, names_of
from replay.plan.authority import ClusterVerdict, GroupVerdict
from replay.plan.cluster_planner import group_names, unproved
from replay.plan.sole_voter import votes_alone
from snapshot.archive_layout import ArchivedSegment, list_segments, run_before

Wanted = dict[int, tuple[int, int]]  # partition -> index that it begins after, last index


class HistoryDamaged(ReplayError):
    """A log that counts cannot be read to its end."""

    exit_code = 10
    hint = (
        "list what can be read with --accept-data-loss, give the directories of other nodes as well, or restore the file from a "
        "backup; the directory is untouched"
    )


class HistoryCutOff(HistoryDamaged):
    """Wanted calls precede a log, where there are archived segments that do not join it."""

    def __init__(self, holes: Sequence[Hole]) -> None:
        hint = (
            f"list what comes after it with --from {max(hole.upto for hole in holes) + 1}, or with --accept-data-loss; give the "
            f"directories of other nodes as well, or restore the file from a backup; the directory is untouched"
        )
        super().__init__("; ".join(f"{hole.describe()}: calls up to there are or may be lost" for hole in holes), hint=hint)


@dataclass(frozen=True, slots=True)
class Hole:
    """Something is missing before a log."""

    stray: ArchivedSegment  # the nearest one before it
    first_block: int  # of the log
    partitions: Sequence[int]  # that had calls there
    upto: int  # the highest of their TxnIds

    def describe(self) -> str:
        """Describes it for an error message."""
        gap = (self.stray.last_block + 1, self.first_block - 1)
        missing = f", and blocks {gap[0]} to {gap[1]} are in no file" if gap[0] <= gap[1] else ""
        begins = f"the history of {group_names(self.partitions)} begins after transaction {self.upto} ({time_text(self.upto)})"
        return f"{describe_stray(self.stray)}{missing}; {begins}"


@dataclass(frozen=True, slots=True)
class EarlierEntries:
    """Entries (after, upto] of a partition, in another log than the one that has the rest."""

    directory: str
    after: int
    upto: int
    late: GroupState | None  # what precedes that one, if calls of it are wanted


class HistoryReading:
    """Which log serves each group, and what these logs contain."""

    def __init__(
        self, files: Files, evidence: Sequence[NodeEvidence], verdict: ClusterVerdict, *, first: int, anyway: bool
    ) -> None:
        """`anyway`: the loss is accepted."""
        self._files, self._verdict, self._first, self._anyway = files, verdict, first, anyway
        self._nodes = {node.directory: node for node in evidence}
        self._serving = {of.group: _serving(of, self._nodes) for of in verdict.groups.values()}
        self._fronts: dict[int, EarlierEntries] = {}  # by partition
        self._begun: list[int] = []  # partitions of which earlier calls are wanted, and nothing states that they should be there
        self._damaged = {directory for directory in self._serving.values() if self._nodes[directory].damage}
        self._skips: dict[int, Mapping[int, Collection[int]]] = {}  # by partition: of the logs that serve
        self.sources: dict[str, LogSource] = {}
        self.notes = unproved(verdict)

    def check_undamaged(self) -> None:
        """Raises: HistoryDamaged."""
        for directory in sorted(self._damaged):
            raise _damaged(self._nodes[directory], self._served(directory))

    def parts(self) -> list[Iterator[Invocation]]:
        """The histories to be merged. A log that proves to be damaged is read around its damage, if the loss is accepted."""
        while True:
            try:
                holes = self._holes()
                if holes and not self._anyway:
                    raise HistoryCutOff(holes)
                parts = [*self._whole_history(), *self._in_front()]
            except Corrupt as damage:
                used = [*self._serving.values(), *(front.directory for front in self._fronts.values())]
                bad = next((d for d in used if damage.path.startswith(f"{d}/") and d not in self._damaged), None)
                if bad is None or not self._anyway:
                    raise _corrupt(damage, self._served_by_path(damage.path)) from damage
                self._damaged.add(bad)
                self.sources.pop(bad, None)
            else:
                self.notes += [hole.describe() for hole in holes]
                if self._begun:
                    self.notes.append(f"earlier calls of {group_names(self._begun)} are in no log or archive at hand")
                for directory in sorted(self._damaged & set(self._serving.values())):
                    parts += self._around_damage(self._source(directory))
                return parts

    def _source(self, directory: str) -> LogSource:
        """Opened once."""
        if directory not in self.sources:
            opened = salvage(self._files, directory) if directory in self._damaged else None
            self.sources[directory] = opened or _open(self._files, directory, self._first)
        return self.sources[directory]

    def _served(self, directory: str) -> list[int]:
        """The partitions that are read from there."""
        return [group for group in sorted(self._serving) if group < PARTITIONS_MAX and self._serving[group] == directory]

    def _served_by_path(self, path: str) -> list[int]:
        used = [*self._serving.items(), *((p, front.directory) for p, front in self._fronts.items())]
        return sorted({p for p, directory in used if p < PARTITIONS_MAX and path.startswith(f"{directory}/")})

    # -- where the logs begin --------------------------------------------------------------------------------------------

    def _holes(self) -> list[Hole]:
        """What is wanted and missing before the logs. What another log at hand has of it is read there (`_fronts`)."""
        self._fronts, self._begun, found = {}, [], []
        for directory in list(dict.fromkeys(self._serving.values())):
            source = self._source(directory)
            late = {p: state for p, state in self._begins_late(source).items() if self._serving.get(p) == directory}
            for partition in list(late) if directory not in self._damaged else ():
                if (front := self._front(partition, directory, late[partition].last_index)) is not None:
                    self._fronts[partition] = front
                    if front.late is None:
                        del late[partition]
                    else:
                        late[partition] = front.late
            used = dict.fromkeys([directory, *(self._fronts[p].directory for p in late if p in self._fronts)])
            strays = [(self._source(d), nearest_stray(self._files, self._source(d))) for d in used] if late else []
            hole = next(((source, stray) for source, stray in strays if stray is not None), None)
            if hole is None:
                self._begun += late if directory not in self._damaged else ()  # those say more
            else:
                upto = max(state.last_txn for state in late.values())
                found.append(Hole(hole[1], int(hole[0].segments[0].header.first_block), sorted(late), upto))
        self._begun.sort()
        return found

    def _begins_late(self, source: LogSource) -> dict[int, GroupState]:
        """Partitions of which the log lacks something that is wanted, with what precedes it."""
        begun = {p: state for p, state in _head(source).items() if p < PARTITIONS_MAX and state.last_index}
        return {p: state for p, state in begun.items() if self._first <= state.last_txn}

    def _front(self, partition: int, serving: str, base: int) -> EarlierEntries | None:
        """Entries up to `base` in another log that knows them to be committed: then they are the same. The one that has most of
        them."""
        best: EarlierEntries | None = None
        for directory in self._verdict.groups[partition].copies:
            node = self._nodes[directory]
            group = node.groups.get(partition)
            if directory == serving or directory in self._damaged or node.damage or group is None or group.commit < base:
                continue
            with contextlib.suppress(WalError):
                source = self._source(directory)
                head = _head(source).get(partition)
                after = head.last_index if head is not None else 0
                if after < (best.after if best is not None else base):
                    best = EarlierEntries(directory, after, base, self._begins_late(source).get(partition))
        return best

    # -- what they tell --------------------------------------------------------------------------------------------------

    def _whole_history(self) -> list[Iterator[Invocation]]:
        """The history of logs that can be read completely, each with its part of the window."""
        streams: dict[str, list[MergeStream]] = {}
        for directory in dict.fromkeys(self._serving.values()):
            served = self._served(directory) if directory not in self._damaged else ()
            source = self._source(directory)
            heads = _head(source) if served else {}
            bases = {p: heads[p].last_index if p in heads else 0 for p in served}
            wanted: Wanted = {p: (base, self._verdict.groups[p].last_index) for p, base in bases.items()}
            if wanted:
                streams[directory] = streams_of(source, source.first_blocks[0], wanted)
        streams = self._unparted(streams)
        self._skips = {of.partition: of.skips for found in streams.values() for of in found}
        window_bytes = MERGE_WINDOW_BYTES_MAX // max(1, len(streams))
        return [self._merged(directory, found, window_bytes) for directory, found in streams.items()]

    def _merged(self, directory: str, streams: Sequence[MergeStream], window_bytes: int) -> Iterator[Invocation]:
        source = self._source(directory)
        return Merge(source, streams, from_block=source.first_blocks[0], window_bytes_max=window_bytes).invocations()

    def _unparted(self, streams: Mapping[str, list[MergeStream]]) -> dict[str, list[MergeStream]]:
        """Without multi-partition calls that a recovery drops. Raises: Incomplete when a partition has lost one."""
        if self._damaged:  # not all calls of all partitions are known
            return dict(streams)
        found = find_parted({of.partition: of.line for every in streams.values() for of in every})
        names: dict[int, str] = {}
        for source in map(self._source, streams):
            names = names_of(found, source, source.first_blocks[0]) | names
        if not self._anyway:
            check_whole(found, names)
        self.notes += [call.describe(names.get(call.txn_id, "")) for call in found]

        def without(of: MergeStream) -> MergeStream:
            gone = dict.fromkeys(left_out(found, of.partition), (0,))
            return replace(of, skips=united_skips(of.skips, gone)) if gone else of

        return {directory: list(map(without, every)) for directory, every in streams.items()}

    def _in_front(self) -> list[Iterator[Invocation]]:
        """What precedes those logs in others. A call of it may be skipped by either."""
        parts = []
        for directory in sorted({front.directory for front in self._fronts.values()}):
            source = self._source(directory)
            fronts = {p: front for p, front in sorted(self._fronts.items()) if front.directory == directory}
            found = scan(source, {p: front.after for p, front in fronts.items()}, {}, from_block=source.first_blocks[0]).streams
            streams = []
            for p, front in fronts.items():
                skips = united_skips(found[p].skipped.by_batch(upto=front.upto), self._skips[p])
                streams.append(MergeStream.of(found[p], p, front.upto, skips=skips))
            parts.append(self._merged(directory, streams, MERGE_WINDOW_BYTES_MAX))
        return parts

    def _around_damage(self, source: LogSource) -> list[Iterator[Invocation]]:
        """Each stretch of a log that can be read, as a history of its own."""
        partitions = self._served(source.directory)
        spans, _ = spans_of(source, partitions)
        alone = votes_alone(self._nodes[source.directory])
        stretches: list[tuple[int, Wanted]] = []
        skips: dict[int, Skips] = {}
        for partition in partitions:
            last = self._verdict.groups[partition].last_index
            pieces = pieces_of(spans[partition], last, alone=alone)
            skips[partition] = skips_of_pieces(pieces)
            # The n-th pieces of all partitions together are the n-th stretch.
            for number, (span, upto) in enumerate(pieces):
                if number == len(stretches):
                    stretches.append((span.from_block, {}))
                first_block, wanted = stretches[number]
                wanted[partition] = (span.base, upto)
                stretches[number] = min(first_block, span.from_block), wanted
            self.notes += _gaps_told(partition, pieces, last)
        damages = source.patchwork.damages if source.patchwork is not None else ()
        self.notes += ["; ".join(str(damage.args[0]) for damage in damages)] if damages else []
        parts = []
        for first_block, wanted in stretches:
            begin = max(block for block in source.first_blocks if block <= first_block)
            streams = [replace(of, skips=skips[of.partition]) for of in streams_of(source, begin, wanted)]
            parts.append(Merge(source, streams, from_block=begin).invocations())
        return parts


def _serving(of: GroupVerdict, nodes: Mapping[str, NodeEvidence]) -> str:
    """Which log is read: the chosen one, or an undamaged one that ends with the same entry."""
    for directory in (of.chosen, *of.copies):
        group = nodes[directory].groups.get(of.group)
        ends = (group.last_index, group.last_checksum) if group is not None and not nodes[directory].damage else None
        if ends == (of.last_index, of.last_checksum):
            return directory
    return of.chosen


def _gaps_told(partition: int, pieces: Sequence[tuple[Span, int]], last: int) -> list[str]:
    """Describes the missing entries between and after the pieces. Which earlier calls they skipped is unknown."""
    notes, told = [], 0
    for begin, upto in [*((span.base, upto) for span, upto in pieces), (last, last)]:
        if begin > told:
            unknown = f"; calls up to entry {told} that were skipped by the unreadable entries are listed anyway" if told else ""
            notes.append(f"partition {partition}: entries {told + 1} to {begin} cannot be read{unknown}")
        told = max(told, upto)
    return notes


def _damaged(node: NodeEvidence, partitions: Sequence[int]) -> HistoryDamaged:
    fault = node.damage[0]
    place = f"{fault.path} at offset {fault.offset}" if fault.offset is not None else fault.path or node.directory
    block = f", block {fault.block}" if fault.block is not None else ""
    more = f", and {len(node.damage) - 1} more" if len(node.damage) > 1 else ""
    return HistoryDamaged(f"{place}{block}: {fault.what}{more}; later calls of {group_names(partitions)} are or may be lost")


def _corrupt(damage: Corrupt, partitions: Sequence[int]) -> HistoryDamaged:
    return HistoryDamaged(f"{damage.args[0]}; later calls of {group_names(partitions)} are or may be lost")


def _open(files: Files, directory: str, first: int) -> LogSource:
    """The log with the archived segments before it that hold anything from `first` on."""
    source = open_source(files, directory)
    run = run_before(list_segments(files, directory, source.instance.identity), source.segments[0].header)
    while run and _all_before(run[0], first):
        del run[0]
    return in_front(files, source, run) if run else source


def _head(source: LogSource) -> Mapping[int, GroupState]:
    """What precedes the log, as it states before its first entry: a node that began with a state has an empty head."""
    records = source.read(from_block=source.first_blocks[0]) if source.first_blocks else ()
    front = takewhile(lambda found: not found[1].is_entry, records)
    return GroupStates.fold(found for found in front if found[1].kind is RecordKind.CHECKPOINT).by_partition


def _all_before(archived: ArchivedSegment, first: int) -> bool:
    """Whether every call of the segment is known to be before the moment."""
    ranges = archived.manifest.partitions if archived.manifest is not None else None
    return ranges is not None and all(of.last < first for of in ranges.values())


def time_text(txn_id: int) -> str:
    """The clock of a transaction."""
    return datetime.fromtimestamp(txn_millis(txn_id) / 1000, UTC).isoformat(timespec="milliseconds")
