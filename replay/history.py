"""What was called: the invocations of one or several nodes' logs as one history, in the order of their transaction ids.

One rule: only what counts. The authoritative log of each partition is read, superseded entries and calls that were taken out are
not in it, and where completeness is not proved nothing is told unless the loss is accepted.

Archived segments that end where a live log begins are part of it. Where the loss is accepted, a damaged log is told around its
damage: what lies between two damaged places is a history of its own, and these are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX, txn_millis
from replay.authority import GroupVerdict, Verdict, decide
from replay.chunks import Invocation
from replay.cursors import ChosenLog
from replay.errors import Incomplete, ReplayError
from replay.evidence import NodeEvidence
from replay.gather import gather
from replay.joint import fold_end, group_names, unproved
from replay.merge import Merge, streams_of
from replay.source import LogSource, in_front, open_source
from replay.spans import salvage, spans_of
from snapshot.archived import ArchivedSegment, list_segments, run_before

Wanted = dict[int, tuple[int, int, int]]  # partition -> number of its log, index that it begins behind, last index


class HistoryDamaged(ReplayError):
    """A log that counts cannot be read to its end."""

    exit_code = 10
    hint = (
        "tell what can be read with --accept-data-loss, give the directories of other nodes as well, or restore the file from a "
        "copy; the directory is untouched"
    )


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
    nodes = {node.directory: node for node in evidence}
    serving = {of.group: _serving(of, nodes) for of in verdict.groups.values()}
    damaged = {directory for directory in serving.values() if nodes[directory].damage}
    if not accept_data_loss:
        for directory in sorted(damaged):
            raise _damaged(nodes[directory], verdict, serving)
        if open_questions := unproved(verdict):
            raise Incomplete("; ".join(open_questions))
    notes = unproved(verdict)
    sources, parts = _read(files, verdict, serving, damaged, first=first, notes=notes, anyway=accept_data_loss)
    names = _names(list(sources.values()))
    partitions = [group for group in sorted(verdict.groups) if group < PARTITIONS_MAX]
    told = History(iter(()), partitions, sorted({name for of in names.values() for name, _ in of.values()}), notes)
    told.calls = _tell(told, _together(parts), names, first, until)
    return told


def _read(
    files: Files,
    verdict: Verdict,
    serving: Mapping[int, str],
    damaged: set[str],
    *,
    first: int,
    notes: list[str],
    anyway: bool,
) -> tuple[dict[str, LogSource], list[Iterator[Invocation]]]:
    """The logs, and what they tell. One that proves to be damaged is told around its damage, `anyway`."""
    sources: dict[str, LogSource] = {}
    while True:
        try:
            for directory in dict.fromkeys(serving.values()):
                if directory not in sources:
                    sources[directory] = salvage(files, directory) if directory in damaged else _open(files, directory, first)
            sound = [source for directory, source in sources.items() if directory not in damaged]
            parts = _whole(sound, verdict, serving, notes, first)
        except Corrupt as damage:
            bad = next((d for d in serving.values() if damage.path.startswith(f"{d}/") and d not in damaged), None)
            if bad is None or not anyway:
                raise _corrupt(damage, verdict, serving) from damage
            damaged.add(bad)
            sources.pop(bad, None)
        else:
            for directory in sorted(damaged):
                parts += _around_damage(sources[directory], verdict, serving, notes)
            return sources, parts


def _serving(of: GroupVerdict, nodes: Mapping[str, NodeEvidence]) -> str:
    """Whose log is read: the chosen one, or one that is whole and ends with the very same entry."""
    for directory in (of.chosen, *of.copies):
        group = nodes[directory].groups.get(of.group)
        ends = (group.last_index, group.last_checksum) if group is not None and not nodes[directory].damage else None
        if ends == (of.last_index, of.last_checksum):
            return directory
    return of.chosen


def _damaged(node: NodeEvidence, verdict: Verdict, serving: Mapping[int, str]) -> HistoryDamaged:
    fault = node.damage[0]
    place = f"{fault.path} at offset {fault.offset}" if fault.offset is not None else fault.path or node.directory
    block = f", block {fault.block}" if fault.block is not None else ""
    more = f", and {len(node.damage) - 1} more" if len(node.damage) > 1 else ""
    groups = [group for group in verdict.groups if group < PARTITIONS_MAX and serving[group] == node.directory]
    return HistoryDamaged(f"{place}{block}: {fault.what}{more}; calls of {group_names(groups)} are lost behind it, or may be")


def _corrupt(damage: Corrupt, verdict: Verdict, serving: Mapping[int, str]) -> HistoryDamaged:
    groups = [group for group in verdict.groups if group < PARTITIONS_MAX and damage.path.startswith(f"{serving[group]}/")]
    return HistoryDamaged(f"{damage.args[0]}; calls of {group_names(groups)} are lost behind it, or may be")


def _open(files: Files, directory: str, first: int) -> LogSource:
    """The log with the archived segments in front of it that hold anything from `first` on."""
    source = open_source(files, directory)
    run = run_before(list_segments(files, directory, source.instance.identity), source.segments[0].header)
    while run and _all_before(run[0], first):
        del run[0]
    return in_front(files, source, run) if run else source


def _all_before(archived: ArchivedSegment, first: int) -> bool:
    """Whether every call of the segment is known to stand before the moment."""
    ranges = archived.manifest.partitions if archived.manifest is not None else None
    return ranges is not None and all(of.last < first for of in ranges.values())


def _whole(
    sources: Sequence[LogSource], verdict: Verdict, serving: Mapping[int, str], notes: list[str], first: int
) -> list[Iterator[Invocation]]:
    """The history of logs that can be read to their ends."""
    numbers = {source.directory: number for number, source in enumerate(sources)}
    heads = {source.directory: source.checkpoint(source.first_blocks[0]).by_partition for source in sources}
    wanted: Wanted = {}
    for partition, of in sorted(verdict.groups.items()):
        directory = serving[partition]
        if partition < PARTITIONS_MAX and directory in numbers:
            head = heads[directory].get(partition)
            wanted[partition] = (numbers[directory], head.last_index if head else 0, of.last_index)
    if not wanted:
        return []
    logs = [ChosenLog(source.directory, source, source.first_blocks[0]) for source in sources]
    merge = Merge(logs, streams_of(logs, wanted))
    if begun := [partition for partition, (_, after, _) in wanted.items() if after and not first]:
        notes.append(f"earlier calls of {group_names(begun)} are in no log or archive at hand")
    return [merge.invocations()]


def _around_damage(
    source: LogSource, verdict: Verdict, serving: Mapping[int, str], notes: list[str]
) -> list[Iterator[Invocation]]:
    """Each stretch of a log that can be read, as a history of its own."""
    partitions = [p for p in verdict.groups if p < PARTITIONS_MAX and serving[p] == source.directory]
    spans, _ = spans_of(source, partitions)
    problems = "; ".join(str(damage.args[0]) for damage in source.patchwork.damages) if source.patchwork is not None else ""
    stretches: list[tuple[int, Wanted]] = []
    for partition in sorted(partitions):
        last, told = verdict.groups[partition].last_index, 0
        for number, span in enumerate(sorted(spans[partition], key=lambda span: span.base)):
            if number == len(stretches):
                stretches.append((span.from_block, {}))
            if span.base > told:
                notes.append(f"partition {partition}: entries {told + 1} to {span.base} cannot be read")
            first_block, wanted = stretches[number]
            wanted[partition] = (0, span.base, min(span.last, last))
            stretches[number] = min(first_block, span.from_block), wanted
            told = max(told, span.last)
        if told < last:
            notes.append(f"partition {partition}: entries {told + 1} to {last} cannot be read")
    notes += [problems] if problems else []
    parts = []
    for first_block, wanted in stretches:
        logs = [ChosenLog(source.directory, source, max(block for block in source.first_blocks if block <= first_block))]
        parts.append(Merge(logs, streams_of(logs, wanted)).invocations())
    return parts


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
