"""Committed failure sets in a fault log: once each, in order, and never without what comes before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.fault_log import FaultLog, FaultLogForked, FaultRecord, read_faults
from cmdlog.wal.format.cluster_record import FaultSet
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.wal.faultkit import CLUSTER, node
from tests.wal.sim.simfiles import SimFiles

FIRST = FaultSet(1, (3,), 0, 5, 1, ((0, 9, 5), (1022, 8, 5)), "node 3 was silent")
SECOND = FaultSet(2, (), 0, 5, 1, (), "node 3 votes again")


class Kept:
    """A node's fault log on a simulated disk."""

    def __init__(self, number: int = 1) -> None:
        self.disk, self.identity = SimFiles(), node(number)
        self.disk.mkdir("/n")
        self.changed: list[FaultRecord] = []
        self.log = FaultLog.open(self.disk, "/n", self.identity)
        self.sets = FaultSets(self.log, CLUSTER, self.changed.append)

    def on_disk(self, identity: Identity | None = None) -> list[tuple[int, list[int]]]:
        """What a reader finds."""
        return [(of.sequence, sorted(of.failed)) for of in read_faults(self.disk, "/n", identity or self.identity)]


def test_each_set_is_durable_and_reported_once() -> None:
    """The entry may be applied again after a restart."""
    kept = Kept()
    for stated in (FIRST, FIRST, SECOND, FIRST, SECOND):
        kept.sets.adopt_set(stated)
    assert kept.on_disk() == [(1, [3]), (2, [])]
    assert [of.sequence for of in kept.changed] == [1, 2]
    assert (kept.sets.sequence, kept.sets.failed) == (2, frozenset())
    assert kept.sets.records[0].demotions == ((0, 9, 5), (1022, 8, 5))


def test_a_committed_entry_is_in_the_fault_log_when_it_was_observed() -> None:
    """Entries of other kinds say nothing about failures."""
    kept = Kept()
    for kind, value in ((RecordKind.FAULTS, FIRST.to_json()), (RecordKind.ENVIRONMENT, {})):
        kept.sets.observe(encode_json(kind, value, partition=CLUSTER_GROUP, term=5, index=9))
    assert kept.on_disk() == [(1, [3])]


def test_every_node_writes_the_same_record() -> None:
    """Checksums cover the chain, so equal records are one history."""
    one, other = Kept(1), Kept(2)
    for kept in (one, other):
        kept.sets.adopt_set(FIRST)
        kept.sets.adopt_set(SECOND)
    assert one.sets.records == other.sets.records


def test_a_set_whose_predecessor_is_missing_is_refused() -> None:
    """The chain would have a hole that nobody sees."""
    kept = Kept()
    with pytest.raises(FaultLogForked, match="failure set 2 is committed"):
        kept.sets.adopt_set(SECOND)
    assert kept.on_disk() == []


def test_another_set_under_a_known_number_is_refused() -> None:
    """Two histories."""
    kept = Kept()
    kept.sets.adopt_set(FIRST)
    with pytest.raises(FaultLogForked):
        kept.sets.adopt_set(replace(FIRST, failed=(2,)))


def test_a_mark_of_its_own_gives_way_to_the_clusters_set() -> None:
    """A node that marked itself learns that it was given up: its set lists the node, too."""
    kept = Kept(3)
    kept.log.mark_rejoining(term=4)
    kept.sets.adopt_set(FIRST)
    assert kept.on_disk() == [(1, [3])]
    assert kept.sets.records[0].author == 1
