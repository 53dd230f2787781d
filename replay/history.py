"""What was called: the invocations of one or several nodes' logs as one history, in the order of their transaction ids.

One rule: only what counts. The authoritative log of each partition is read, superseded entries and calls that were taken out are
not in it, and where completeness is not proved nothing is told unless the loss is accepted.

Archived segments that end where a live log begins are part of it. Where others stand in front of those, something is missing in
between: the history begins behind it only for who wants nothing from there, or accepts the loss. Where the loss is accepted, a
damaged log is told around its damage: what lies between two damaged places is a history of its own, and these are merged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.groups import Groups, GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX, txn_millis
from cmdlog.wal.record import Kind
from replay.authority import GroupVerdict, Verdict, decide
from replay.chunks import Invocation
from replay.cursors import ChosenLog
from replay.errors import Incomplete, ReplayError
from replay.evidence import NodeEvidence
from replay.gather import gather
from replay.joint import fold_end, group_names, unproved
from replay.merge import Merge, streams_of
from replay.source import LogSource, in_front, open_source
from replay.spans import Skips, Span, pieces_of, salvage, skips_of_pieces, spans_of
from replay.strays import nearest_stray, told_of
from snapshot.archived import ArchivedSegment, list_segments, run_before

Wanted = dict[int, tuple[int, int, int]]  # partition -> number of its log, index that it begins behind, last index


class HistoryDamaged(ReplayError):
    """A log that counts cannot be read to its end."""

    exit_code = 10
    hint = (
        "tell what can be read with --accept-data-loss, give the directories of other nodes as well, or restore the file from a "
        "copy; the directory is untouched"
    )


class HistoryCutOff(HistoryDamaged):
    """Calls that are wanted stand in front of a log, where archived segments are that do not join it."""

    def __init__(self, holes: Sequence[Hole]) -> None:
        super().__init__("; ".join(f"{hole.told()}: calls up to there are lost, or may be" for hole in holes))
        self.hint = (
            f"tell what is behind it with --from {max(hole.upto for hole in holes) + 1}, or with --accept-data-loss; give the "
            "directories of other nodes as well, or restore the file from a copy; the directory is untouched"
        )


@dataclass(frozen=True, slots=True)
class Hole:
    """In front of a log something is missing."""

    stray: ArchivedSegment  # the nearest that there is in front of it
    first_block: int  # of the log
    partitions: Sequence[int]  # that had calls there
    upto: int  # the highest of their TxnIds

    def told(self) -> str:
        """It, in words."""
        gap = (self.stray.last_block + 1, self.first_block - 1)
        missing = f", and blocks {gap[0]} to {gap[1]} are in no file" if gap[0] <= gap[1] else ""
        begins = f"the history of {group_names(self.partitions)} begins behind transaction {self.upto} ({_time(self.upto)})"
        return f"{told_of(self.stray)}{missing}; {begins}"


@dataclass(slots=True)
class History:
    """Calls, in order. `notes` is what they leave out, in words: known before the first call, but for what `empty` says."""

    calls: Iterator[dict[str, Any]]
    partitions: Sequence[int]
    procedures: Sequence[str]  # of all versions of the code; (): not known
    notes: list[str] = field(default_factory=list)
    passed: int = 0  # calls in front of the range that is wanted
    met: int = 0  # the newest TxnId that was met, wanted or not

    def empty(self) -> str:
        """Why no call is in the range, in words."""
        if not self.met:
            return "the logs at hand hold no call"
        if self.passed:
            return f"no call is in that range: the last one at hand is transaction {self.met} ({_time(self.met)})"
        return f"no call is in that range: the first one at hand is transaction {self.met} ({_time(self.met)})"


def history(
    files: Files, directories: Sequence[str], *, first: int = 0, until: int | None = None, accept_data_loss: bool = False
) -> History:
    """Every invocation with first <= TxnId <= until that logs and archives still hold, ascending; bounded memory.

    Raises: what `decide` refuses; Incomplete; HistoryDamaged; and what reading the logs raises, also while they are told.
    """
    evidence = [gather(files, directory) for directory in directories]
    verdict = decide(evidence, accept_data_loss=accept_data_loss)
    reading = _Reading(files, evidence, verdict, first=first, anyway=accept_data_loss)
    if not accept_data_loss:
        reading.check_undamaged()
        if open_questions := unproved(verdict):
            raise Incomplete("; ".join(open_questions))
    parts = reading.parts()
    names = _names(list(reading.sources.values()))
    partitions = [group for group in sorted(verdict.groups) if group < PARTITIONS_MAX]
    told = History(iter(()), partitions, sorted({name for of in names.values() for name, _ in of.values()}), reading.notes)
    told.calls = _tell(told, _together(parts), names, first, until)
    return told


class _Reading:
    """Which log serves each group, and what these logs tell."""

    def __init__(self, files: Files, evidence: Sequence[NodeEvidence], verdict: Verdict, *, first: int, anyway: bool) -> None:
        """`anyway`: the loss is accepted."""
        self._files, self._verdict, self._first, self._anyway = files, verdict, first, anyway
        self._nodes = {node.directory: node for node in evidence}
        self._copies = {group: _whole_copies(of, self._nodes) for group, of in verdict.groups.items()}
        self._serving = {group: next(iter(self._copies[group]), of.chosen) for group, of in verdict.groups.items()}
        self._damaged = {directory for directory in self._serving.values() if self._nodes[directory].damage}
        self.sources: dict[str, LogSource] = {}
        self.notes = unproved(verdict)

    def check_undamaged(self) -> None:
        """Raises: HistoryDamaged."""
        for directory in sorted(self._damaged):
            raise _damaged(self._nodes[directory], self._served(directory))

    def parts(self) -> list[Iterator[Invocation]]:
        """The histories to be merged. A log that proves to be damaged is told around its damage, if the loss is accepted."""
        while True:
            try:
                holes = self._holes()
                if holes and not self._anyway:
                    raise HistoryCutOff(holes)
                parts, begun = self._whole()
            except Corrupt as damage:
                serving = self._serving.values()
                bad = next((d for d in serving if damage.path.startswith(f"{d}/") and d not in self._damaged), None)
                if bad is None or not self._anyway:
                    raise _corrupt(damage, self._served_by_path(damage.path)) from damage
                self._damaged.add(bad)
                self.sources.pop(bad, None)
            else:
                self._note_begins(holes, begun)
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
        directories = dict.fromkeys(self._serving.values())
        return [p for directory in directories if path.startswith(f"{directory}/") for p in self._served(directory)]

    # -- where the logs begin --------------------------------------------------------------------------------------------

    def _holes(self) -> list[Hole]:
        """What is missing in front of the logs and wanted; a partition of which a copy reaches further back is read there."""
        found = []
        for directory in list(dict.fromkeys(self._serving.values())):
            source = self._source(directory)
            late = {p: txn for p, txn in self._begins_late(source).items() if self._serving.get(p) == directory}
            stray = nearest_stray(self._files, source) if late else None
            left = [p for p in sorted(late) if not self._is_elsewhere(p)] if stray is not None else []
            if stray is not None and left:
                found.append(Hole(stray, int(source.segments[0].header.first_block), left, max(late[p] for p in left)))
        return found

    def _begins_late(self, source: LogSource) -> dict[int, int]:
        """Partitions of which the log lacks something that is wanted -> the highest TxnId in front of it."""
        heads = _head(source)
        begun = {p: state.last_txn for p, state in heads.items() if p < PARTITIONS_MAX and state.last_index}
        return {p: last_txn for p, last_txn in begun.items() if self._first <= last_txn}

    def _is_elsewhere(self, partition: int) -> bool:
        """Whether another log has it whole; then it is read there."""
        for directory in self._copies[partition]:
            if directory == self._serving[partition] or directory in self._damaged:
                continue
            with contextlib.suppress(WalError):
                if partition not in self._begins_late(self._source(directory)):
                    self._serving[partition] = directory
                    return True
        return False

    def _note_begins(self, holes: Sequence[Hole], begun: Sequence[int]) -> None:
        self.notes += [hole.told() for hole in holes]
        told = {partition for hole in holes for partition in hole.partitions}
        if left := [partition for partition in begun if partition not in told]:
            self.notes.append(f"earlier calls of {group_names(left)} are in no log or archive at hand")

    # -- what they tell --------------------------------------------------------------------------------------------------

    def _whole(self) -> tuple[list[Iterator[Invocation]], list[int]]:
        """The history of logs that can be read to their ends; and the partitions that begin behind what is wanted."""
        sources = [self._source(d) for d in dict.fromkeys(self._serving.values()) if d not in self._damaged]
        numbers = {source.directory: number for number, source in enumerate(sources)}
        heads = {source.directory: _head(source) for source in sources}
        late = {source.directory: self._begins_late(source) for source in sources}
        wanted: Wanted = {}
        for partition, of in sorted(self._verdict.groups.items()):
            directory = self._serving[partition]
            if partition < PARTITIONS_MAX and directory in numbers:
                head = heads[directory].get(partition)
                wanted[partition] = (numbers[directory], head.last_index if head else 0, of.last_index)
        if not wanted:
            return [], []
        logs = [ChosenLog(source.directory, source, source.first_blocks[0]) for source in sources]
        merge = Merge(logs, streams_of(logs, wanted))
        return [merge.invocations()], [p for p in wanted if p in late[self._serving[p]]]

    def _around_damage(self, source: LogSource) -> list[Iterator[Invocation]]:
        """Each stretch of a log that can be read, as a history of its own."""
        partitions = self._served(source.directory)
        spans, _ = spans_of(source, partitions)
        alone = _votes_alone(self._nodes[source.directory])
        stretches: list[tuple[int, Wanted]] = []
        skips: dict[int, Skips] = {}
        for partition in partitions:
            last = self._verdict.groups[partition].last_index
            pieces = pieces_of(spans[partition], last, alone=alone)
            skips[partition] = skips_of_pieces(pieces)
            for number, (span, upto) in enumerate(pieces):
                if number == len(stretches):
                    stretches.append((span.from_block, {}))
                first_block, wanted = stretches[number]
                wanted[partition] = (0, span.base, upto)
                stretches[number] = min(first_block, span.from_block), wanted
            self.notes += _gaps_told(partition, pieces, last)
        damages = source.patchwork.damages if source.patchwork is not None else ()
        self.notes += ["; ".join(str(damage.args[0]) for damage in damages)] if damages else []
        parts = []
        for first_block, wanted in stretches:
            logs = [ChosenLog(source.directory, source, max(block for block in source.first_blocks if block <= first_block))]
            streams = [replace(of, skips=skips[of.partition]) for of in streams_of(logs, wanted)]
            parts.append(Merge(logs, streams).invocations())
        return parts


def _whole_copies(of: GroupVerdict, nodes: Mapping[str, NodeEvidence]) -> list[str]:
    """The directories whose log is whole and ends with the very last entry, the chosen one first."""
    found = []
    for directory in (of.chosen, *of.copies):
        group = nodes[directory].groups.get(of.group)
        ends = (group.last_index, group.last_checksum) if group is not None and not nodes[directory].damage else None
        if ends == (of.last_index, of.last_checksum) and directory not in found:
            found.append(directory)
    return found


def _votes_alone(node: NodeEvidence) -> bool:
    """Whether no other node votes, as far as its log tells: then what is durable there is committed, marked or not."""
    newest = [group.configurations[-1] for group in node.groups.values() if group.configurations]
    return not any((of.voters | of.outgoing) - {node.node_id} for of in newest)


def _gaps_told(partition: int, pieces: Sequence[tuple[Span, int]], last: int) -> list[str]:
    """The entries between and behind the pieces, in words. What these took out of calls in front of them is not known."""
    notes, told = [], 0
    for begin, upto in [*((span.base, upto) for span, upto in pieces), (last, last)]:
        if begin > told:
            unknown = f"; calls of entries up to {told} that they took out are told all the same" if told else ""
            notes.append(f"partition {partition}: entries {told + 1} to {begin} cannot be read{unknown}")
        told = max(told, upto)
    return notes


def _damaged(node: NodeEvidence, partitions: Sequence[int]) -> HistoryDamaged:
    fault = node.damage[0]
    place = f"{fault.path} at offset {fault.offset}" if fault.offset is not None else fault.path or node.directory
    block = f", block {fault.block}" if fault.block is not None else ""
    more = f", and {len(node.damage) - 1} more" if len(node.damage) > 1 else ""
    return HistoryDamaged(f"{place}{block}: {fault.what}{more}; calls of {group_names(partitions)} are lost behind it, or may be")


def _corrupt(damage: Corrupt, partitions: Sequence[int]) -> HistoryDamaged:
    return HistoryDamaged(f"{damage.args[0]}; calls of {group_names(partitions)} are lost behind it, or may be")


def _open(files: Files, directory: str, first: int) -> LogSource:
    """The log with the archived segments in front of it that hold anything from `first` on."""
    source = open_source(files, directory)
    run = run_before(list_segments(files, directory, source.instance.identity), source.segments[0].header)
    while run and _all_before(run[0], first):
        del run[0]
    return in_front(files, source, run) if run else source


def _head(source: LogSource) -> Mapping[int, GroupState]:
    """What stands in front of the log, as it says before its first entry: a node that began with a state has an empty head."""
    groups = Groups()
    for lsn, record in source.read(from_block=source.first_blocks[0]) if source.first_blocks else ():
        if record.is_entry:
            break
        if record.kind is Kind.CHECKPOINT:
            groups.observe(lsn, record)
    return groups.by_partition


def _all_before(archived: ArchivedSegment, first: int) -> bool:
    """Whether every call of the segment is known to stand before the moment."""
    ranges = archived.manifest.partitions if archived.manifest is not None else None
    return ranges is not None and all(of.last < first for of in ranges.values())


def _together(parts: Sequence[Iterator[Invocation]]) -> Iterator[Invocation]:
    """Several histories as one: as few as there are stretches of damaged logs."""
    heads = [(part, call) for part in parts for call in (next(part, None),) if call is not None]
    while len(heads) > 1:
        at = min(range(len(heads)), key=lambda n: (heads[n][1].txn_id, heads[n][1].partition))
        part, call = heads[at]
        yield call
        following = next(part, None)
        if following is None:
            del heads[at]
        else:
            heads[at] = part, following
    for part, call in heads:
        yield call
        yield from part


def _tell(
    told: History,
    calls: Iterator[Invocation],
    names: Mapping[int, Mapping[int, tuple[str, Sequence[str]]]],
    first: int,
    until: int | None,
) -> Iterator[dict[str, Any]]:
    for call in calls:
        told.met = call.txn_id
        if until is not None and call.txn_id > until:
            return
        if call.txn_id < first:
            told.passed += 1
            continue
        procedure, parameters = names.get(call.catalog, {}).get(call.procedure, (f"number {call.procedure}", ()))
        named = len(parameters) == len(call.params)
        yield {
            "txn_id": str(call.txn_id),
            "time": _time(call.txn_id),
            "partition": call.partition,
            "index": call.entry,
            "position": call.position,
            "procedure": procedure,
            "catalog": call.catalog,
            "params": dict(zip(parameters, call.params, strict=True)) if named else call.params,
        }


def _time(txn_id: int) -> str:
    return datetime.fromtimestamp(txn_millis(txn_id) / 1000, UTC).isoformat(timespec="milliseconds")


def _names(sources: Sequence[LogSource]) -> dict[int, Mapping[int, tuple[str, Sequence[str]]]]:
    """Catalog version -> number of a procedure -> its name, and those of its parameters."""
    found: dict[int, Mapping[int, tuple[str, Sequence[str]]]] = {}
    for source in sources:
        archived = source.first_blocks[1 : len(source.archived) + 1]  # the next head names what a segment has stated
        for groups in (fold_end(source), *map(source.checkpoint, archived)):
            for version, catalog in groups.state(CLUSTER_GROUP).catalogs.items():
                stated = catalog.value.get("procedures", ())
                found.setdefault(
                    version,
                    {
                        number: (str(one["name"]), [str(name) for name in one.get("parameters", ())])
                        for number, one in enumerate(stated)
                    },
                )
    return found
