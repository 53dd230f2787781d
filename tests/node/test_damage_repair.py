"""Repairs step by step, over fakes: what is asked of the node, in which order, and when a finding is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from cmdlog.node.scrub.damage_repair import LOG_ROUNDS, RETRY_S, DamageRepair, RepairHooks
from cmdlog.node.scrub.file_scan import Damage, ScrubKind
from cmdlog.node.scrub.scrub_plan import ScrubItem
from cmdlog.node.scrub.scrub_progress import Findings, ScrubFinding
from cmdlog.node.scrub.scrub_reader import ReadingFailed
from cmdlog.wal.errors import DiskFull
from snapshot.errors import SnapshotFailed
from tests.node.test_log_comparison import FakePeers
from tests.wal.sim.simfiles import SimFiles

SNAPSHOT = "p0001-0000000000000007"


class FakeNode:
    """What a repair asks for, and what the node does about it."""

    def __init__(self, peers: FakePeers | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.futures: list[Future[dict[str, Any]]] = []
        self.there, self.mendable, self.broken = True, False, False
        self.findings, self.full = Findings([]), False
        hooks = RepairHooks(
            SimFiles(), "/node", range(3), fresh_snapshots=self.fresh_snapshots, set_aside_archived=self.set_aside,
            mend_segment=self.mend, in_use=lambda _found: self.there, peers=peers,
        )  # fmt: skip
        self.repair = DamageRepair(dataclasses.replace(hooks, files=AllThere()), self.findings)

    def fresh_snapshots(self, partitions: Sequence[int], aside: Mapping[str, str]) -> Future[dict[str, Any]]:
        self.asked.append(("snapshots", list(partitions), dict(aside)))
        self.futures.append(Future())
        return self.futures[-1]

    def set_aside(self, moves: Mapping[str, str]) -> None:
        if self.full:
            raise DiskFull("no room")
        self.asked.append(("aside", dict(moves)))

    def mend(self, path: str) -> bool:
        self.asked.append(("mend", path))
        if self.broken:
            raise ReadingFailed("damaged as well")
        return self.mendable

    def find(self, kind: ScrubKind, name: str, path: str = "") -> None:
        self.repair.begin_repair(ScrubFinding.of(ScrubItem(kind, name, path, 1), Damage("bad", path), 0.0))

    @property
    def words(self) -> list[str]:
        return [found.repair for found in (*self.findings.open, *self.findings.ended)]


class AllThere(SimFiles):
    """A disk on which every file exists."""

    def exists(self, path: str) -> bool:
        return True


def test_a_snapshot_is_set_aside_by_the_one_who_takes_the_next() -> None:
    """One request, so that nothing is made of the damaged one in between; over when the fresh one counts."""
    node = FakeNode()
    node.find("snapshot", SNAPSHOT)
    for now in (1.0, 2.0, 3.0):
        node.repair.advance(now)
    target = f"/node/quarantine/19700101T000000Z-scrub/snapshot-{SNAPSHOT}"
    assert node.asked == [("snapshots", [1], {f"/node/snapshots/{SNAPSHOT}": target})]
    assert node.repair.takes_snapshots
    node.futures[0].set_result({})
    assert node.repair.advance(4.0)
    assert (node.findings.open, node.findings.ended[0].ended_at) == ([], 4.0)
    assert not node.repair.takes_snapshots


def test_a_fresh_snapshot_that_fails_is_asked_for_again_later() -> None:
    """The finding stays, and says why."""
    node = FakeNode()
    node.find("snapshot", SNAPSHOT)
    node.repair.advance(1.0)
    node.futures[0].set_exception(SnapshotFailed("the disk is full"))
    node.repair.advance(2.0)
    assert node.words == ["not possible now: the disk is full"]
    node.repair.advance(2.0 + RETRY_S - 1)
    assert len(node.futures) == 1
    node.repair.advance(2.0 + RETRY_S)
    assert len(node.futures) == 2


def test_a_segment_of_a_node_alone_takes_two_rounds_of_all_partitions() -> None:
    """After one round the snapshot to fall back to may still need it; then the ring lets it go."""
    node = FakeNode()
    node.find("log", "seg-2", "/node/log/seg-2")
    for round_ in range(LOG_ROUNDS):
        node.repair.advance(float(round_))
        assert len(node.futures) == round_ + 1
        assert node.asked[-1] == ("snapshots", [0, 1, 2], {})
        node.futures[round_].set_result({})
        node.repair.advance(float(round_))
    node.repair.advance(5.0)
    assert len(node.futures) == LOG_ROUNDS
    assert "recovery does not need it" in node.words[0]
    node.there = False
    node.repair.advance(5.0 + RETRY_S)
    assert (node.findings.open, len(node.findings.ended)) == ([], 1)


def test_a_segment_in_the_archive_is_made_again_from_there() -> None:
    """Nothing else is done then."""
    node = FakeNode()
    node.mendable = True
    node.find("log", "seg-2", "/node/log/seg-2")
    node.repair.advance(1.0)
    assert node.asked == [("mend", "/node/log/seg-2")]
    assert node.words == ["made again from the archive's copy"]


def test_an_archive_that_is_damaged_as_well_does_not_delay_the_snapshots() -> None:
    """What could not be made again is needed no more all the same."""
    node = FakeNode()
    node.broken = True
    node.find("log", "seg-2", "/node/log/seg-2")
    node.repair.advance(1.0)
    assert node.asked[-1] == ("snapshots", [0, 1, 2], {})


def test_a_member_whose_segment_is_needed_by_others_is_copied() -> None:
    """A minute after its own recovery needs it no more."""
    peers = FakePeers({2: {}, 3: {}})
    node = FakeNode(peers)
    node.find("log", "seg-2", "/node/log/seg-2")
    for round_ in range(LOG_ROUNDS):
        node.repair.advance(1.0)
        node.futures[round_].set_result({})
        node.repair.advance(1.0)
    node.repair.advance(RETRY_S)
    assert peers.wanted == []
    node.repair.advance(1.0 + RETRY_S)
    assert peers.wanted == ["bad in /node/log/seg-2"]
    assert "copied from its peers" in node.words[0]


def test_a_member_is_copied_once_a_quorum_is_safe_and_it_is_its_turn() -> None:
    """Entries that differ from the majority's: until then nothing is done, and nothing else would help."""
    peers = FakePeers({2: {}, 3: {}})
    peers.safe, peers.turn = False, 2 * RETRY_S
    node = FakeNode(peers)
    node.find("entries", "group-0-from-1", "/node/log")
    node.repair.advance(1.0)
    peers.safe = True
    node.repair.advance(1.0 + RETRY_S)
    assert (node.futures, peers.wanted) == ([], [])
    assert "waits until a quorum is safe" in node.words[0]
    peers.safe = False
    node.repair.advance(1.0 + 2 * RETRY_S)
    assert peers.wanted == []
    peers.safe = True
    node.repair.advance(1.0 + 3 * RETRY_S)
    assert peers.wanted == ["bad in /node/log"]


