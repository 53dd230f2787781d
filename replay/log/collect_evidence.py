"""Reads what one node's directory states about every group: instance, fault log, segment heads, the newest segment, snapshots.

One rule: read-only and quick. Sealed segments are not read, only their heads: the head of the oldest states where the log begins,
and one scan of the newest, which states all before it, where it ends. Works while the node runs. Nothing is judged here but
what a restart would judge too; what cannot be read is stated as damage, and the log around it as *runs*.

Runs go around a segment that is missing or has a bad head. A segment before such a hole is read, since nothing after it states
its end. Damage inside another sealed segment is found only when that is read.

Which lives of the nodes' disks a directory knows, MEMBER entries of its log state, and its book of peers. An emptied or replaced
disk comes back as another life (*incarnation*), and what an earlier life has acknowledged is not on the later one. The book
states a life also where no entry does yet: a node pins each peer's life durably before it takes part in the first election. It
also counts the starts of its directory, and knows the last start of each peer that it has met: a directory that has counted
fewer, or whose start of that number was another process's, is an old copy of what was met.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cmdlog.wal.directory.instance import CLUSTER_FOLDER, LOG_FOLDER, Identity, IdentityText, Instance, load_instance
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, WalError
from cmdlog.wal.fault_log import FaultRecord, read_faults
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import decode_checked
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet
from cmdlog.wal.format.control_record import GroupConfiguration
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.segment import segment_sequence
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.hard_state import HardStateValues
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.opening.restart import RestartVerdict, decide
from cmdlog.wal.opening.scan import EndKind, SegmentWalk, walk_segment
from cmdlog.wal.opening.survey import SegmentFile, Survey, identity_text, survey_log, tail_corrupt
from cmdlog.wal.reader import Recycled, read_segment
from replay.log.damaged_tail import Beyond, behind_damage, folded
from replay.log.evidence import (
    PINNED,
    BlockRun,
    DirectoryFault,
    GroupEvidence,
    KnownLife,
    KnownStart,
    NodeEvidence,
    PeersMet,
    SnapshotEvidence,
)
from snapshot.catalog import list_snapshots

BOOK_PATH: Final = (CLUSTER_FOLDER, "peers.json")
LOOKS_MAX: Final = 10  # at the directory of a running node, which may recycle between two file names


def gather(files: Files, directory: str) -> NodeEvidence:
    """What the directory states; what may not be used at all is stated as `refused`, not raised."""
    try:
        instance = load_instance(files, directory)
    except WalError as error:
        return _refused(directory, None, error)
    except OSError as error:
        return _refused(directory, None, WalError(f"{directory} cannot be read: {error.strerror or error}"))
    attempt = 0
    while True:
        attempt += 1
        try:
            return _gather(files, directory, instance)
        except (FileNotFoundError, Recycled) as moved:  # a running node let a segment go between two looks
            if attempt >= LOOKS_MAX:
                return _refused(directory, instance.identity, WalError(str(moved)))
        except WalError as error:
            return _refused(directory, instance.identity, error)
        except BadRecord as bad:  # checksums hold, so a program wrote it that knows more, or less
            return _refused(directory, instance.identity, Corrupt(f"a record with valid checksums ({bad})", path=directory))


def _gather(files: Files, directory: str, instance: Instance) -> NodeEvidence:
    identity = instance.identity
    faults, fault_problem = _faults(files, directory, identity)
    log, met = _Log.open_log(files, directory, instance), peers_met(files, directory, identity)
    return NodeEvidence(
        directory=directory,
        **identity.as_text(),
        groups=log.groups(),
        faults=faults,
        logged_faults=log.faults(),
        fault_problem=fault_problem,
        snapshots=_snapshots(files, directory, identity),
        damage=tuple(log.damage),
        earlier=tuple(incarnation.hex() for incarnation in identity.earlier),
        lives=known_lives(log.lives(), met.lives),
        met=met.confirmed,
        start=met.start,
        peer_starts=met.peers,
    )


def _refused(directory: str, identity: Identity | None, error: WalError) -> NodeEvidence:
    known: IdentityText = identity.as_text() if identity is not None else {"cluster_id": "", "node_id": 0, "incarnation": ""}
    return NodeEvidence(directory=directory, **known, refused=DirectoryFault.of(error), exit_code=error.exit_code)


def _faults(files: Files, directory: str, identity: Identity) -> tuple[tuple[FaultRecord, ...], str]:
    try:
        return read_faults(files, directory, identity), ""
    except (Corrupt, Foreign, NewerFormat) as error:
        return (), error.args[0]


def _snapshots(files: Files, directory: str, identity: Identity) -> tuple[SnapshotEvidence, ...]:
    found = []
    for snapshot in list_snapshots(files, directory, identity):
        m = snapshot.manifest
        if m is None:
            found.append(SnapshotEvidence(snapshot.name, snapshot.partition, snapshot.index, problem=snapshot.problem))
        else:
            found.append(SnapshotEvidence(snapshot.name, snapshot.partition, m.index, m.term, m.checksum, m.txn_id))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A run over all groups: the states at its beginning (the head of a segment) and at its end."""

    from_block: int
    last_block: int
    begin: GroupStates
    end: GroupStates

    def run_of(self, partition: int) -> BlockRun | None:
        """The group's part; None when the run ends before the group's first record."""
        begin, end = self.begin.by_partition.get(partition, GroupState()), self.end.by_partition.get(partition)
        if end is None:
            return None
        return BlockRun(
            from_block=self.from_block,
            last_block=self.last_block,
            base_index=begin.last_index,
            base_term=begin.last_term,
            base_checksum=begin.last_checksum,
            last_index=end.last_index,
            last_term=end.last_term,
            last_checksum=end.last_checksum,
            base_commit=begin.commit,
            last_commit=end.commit,
        )


