"""A node is made again from a copy; an interruption at any step is rolled forward."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest

from cmdlog.cluster.transport.peer_book import read_peers
from cmdlog.member.rejoin.member_opening import prepare_directory, wish_copy
from cmdlog.member.rejoin.quarantine_folder import list_quarantine
from cmdlog.member.rejoin.rejoin_record import RejoinFile, RejoinReason
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.files import RealFile, RealFiles
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures.storage.state import open_reader
from replay.state.trust import state_path
from snapshot.catalog import check, list_snapshots
from tests.member.rejoin.copykit import FILES, RECIPIENT, OfferedCopy, ScriptedSource, folded, ground_of

pytestmark = pytest.mark.slow  # a directory is made at every step

PARTS = 4  # of the steps, each a test of its own, as one would take too long; by `make torture` all


class Crash(BaseException):
    """The process is dead. Not an `Exception`: nothing may outlive it."""


class CrashingFiles(RealFiles):
    """Real files of a process that dies before its n-th change of a name, or at a write of a file."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> RealFile:
        if create or exclusive:
            self._count()
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)

    def mkdir(self, path: str) -> None:
        self._count()
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def fsync_dir(self, path: str) -> None:
        self._count()
        super().fsync_dir(path)


def rows_of(directory: Path) -> list[tuple[object, ...]]:
    """All counters of both states."""
    found: list[tuple[object, ...]] = []
    for partition in (0, 1):
        connection, _guard = open_reader(state_path(str(directory), partition))
        with contextlib.closing(connection):
            found += connection.execute("SELECT id, n FROM counters").fetchall()
    return sorted(found)


def check_made(directory: Path, offer: OfferedCopy) -> None:
    """The directory is node 2 of the cluster, with everything that the source had at its snapshots, and nothing is left over."""
    instance = load_instance(FILES, str(directory))
    assert (instance.identity.node_id, instance.identity.cluster_id) == (RECIPIENT, offer.cluster.cluster_id)
    groups = folded(directory)
    for partition, place in offer.manifest.partitions.items():
        state = groups.by_partition[partition]
        assert (state.last_index, state.last_term, state.commit) == (place.index, place.term, place.index)
    cluster, theirs = groups.by_partition[CLUSTER_GROUP], offer.manifest.groups[CLUSTER_GROUP]
    assert (cluster.last_index, cluster.commit) == (theirs.last_index, theirs.last_index)
    assert groups.cluster.key_policy == folded(offer.directory).cluster.key_policy
    snapshots = list_snapshots(FILES, str(directory), instance.identity)
    assert [check(FILES, snapshot) for snapshot in snapshots] == [""] * len(snapshots)
    assert {snapshot.partition for snapshot in snapshots} == {0, 1}
    assert rows_of(directory) == rows_of(offer.directory)
    assert read_peers(FILES, str(directory), instance.identity) == offer.manifest.peers
    assert [record.failed for record in read_faults(FILES, str(directory), instance.identity)] == [{3}]
    log = Log.open(FILES, str(directory))
    log.close()
    left = set(os.listdir(directory)) - {"log", "state", "snapshots", "archive", "faults", "cluster", "instance.json", "LOCK"}
    assert left <= {"quarantine"}
    assert RejoinFile(FILES, str(directory)).read_record() is None


def old_directory(folder: Path, offer: OfferedCopy) -> Path:
    """What node 2 had before: a node's directory that wants a copy. (It is the source's own, under that number.)"""
    directory = folder / "n2"
    shutil.copytree(offer.directory, directory)
    return directory


def test_empty_directory_becomes_a_node(offer: OfferedCopy, tmp_path: Path) -> None:
    """Nothing was there, and the cluster has begun."""
    source = ScriptedSource(offer)
    prepare_directory(ground_of(tmp_path / "n2", offer.cluster, source))
    check_made(tmp_path / "n2", offer)
    assert [wish.reason for wish in source.wishes] == ["", "empty"]
    assert {wish.incarnation for wish in source.wishes} == {load_instance(FILES, str(tmp_path / "n2")).identity.incarnation}


def test_old_files_are_kept_in_quarantine_and_their_fault_log_counts_for_nothing(offer: OfferedCopy, tmp_path: Path) -> None:
    """A directory that wants a copy is given up as a whole; its fault log lists its node as failed."""
    directory = old_directory(tmp_path, offer)
    former = load_instance(FILES, str(directory)).identity
    ground = ground_of(directory, offer.cluster, ScriptedSource(offer))
    wish_copy(ground, RejoinReason.TOO_FAR_BACK, "it was away for long")
    prepare_directory(ground)
    check_made(directory, offer)
    (entry,) = list_quarantine(FILES, str(directory))
    old = directory / "quarantine" / entry.name
    assert load_instance(FILES, str(old)).identity == former
    (record,) = read_faults(FILES, str(old), former)
    assert record.failed == {former.node_id}
    assert (old / "log").is_dir()
    assert entry.reason == "too_far_back"


def test_votes_of_the_old_directory_are_never_forgotten(offer: OfferedCopy, tmp_path: Path) -> None:
    """The copied node's term is not lower than the old one's, and in the same term its vote is the old one."""
    directory = old_directory(tmp_path, offer)
    before = folded(directory).votes
    ground = ground_of(directory, offer.cluster, ScriptedSource(offer))
    wish_copy(ground, RejoinReason.DAMAGED, "a block has changed")
    prepare_directory(ground)
    assert folded(directory).votes == before
    assert {vote for _, vote in before.values()} == {1}


def test_votes_of_the_source_are_not_taken_over(offer: OfferedCopy, tmp_path: Path) -> None:
    """They are another node's."""
    prepare_directory(ground_of(tmp_path / "n2", offer.cluster, ScriptedSource(offer)))
    assert {vote for _, vote in folded(tmp_path / "n2").votes.values()} == {None}


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.torture) for first in (1, 2, 3))])
@pytest.mark.parametrize("begins_with", ["nothing", "old files"])
def test_interruption_at_every_step_is_rolled_forward(offer: OfferedCopy, tmp_path: Path, begins_with: str, first: int) -> None:
    """The process dies before the n-th change of the directory, for every n; the next start makes a whole node."""
    for step in itertools.count(first, PARTS):
        directory = tmp_path / str(step)
        directory.mkdir()
        crashed = _crash_at(step, directory / "n2", offer, begins_with)
        prepare_directory(ground_of(directory / "n2", offer.cluster, ScriptedSource(offer)))
        check_made(directory / "n2", offer)
        shutil.rmtree(directory)
        if not crashed:
            break
    assert step > 40


def _crash_at(step: int, directory: Path, offer: OfferedCopy, begins_with: str) -> bool:
    """Whether the run died at that step."""
    if begins_with == "old files":
        shutil.copytree(offer.directory, directory)
        wish_copy(ground_of(directory, offer.cluster), RejoinReason.DAMAGED, "a block has changed")
    try:
        prepare_directory(ground_of(directory, offer.cluster, ScriptedSource(offer), files=CrashingFiles(step)))
    except Crash:
        return True
    return False
