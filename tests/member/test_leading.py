"""The parts of a member that lead know each other: a look at the node becomes a reason, and a tick reaches everybody."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cmdlog.cluster.leader_fitness import FIT, LeaderFitness, Unfitness
from cmdlog.member.leading.leading import make_leading
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.sites.site_progress import SiteStall
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import NO_TERM, Fitness


def test_trouble_becomes_a_reason_and_is_sent(tmp_path: Path) -> None:
    """With the next tick, to every other member."""
    fitness, sent = LeaderFitness(NodeId(1)), list[Any]()
    driver = SimpleNamespace(
        lock=threading.RLock(),
        failure=None,
        watch=lambda _watcher: None,
        views=dict,
        ask_groups=lambda request: request(SimpleNamespace(cores={})),
    )
    roll = SimpleNamespace(members=[SimpleNamespace(node=node) for node in (1, 2, 3)], url_of=lambda node: f"node{node}")
    troubles = PartitionHealth(str(tmp_path))
    sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=None), replicated=SimpleNamespace(suspended=False))
    nothing: Any = SimpleNamespace()
    desk = SimpleNamespace(troubles=troubles, broken=print, changes=nothing)
    stalls = list[SiteStall]()
    sites, wal = SimpleNamespace(stalls=lambda _now: stalls), SimpleNamespace(room_bytes=2, disk_full=None)
    peers = [SimpleNamespace(node=2, met_later=False)]
    network = SimpleNamespace(send=sent.extend, status=lambda: SimpleNamespace(peers=peers))
    consensus: Any = SimpleNamespace(
        node=NodeId(1), roll=roll, driver=driver, fitness=fitness, machine=SimpleNamespace(partitions=[0, 1]), network=network,
        marks=nothing, peers=lambda: peers, missing_members=list,
    )  # fmt: skip
    node: Any = SimpleNamespace(desk=desk, sites=sites, sequencer=sequencer, keys=())
    ground: Any = SimpleNamespace(
        directory="", work=RunningWork(), settings=SimpleNamespace(call_bytes_max=1, partitions=2), wal=wal
    )
    parts = make_leading(ground, node, consensus, nothing)
    troubles.begin_trouble([1], "diverged", "entry 7")
    parts.look_at_fitness()
    parts.commits.check_commits()
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
    peers[0].met_later = False
    parts.look_at_lineage()
    stalls.append(SiteStall(0, "stopped", 9.0, [0, 1]))
    wal.room_bytes = 0
    for _ in range(2):
        parts.look_at_fitness()
    assert fitness.own == Unfitness.STUCK | Unfitness.LOG_FULL
    stalls.clear()
    wal.room_bytes, wal.disk_full = 2, "no space left"
    for _ in range(2):
        parts.look_at_fitness()
    assert fitness.own == Unfitness.LOG_FULL  # type: ignore[comparison-overlap]  # it changed under the first assertion
