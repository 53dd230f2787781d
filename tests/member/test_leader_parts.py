"""The parts of a member that lead know each other: a look at the node becomes a reason, and a tick reaches everybody."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cmdlog.cluster.leader_fitness import FIT, LeaderFitness, Unfitness
from cmdlog.member.leadership import Standing
from cmdlog.member.leading.leader_parts import LeaderGround, LeaderParts
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness


def test_trouble_becomes_a_reason_and_is_sent(tmp_path: Path) -> None:
    """With the next tick, to every other member."""
    fitness, sent = LeaderFitness(NodeId(1)), list[Any]()
    driver = SimpleNamespace(
        lock=threading.RLock(), failure=None, views=dict, ask_groups=lambda request: request(SimpleNamespace(cores={}))
    )
    leadership = SimpleNamespace(node=NodeId(1), leader=NodeId(2), standing=Standing.FOLLOWING)
    ground = SimpleNamespace(node=1)
    roll = SimpleNamespace(members=[SimpleNamespace(node=node) for node in (1, 2, 3)], url_of=lambda node: f"node{node}")
    troubles = PartitionHealth(str(tmp_path))
    sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=None), replicated=SimpleNamespace(suspended=False))
    nothing: Any = SimpleNamespace()
    desk = SimpleNamespace(troubles=troubles, broken=print)
    sites = SimpleNamespace(stalls=lambda _now: [])
    peers = [SimpleNamespace(node=2, met_later=False)]
    network = SimpleNamespace(send=sent.extend, status=lambda: SimpleNamespace(peers=peers))
    given: tuple[Any, ...] = (
        ground, roll, driver, leadership, fitness, SimpleNamespace(partitions=[0, 1]), nothing, sequencer, nothing, desk, sites,
        nothing, network, lambda: False, RunningWork(),
    )  # fmt: skip
    parts = LeaderParts(LeaderGround(*given))
    troubles.begin_trouble([1], "diverged", "entry 7")
    parts.look_at_fitness()
    parts.look_at_commits()
    assert fitness.own == Unfitness.DIVERGED
    parts.note_ticks(1)
    assert [parcel.receiver for parcel in sent] == [2, 3]
    fitness.take_fitness(Fitness(NodeId(2), NodeId(1), NO_TERM, int(Unfitness.STOPPING)))
    parts.meet_peer(NodeId(2))
    parts.note_ticks(1)
    assert fitness.of_peer(NodeId(2)) == FIT
    assert [parcel.receiver for parcel in sent[2:]] == [2, 3]
    troubles.end_divergence(1)
    parts.look_at_lineage()
    parts.look_at_fitness()
    assert fitness.own == FIT
    peers[0].met_later = True
    parts.look_at_lineage()
    assert fitness.own == Unfitness.DIVERGED