def test_archived_files_are_set_aside_together() -> None:
    """A segment with its manifest; a snapshot by its folder."""
    node = FakeNode()
    node.find("archive_log", "log-1.seg", "/node/archive/log-1.seg")
    node.find("archive_snapshot", "snap-c-n1-p0000-0000000000000001", "/node/archive/snap/image.sqlite")
    node.repair.advance(1.0)
    moved = [set(moves) for _, moves in node.asked]
    assert moved == [
        {"/node/archive/log-1.seg", "/node/archive/log-1.json"},
        {"/node/archive/snap-c-n1-p0000-0000000000000001"},
    ]
    assert node.findings.open == []


def test_a_damaged_manifest_leaves_its_segment_where_it_is() -> None:
    """It is reported until somebody does something about it."""
    node = FakeNode()
    node.find("archive_log", "log-1.seg", "/node/archive/log-1.json")
    node.repair.advance(1.0)
    assert node.asked == []
    assert "still reads it" in node.words[0]


def test_a_full_disk_does_not_end_a_finding() -> None:
    """It is tried again."""
    node = FakeNode()
    node.full = True
    node.find("archive_snapshot", "snap-c-n1-p0000-0000000000000001", "/x")
    node.repair.advance(1.0)
    assert node.words == ["not possible now: no room"]
    node.full = False
    node.repair.advance(1.0 + RETRY_S)
    assert node.findings.open == []


@pytest.mark.parametrize("kind", ["log", "archive_log", "archive_snapshot"])
def test_what_is_gone_needs_no_repair(kind: ScrubKind) -> None:
    """Retention or the ring was quicker."""
    node = FakeNode()
    node.there = False
    node.find(kind, "name", "/node/name")
    node.repair.advance(1.0)
    assert (node.asked, node.findings.open) == ([], [])
