"""The plan of a recovery from several nodes' directories: which log counts for which partition, where each entry comes from.

One rule: `replay.plan.authority` decides where every partition's line of entries ends, and nothing here shortens it silently. A
line is taken from the chosen log where that can be read; what is damaged there comes from another log that agrees
(`replay.log.spans`); what no log has is reported, and then there is a plan only if the loss is accepted.

A plan is a list of *legs*, carried out in order (`replay.recover.from_cluster`): each is an ordinary plan over one directory for
some of the partitions. A leg that is not the first of its partition continues from the state of the leg before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.call_places import TermTable
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX
from cmdlog.wal.skips import Skips, SkipSet
from procedures.code.bundle import bundle_of
from replay.engine import CatalogMissing
from replay.errors import Incomplete, NoLogs, ReplayError, first_of
from replay.log.archive_reach import describe_stray, nearest_stray
from replay.log.collect_evidence import gather
from replay.log.evidence import NodeEvidence
from replay.log.scan import Scan, ScannedStream, scan
from replay.log.source import LogSource, open_source
from replay.log.spans import BEGINNING, Mark, Span, SpanStep, join, restricted, salvage, spans_of
from replay.log.split_calls import PartitionSpan, find_parted, names_of
from replay.plan.authority import ClusterVerdict, GroupVerdict, Use, decide
from replay.plan.cluster_plan import Choice, JointPlan, NodeSeen
from replay.plan.node_plan import Kind, PartitionPlan, Plan
from replay.plan.planner import MEMBER_PAST, Purpose, make_plan
from replay.plan.sole_voter import votes_alone
from replay.plan.until import check_begin_of_all, check_newest_of_all
from snapshot.catalog import Snapshot, check, list_archived, list_snapshots


def make_joint_plan(
    files: Files,
    directories: Sequence[str],
    *,
    until: int | None = None,
    accept_data_loss: bool = False,
    starts: Mapping[int, Mark] | None = None,
    purpose: Purpose = MEMBER_PAST,
) -> JointPlan:
    """Looks at the directories of one cluster's nodes; changes nothing. Says what would be lost; see `check_complete`.

    With `accept_data_loss` logs that contradict each other do not stop it. `starts`: for a caller that has the partitions' states
    at these entries, and wants all later entries, in legs; of every partition, since a call on all runs on all or on none.
    `purpose`: MEMBER_PAST, or MEMBER_QUARANTINE.

    Raises: what `decide` refuses; NoLogs; UntilBeyond, CatalogMissing, BundleForged.
    """
    evidence = [gather(files, directory) for directory in directories]
    verdict = decide(evidence, accept_data_loss=accept_data_loss)
    if CLUSTER_GROUP not in verdict.groups:
        damage = [str(fault) for node in evidence for fault in node.damage]
        raise NoLogs(
            "; ".join(["no log at hand holds anything of the cluster group, so code and voters are not known", *damage]), 0
        )
    doubtful = [of for _, of in sorted(verdict.groups.items()) if not of.proved]
    planner = _Planner(files, evidence, verdict, until=until, given=starts or {}, purpose=purpose)
    if until is not None and not accept_data_loss and not doubtful:  # else it is unknown how far they reached
        check_newest_of_all(files, evidence, until)
    legs = planner.legs()
    doubts = [*unproved(verdict), *(_not_counted(evidence, doubtful) if doubtful else ())]
    if len(evidence) == 1 and votes_alone(evidence[0]) and planner.is_settled():
        doubts = []  # whatever is missing after the moment, no other node could have changed what precedes it
    if until is not None and not planner.lost and not doubts:
        check_begin_of_all(legs, until)
    return JointPlan(
        directories=tuple(directories),
        cluster_id=next(node.cluster_id for node in evidence if node.refused is None),
        until=until,
        nodes=tuple(NodeSeen.of(node) for node in evidence),
        choices=tuple(Choice.of(of) for _, of in sorted(verdict.groups.items())),
        sequence=verdict.sequence,
        failed=tuple(sorted(verdict.failed)),
        legs=tuple(legs),
        incomplete=(*doubts, *planner.lost),
        notes=tuple(planner.notes),
    )


def unproved(verdict: ClusterVerdict) -> list[str]:
    """What is not proved; groups with the same reason together."""
    said: dict[str, list[int]] = {}
    for _, of in sorted(verdict.groups.items()):
        if not of.proved:
            said.setdefault(of.why, []).append(of.group)
    return [f"{group_names(groups)}: {why}" for why, groups in said.items()]


def _not_counted(evidence: Iterable[NodeEvidence], unproved: Iterable[GroupVerdict]) -> list[str]:
    """Every directory that does not count, with the reason and the file, once."""
    doubts = {directory: why for of in unproved for directory, (use, why) in of.uses.items() if use is Use.UNUSABLE}
    told = []
    for node in evidence:
        why = str(node.refused) if node.refused is not None else doubts.get(node.directory, "")
        damage = "; ".join(map(str, node.damage))
        if why:
            told.append(f"{node.directory} does not count: {why}" + (f" ({damage})" if damage else ""))
    return told


def group_names(groups: Sequence[int]) -> str:
    """Names of several groups as text, ascending; consecutive numbers as a range."""
    partitions = sorted(group for group in groups if group != CLUSTER_GROUP)
    starts = [p for p in partitions if p - 1 not in partitions]
    ends = [p for p in partitions if p + 1 not in partitions]
    ranges = [str(low) if low == high else f"{low} to {high}" for low, high in zip(starts, ends, strict=True)]
    names = [f"partition{'s' if len(partitions) > 1 else ''} {', '.join(ranges)}"] if partitions else []
    return " and the ".join([*names, "cluster group"] if CLUSTER_GROUP in groups else names)


def open_or_salvage(files: Files, directory: str) -> LogSource:
    """The log as it is, or around its damage when the restart table refuses it."""
    try:
        return open_source(files, directory, accept_data_loss=True)
    except WalError:
        return salvage(files, directory)


class _Planner:
    """Finds the legs for one verdict."""

    def __init__(
        self,
        files: Files,
        evidence: Sequence[NodeEvidence],
        verdict: ClusterVerdict,
        *,
        until: int | None,
        given: Mapping[int, Mark],
        purpose: Purpose,
    ) -> None:
        self._files, self._verdict, self._until, self._given, self._purpose = files, verdict, until, given, purpose
        self._usable = [node.directory for node in evidence if node.refused is None]
        self._damage = [str(fault) for node in evidence for fault in node.damage]
        self._bad = min((fault.block or 0 for node in evidence for fault in node.damage), default=0)  # first block; 0: not known
        self._settled: set[int] = set()  # partitions with all that they need before it
        self._sources: dict[str, LogSource] = {}
        self._spans: dict[str, dict[int, list[Span]]] = {}
        self._groups: dict[str, GroupStates] = {}
        self._lines: dict[int, PartitionSpan] = {}  # multi-partition calls, by partition
        self._read_at: dict[int, tuple[LogSource, int]] = {}  # partition -> a log that serves it, and from which block on
        self.notes: list[str] = []
        self.lost: list[str] = []

    def legs(self) -> list[Plan]:
        partitions = sorted(group for group in self._verdict.groups if group < PARTITIONS_MAX)
        by_log: dict[str, list[int]] = {}
        for partition in partitions if not self._given else ():
            by_log.setdefault(self._verdict.groups[partition].chosen, []).append(partition)
        legs, left = [], sorted(self._given)
        for directory, of in by_log.items():
            try:
                legs.append(self._whole_log(directory, of))
            except (WalError, ReplayError, CatalogMissing) as error:
                self._add_note(f"{directory} alone does not suffice: {error.args[0]}")
                left += of
        return self._settle_parted([*legs, *(leg for partition in left for leg in self._stitched(partition))])

    def _settle_parted(self, legs: Sequence[Plan]) -> list[Plan]:
        """Multi-partition calls run on all partitions or on none, whichever logs these come from."""
        found = find_parted(self._lines)
        for call in found:
            source, from_block = self._read_at[min(call.held)]
            told = call.describe(names_of([call], source, from_block).get(call.txn_id, ""))
            (self.lost if call.is_loss else self.notes).append(told)
        return [replace(leg, partitions=tuple(part.settled(found) for part in leg.partitions)) for leg in legs]

    def _note_line(
        self, partition: int, stream: ScannedStream, source: LogSource, from_block: int, *, upto: int | None = None
    ) -> None:
        """What a leg holds; of the first one also what precedes it."""
        found = stream.line()
        line = self._lines.setdefault(partition, PartitionSpan(found.start_txn))
        line.calls |= {txn: call for txn, call in found.calls.items() if upto is None or call.index <= upto}
        line.skipped |= found.skipped
        line.ran |= found.ran
        line.passed = max(line.passed, found.passed)
        line.terms.extend(found.terms.upto(self._verdict.groups[partition].last_index))
        self._read_at.setdefault(partition, (source, from_block))

    def is_settled(self) -> bool:
        """Whether every partition has passed the moment in blocks before all damage."""
        return not self.lost and self._settled >= {group for group in self._verdict.groups if group < PARTITIONS_MAX}

    def _add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _whole_log(self, directory: str, partitions: Sequence[int]) -> Plan:
        """The chosen log from a snapshot or its beginning to its end, with nothing else."""
        planned = make_plan(self._files, directory, self._purpose, until=self._until)
        plan = planned.plan
        parts = tuple(part for part in plan.partitions if part.partition in partitions)
        if self._until is None:
            for part in parts:
                of = self._verdict.groups[part.partition]
                if part.to_index != of.last_index or (part.to_term and part.to_checksum != of.last_checksum):
                    raise Incomplete(f"partition {part.partition} ends at index {part.to_index} there, not at {of.last_index}")
        for part in parts:
            self._note_line(part.partition, planned.scan.streams[part.partition], planned.source, planned.plan.from_block)
        return replace(plan, partitions=parts)

    # -- around damage ---------------------------------------------------------------------------------------------------

    def _stitched(self, partition: int) -> list[Plan]:
        of = self._verdict.groups[partition]
        order = [of.chosen, *(d for d in of.copies if d != of.chosen)]
        order += [directory for directory in self._usable if directory not in order]
        spans = [span for directory in order for span in self._spans_of(directory)[partition]]
        starts = self._starts(partition, order)
        end = Mark(of.last_index, of.last_term, of.last_checksum)
        while True:
            start, steps = join(starts, end, spans)
            snapshot = starts[start]
            if snapshot is None or not (why := check(self._files, snapshot)):
                break
            self._add_note(f"snapshot {snapshot.path} is not used: {why}")
            del starts[start]
        legs, reached = self._legs_of(partition, start, snapshot, steps)
        if reached is not None and reached != end:
            self._fall_short(of, reached, spans)
        return legs

    def _fall_short(self, of: GroupVerdict, reached: Mark, spans: Iterable[Span]) -> None:
        after = min((span.base + 1 for span in spans if span.base >= reached.index and span.last > reached.index), default=0)
        last = after - 1 if after else of.last_index
        problems = dict.fromkeys([*self._damage, *(p for source in self._sources.values() for p in _problems(source))])
        strays = [nearest_stray(self._files, source) for source in self._sources.values()]
        problems |= dict.fromkeys(describe_stray(stray) for stray in strays if stray is not None)
        behind = f", so entries up to {of.last_index} after them cannot be used" if last < of.last_index else ""
        why = first_of(list(problems)) if problems else of.why
        self.lost.append(f"partition {of.group}: entries {reached.index + 1} to {last} are in no log at hand{behind} ({why})")

    def _spans_of(self, directory: str) -> dict[int, list[Span]]:
        if directory not in self._spans:
            partitions = [group for group in self._verdict.groups if group < PARTITIONS_MAX]
            try:
                source = self._sources[directory] = salvage(self._files, directory)
                self._spans[directory], self._groups[directory] = spans_of(source, partitions)
                for problem in _problems(source):
                    self._add_note(f"damaged: {problem}")
            except WalError as error:
                self._add_note(f"{directory} cannot be read: {error.args[0]}")
                self._spans[directory], self._groups[directory] = {partition: [] for partition in partitions}, GroupStates()
        return self._spans[directory]

    def _starts(self, partition: int, order: Iterable[str]) -> dict[Mark, Snapshot | None]:
        """Where the partition may start, the furthest first."""
        if partition in self._given:
            return {self._given[partition]: None}
        found: dict[Mark, Snapshot | None] = {}
        for directory in order:
            if directory not in self._sources:
                continue
            identity = self._sources[directory].instance.identity
            live = list_snapshots(self._files, directory, identity)
            names = {(snapshot.partition, snapshot.name) for snapshot in live}
            old = [s for s in list_archived(self._files, directory, identity) if (s.partition, s.name) not in names]
            for snapshot in [*live, *old]:
                m = snapshot.manifest
                if m is None or snapshot.partition != partition or (self._until is not None and m.txn_id > self._until):
                    continue
                found.setdefault(Mark(m.index, m.term, m.checksum), snapshot)
        ordered = dict(sorted(found.items(), key=lambda item: -item[0].index))
        return {**ordered, BEGINNING: None}

    def _legs_of(
        self, partition: int, start: Mark, snapshot: Snapshot | None, steps: Sequence[SpanStep]
    ) -> tuple[list[Plan], Mark | None]:
        """The legs, and the entry at which they end; None when that is where `until` ends them."""
        chosen = self._verdict.groups[partition].chosen
        if snapshot is not None and snapshot.manifest is not None:  # legs may not read what precedes it
            of = snapshot.manifest
            self._lines[partition] = PartitionSpan(of.txn_id, passed=of.index)
            if not steps:
                self._lines[partition].terms = TermTable.beginning(of.index, of.term)
        origin = next((d for d in self._sources if snapshot is not None and snapshot.path.startswith(f"{d}/")), chosen)
        skips = SkipSet(
            skip for step in steps for skip in step.span.skipped if step.from_mark.index < skip.at <= step.to_mark.index
        ).by_batch()
        if not steps:
            source = self._sources.get(chosen) or self._sources[origin]
            spot = Span(source.directory, start.index, start, source.first_blocks[-1], source.first_blocks[-1])
            steps = [SpanStep(spot, start, start)]
        legs: list[Plan] = []
        goes_on = self._given.get(partition, BEGINNING) != BEGINNING
        for number, step in enumerate(steps):
            kind: Kind = "state" if number or goes_on else ("empty" if snapshot is None else "snapshot")
            name = snapshot.name if kind == "snapshot" and snapshot is not None else ""
            leg, ended = self._leg(partition, step, kind, name, skips)
            legs.append(replace(leg, origins={partition: origin}) if kind == "snapshot" else leg)
            if ended:
                return legs, None
        return legs, steps[-1].to_mark

    def _leg(self, partition: int, step: SpanStep, kind: Kind, name: str, skips: Skips) -> tuple[Plan, bool]:
        """The leg of one step, and whether `until` ends the partition in it."""
        source = restricted(self._sources[step.span.directory], step.span.last_block)
        first = max(block for block in source.first_blocks if block <= step.span.from_block)
        low, high = step.from_mark, step.to_mark
        found = scan(source, {partition: low.index}, {}, from_block=first, until=self._until)
        stream = found.streams[partition]
        # `until` may end the partition in this step, or in the middle of its last entry.
        ended = stream.ended and (stream.to_index < high.index or (stream.to_index == high.index and stream.to_calls >= 0))
        to = high if not ended else Mark(max(stream.to_index, low.index), stream.to_term, stream.to_checksum)
        self._note_line(partition, stream, source, first, upto=to.index)
        beyond = scan(source, {partition: to.index}, {}, from_block=first, until=self._until).streams[partition]
        part = PartitionPlan(
            partition=partition,
            source=kind,
            name=name,
            from_index=low.index,
            from_term=low.term,
            from_checksum=low.checksum,
            to_index=to.index,
            to_term=to.term,
            to_checksum=to.checksum,
            to_calls=stream.to_calls if ended else -1,
            to_txn=stream.to_txn,
            entries=stream.entries - beyond.entries,
            calls=stream.calls - beyond.calls,
            bytes=stream.bytes - beyond.bytes,
            why=_WHY[kind],
            procedures=dict(Counter(stream.procedures) - Counter(beyond.procedures)),
            skips=skips,
            voids=tuple(stream.voids),
        )
        if self._is_before_damage(partition, step, first, to, ended=ended):
            self._settled.add(partition)
        catalogs = self._code(partition, stream.catalogs, found)
        chosen = self._groups.get(self._verdict.groups[CLUSTER_GROUP].chosen, found.groups)
        plan = _plan(source, found, part, self._until)
        return replace(plan, catalogs=catalogs, key_policy=chosen.cluster.key_policy), ended

    def _is_before_damage(self, partition: int, step: SpanStep, first: int, to: Mark, *, ended: bool) -> bool:
        """Whether all that is applied is before the damage, and nothing up to the moment can be in it."""
        if self._until is None or first >= self._bad:
            return False
        source = restricted(self._sources[step.span.directory], self._bad - 1)
        front = scan(source, {partition: step.from_mark.index}, {}, from_block=first, until=self._until)
        passed = ended or front.groups.state(partition).closed_txn >= self._until
        return passed and max(front.streams[partition].to_index, step.from_mark.index) >= to.index

    def _code(self, partition: int, versions: Iterable[int], found: Scan) -> tuple[Mapping[str, Any], ...]:
        """Catalog records of these versions, from any log that names them. Raises: CatalogMissing, BundleForged, unless left."""
        values = {version: catalog.value for version, catalog in found.catalogs.items()}
        for directory in self._usable:
            groups = self._groups.get(directory)
            if groups is None and any(version not in values for version in versions):
                self._spans_of(directory)
                groups = self._groups[directory]
            for version, catalog in groups.state(CLUSTER_GROUP).catalogs.items() if groups is not None else ():
                values.setdefault(version, catalog.value)
        for version in sorted(versions) if self._purpose.missing_code == "refused" else ():
            if version not in values:
                raise CatalogMissing(f"partition {partition} ran catalog version {version}, which no log at hand names")
            bundle_of(version, values[version])
        return tuple(values[version] for version in sorted(versions) if version in values)


_WHY: Final[Mapping[str, str]] = {
    "state": "the leg before it ended here",
    "snapshot": "newest intact snapshot that the logs at hand continue",
    "empty": "the logs at hand reach back to the first entry",
}


def _plan(source: LogSource, found: Scan, part: PartitionPlan, until: int | None) -> Plan:
    return Plan(
        directory=source.directory,
        **source.instance.identity.as_text(),
        verdict=source.verdict,
        from_block=found.from_block,
        last_block=source.last_block,
        until=until,
        row_digests=found.row_digests,
        partitions=(part,),
        salvaged=True,
    )


def _problems(source: LogSource) -> list[str]:
    return [str(damage.args[0]) for damage in source.patchwork.damages] if source.patchwork is not None else []