@dataclass(slots=True)
class _Log:
    """One look at a log."""

    files: Files
    directory: str
    survey: Survey
    stretches: list[_Stretch] = field(default_factory=list)
    damage: list[DirectoryFault] = field(default_factory=list)
    end_known: bool = True
    beyond: Beyond | None = None

    @classmethod
    def open_log(cls, files: Files, directory: str, instance: Instance) -> _Log:
        """Raises: Foreign, NewerFormat, FileNotFoundError."""
        survey, lost = survey_anyway(files, directory, instance)
        log = cls(files, directory, survey, damage=lost, end_known=not lost)
        log._note_problems()
        log._fold_stretches()
        return log

    def groups(self) -> dict[int, GroupEvidence]:
        """Every group that the log knows of."""
        if not self.stretches:
            return {}
        end = self.beyond.end if self.beyond is not None else self.stretches[-1].end
        for partition, (term, vote) in sorted(self.survey.hard.votes.items()):
            try:
                end.merge_vote(partition, term, vote)
            except ValueError as error:
                self.damage.append(DirectoryFault(str(error), self.survey.log_dir))
                self.end_known = False
        return {partition: self._group(partition, state) for partition, state in sorted(end.by_partition.items())}

    def lives(self) -> dict[int, KnownLife]:
        """What the cluster group states of the nodes' disks. Raises: BadRecord."""
        cluster = self._cluster_group()
        return lives_of_log(cluster.members.values()) if cluster is not None else {}

    def faults(self) -> FaultSet | None:
        """The newest failure set in the cluster group, committed or not."""
        cluster = self._cluster_group()
        return None if cluster is None or cluster.faults is None else FaultSet.from_json(cluster.faults.value)

    def _cluster_group(self) -> GroupState | None:
        if not self.stretches:
            return None
        end = self.beyond.end if self.beyond is not None else self.stretches[-1].end
        return end.by_partition.get(CLUSTER_GROUP)

    def _group(self, partition: int, state: GroupState) -> GroupEvidence:
        return replace(
            GroupEvidence.from_state(partition, state),
            runs=tuple(run for stretch in self.stretches if (run := stretch.run_of(partition)) is not None),
            partitions=GroupConfiguration.from_json(state.configuration or {}).partitions if partition == CLUSTER_GROUP else 0,
            vote=state.vote,
            unseen=self._unseen(partition, state),
            end_known=self.end_known or (self.beyond is not None and partition in self.beyond.known),
        )

    def _unseen(self, partition: int, state: GroupState) -> int:
        if self.beyond is None:
            return 0
        return self.beyond.known.get(partition, state.commit if state.commit > state.last_index else 0)

    def _note_problems(self) -> None:
        """Raises: Foreign, NewerFormat."""
        for problem in self.survey.problems:
            if problem.fact == "newer":
                raise NewerFormat(f"{problem.path} is of a newer format")
            if problem.fact == "foreign":
                raise Foreign(f"{problem.path}: {problem.what}; this directory belongs to {self.survey.instance.identity}")
            self.damage.append(DirectoryFault(problem.what, problem.path, problem.offset, problem.block))

    def _fold_stretches(self) -> None:
        """Runs of segments with good heads that follow each other."""
        bad = {problem.path for problem in self.survey.problems if problem.fact == "damaged_head"}
        good = [segment for segment in self.survey.segments if segment.path not in bad]
        named = [segment_sequence(name) or 0 for name in self.files.listdir(self.survey.log_dir)]
        newest = max([self.survey.hard.newest, *named])
        if not good or good[-1].sequence < newest:
            self.end_known = False
        first: SegmentFile | None = None  # of the run in progress
        for segment, after in itertools.zip_longest(good, good[1:]):
            first = first or segment
            if after is None or not _continues(segment, after):
                self._close(first, segment, newest=newest)
                first = None

    def _close(self, first: SegmentFile, last: SegmentFile, *, newest: int) -> None:
        """The run from the head of `first` to the last good block of `last`, which is read."""
        data, walk = self._walked(last)
        fault = self._fault_in(last, data, walk, is_newest=last.sequence == newest)
        if fault is not None:
            self.damage.append(fault)
            if last.sequence == newest and self.end_known:
                self.end_known, self.beyond = False, self._records_after(data, walk)
        if walk.places:
            begin, end = self._head(first), folded(data, walk.places)
            self.stretches.append(_Stretch(int(first.header.first_block), int(walk.places[-1].header.number), begin, end))

    def _records_after(self, data: bytes, walk: SegmentWalk) -> Beyond | None:
        snapshots = list_snapshots(self.files, self.directory, self.survey.instance.identity)
        return behind_damage(data, walk, [s.manifest for s in snapshots if s.manifest is not None])

    def _fault_in(self, segment: SegmentFile, data: bytes, walk: SegmentWalk, *, is_newest: bool) -> DirectoryFault | None:
        """Why the run ends in this segment before the segment does."""
        if is_newest:
            error = self._tail_damage(segment, data, walk)
            return DirectoryFault.of(error) if error is not None else None
        if walk.end_kind in (EndKind.BAD, EndKind.MISPLACED) or walk.later:
            return DirectoryFault(f"block cannot be read ({walk.end_reason})", segment.path, walk.end, int(walk.expected))
        return None

    def _walked(self, segment: SegmentFile) -> tuple[bytes, SegmentWalk]:
        walk = self.survey.walk
        if walk is not None and segment is self.survey.segments[-1]:
            return self.survey.data, walk
        data = self.files.read_file(segment.path)
        return data, walk_segment(data, segment.header)

    def _tail_damage(self, segment: SegmentFile, data: bytes, walk: SegmentWalk) -> Corrupt | None:
        """What a restart would refuse of the newest segment's end."""
        tail = replace(self.survey, segments=[segment], problems=[], data=data, walk=walk)
        verdict = decide(tail.facts).verdict
        if verdict is RestartVerdict.NEWER:
            raise NewerFormat(f"{segment.path} holds a block of a newer format")
        return tail_corrupt(tail, verdict) if verdict in (RestartVerdict.CORRUPT, RestartVerdict.MISPLACED) else None

    def _head(self, segment: SegmentFile) -> GroupStates:
        """What the segment's checkpoint states: everything before it, folded. Raises: Corrupt, Recycled."""
        head = read_segment(self.files, segment, upto=int(segment.header.first_block))
        return GroupStates.fold(found for block in head for found in block.records())


def _continues(segment: SegmentFile, after: SegmentFile) -> bool:
    return after.sequence == segment.sequence + 1 and after.header.previous_generation == segment.header.generation


def survey_anyway(files: Files, directory: str, instance: Instance) -> tuple[Survey, list[DirectoryFault]]:
    """Also where the hard state file is lost: then no file states which segment is the newest, and all that are there count.

    Raises: Corrupt, when nothing can be read at all.
    """
    try:
        return survey_log(files, directory, instance), []
    except Corrupt as error:
        sequences = [found for name in files.listdir(os.path.join(directory, LOG_FOLDER)) if (found := segment_sequence(name))]
        hard = HardStateValues(identity_text(instance.identity), min(sequences, default=1), max(sequences, default=1))
        return survey_log(files, directory, instance, hard_state=hard), [DirectoryFault.of(error)]


def lives_of_log(stated: Iterable[Stated]) -> dict[int, KnownLife]:
    """What the newest MEMBER entries state, committed or not. Raises: KeyError, TypeError, ValueError."""
    found = {}
    for of in stated:
        member = ClusterMember.from_json(of.value)
        former = frozenset(incarnation.hex() for incarnation in member.former)
        found[member.node] = KnownLife(member.incarnation.hex(), former, (of.term, of.index))
    return found


def peers_met(files: Files, directory: str, identity: Identity) -> PeersMet:
    """What the book of peers says; nothing where there is none, or none that can be relied on."""
    path = os.path.join(directory, *BOOK_PATH)
    if not files.exists(path):
        return PeersMet()
    try:
        value = decode_checked(files.read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
        # A book that is damaged, or of another node or life, states nothing.
        if (value["node_id"], value["incarnation"]) != (identity.node_id, identity.incarnation.hex()):
            return PeersMet()
        records = {int(node): of for node, of in value["peers"].items()}
        lives = {node: KnownLife(str(of["incarnation"]), frozenset(of["former"]), PINNED) for node, of in records.items()}
        confirmed = frozenset(node for node, of in records.items() if of["confirmed"])
        earlier = tuple(str(process) for process in value.get("earlier", ()))
        start = KnownStart(str(value["incarnation"]), int(value["starts"]), str(value.get("process", "")), earlier)
        peers = {
            node: KnownStart(str(of["incarnation"]), int(of["start"][0]), str(of["start"][1]))
            for node, of in records.items()
            if of["start"] is not None
        }
        return PeersMet(lives, confirmed, start, peers)
    except (AttributeError, KeyError, TypeError, ValueError):
        return PeersMet()


def known_lives(log: Mapping[int, KnownLife], book: Mapping[int, KnownLife]) -> dict[int, KnownLife]:
    """Both together: the log's word counts, and what either calls over is over."""
    found = dict(book)
    for node, life in log.items():
        pinned = book.get(node)
        former = life.former | (pinned.former if pinned is not None else frozenset())
        found[node] = KnownLife(life.incarnation, former, life.place)
    return dict(sorted(found.items()))
