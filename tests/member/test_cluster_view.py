"""What a member says of its cluster: plain data, lags in entries and seconds, also before it speaks with anybody."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.transport.peer_transport import LinkStatus
from cmdlog.member.cluster_view import LIVE_S, LOOK_AHEAD_MAX, ClusterView, first_call_s
from cmdlog.member.leading.leadership import Standing
from cmdlog.member.member_ground import MemberState
from cmdlog.node.outcome import NoMajority
from cmdlog.node.telemetry.role_history import RoleHistory
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Executed
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId, Term, make_txn_id
from tests.raft.cluster import Cluster

NOW_S = 1000.0
TICK_S = 0.5


def called(index: int, at_s: float) -> bytes:
    """A batch of one call that the leader's clock gave this time."""
    txn = make_txn_id(millis=int(at_s * 1000), counter=0, partition=0)
    return encode_batch(partition=0, term=1, index=index, catalog=1, txn_ids=[txn], procedures=[0], params=[b"[]"])


def a_link(node: int, *, met_later: bool = False) -> LinkStatus:
    """With a peer that is connected."""
    counts = dict.fromkeys((of.name for of in fields(LinkStatus)), cast(Any, 0))
    return LinkStatus(**{**counts, "node": NodeId(node), "met_later": met_later, "last_error": ""})


class Seen:
    """Partition 0 of a cluster of three, as one of its nodes shows it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.applied = 0
        self.marks = ExecutedMarks([0], diverged=lambda *_: None)

    def view(
        self,
        node: int = 1,
        *,
        leader: int | None = 1,
        group: int = 0,
        speaks: bool = True,
        standing: Standing = Standing.FOLLOWING,
        peers: Sequence[object] = (),
        suspension: object = None,
    ) -> ClusterView:
        members = (MemberAddress(1, ("127.0.0.1", 7000), "http://one"),)
        history = RoleHistory(NodeId(node), wall=lambda: NOW_S)
        consensus: Any = SimpleNamespace(
            ground=SimpleNamespace(node=node, tick_s=TICK_S), node=NodeId(node), marks=self.marks,
            roll=SimpleNamespace(members=members, url_of=lambda _: members[0].client),
            groups=SimpleNamespace(cores={group: self.cluster.core(node)}), driver=SimpleNamespace(lock=threading.RLock()),
            peers=lambda: peers, fitness=LeaderFitness(NodeId(node)),
        )  # fmt: skip
        leadership: Any = SimpleNamespace(leader=leader, standing=standing, history=history)
        admission: Any = SimpleNamespace(suspension=suspension)
        return ClusterView(
            consensus, leadership, admission, applied=lambda: {0: self.applied}, speaks=lambda: speaks,
            parts=lambda: {"forwarding": {"sent": 1}, "version": 9}, wall=lambda: NOW_S,
        )  # fmt: skip

    def group(self, node: int = 1, *, group: int = 0) -> dict[str, Any]:
        told = self.view(node, group=group).status()
        orjson.dumps(told)
        found: dict[str, Any] = told["groups"][str(group)]
        return found


@pytest.mark.parametrize(
    ("leader", "speaks", "state"),
    [(None, True, MemberState.CONFIGURING), (2, False, MemberState.CONFIGURING), (2, True, MemberState.RUNNING)],
)
def test_state_needs_a_leader_and_a_voice(leader: int | None, speaks: bool, state: MemberState) -> None:
    """A node runs when it takes part and knows who leads."""
    view = Seen().view(leader=leader, speaks=speaks)
    assert view.member_state() is state
    told = view.status()
    assert (told["state"], told["node"], told["standing"], told["leader"]) == (state.value, 1, "following", leader)
    assert (told["version"], told["unfit"], told["forwarding"]) == (9, [], {"sent": 1})
    assert (told["diverged"], told["peers"], told["elections"]) == ({}, [], {})


@pytest.mark.parametrize(
    ("node", "leader", "standing", "ready"),
    [
        (1, 1, Standing.LEADING, {"serves": True, "state": "running", "role": "leader"}),
        (1, 1, Standing.TAKING_OVER, {"serves": False, "state": "running", "role": "leader"}),
        (1, 1, Standing.FOLLOWING, {"serves": False, "state": "running", "role": "leader"}),
        (2, 1, Standing.FOLLOWING, {"serves": True, "state": "running", "role": "follower"}),
        (2, None, Standing.FOLLOWING, {"serves": False, "state": "configuring", "role": "follower"}),
    ],
)
def test_member_serves_as_leader_or_follower_and_says_why_not(
    node: int, leader: int | None, standing: Standing, ready: dict[str, Any]
) -> None:
    """A follower's calls are its leader's; a leader serves when it has taken over, and nobody without a leader."""
    found = Seen().view(node, leader=leader, standing=standing).readiness()
    assert {name: getattr(found, name) for name in ready} == ready
    assert bool(found.why) is not found.serves
    assert found.shown().get("leader") == (None if leader is None else "http://one")


@pytest.mark.parametrize("leader", [None, 2])
def test_a_node_on_an_older_disk_says_so(leader: int | None) -> None:
    """Whether or not it knows a leader, with who has met a later start of it."""
    told = Seen().view(node=1, leader=leader, peers=[a_link(3), a_link(2, met_later=True)]).status()
    assert (told["state"], told["went_back"]) == ("diverged", [2])


def test_leader_whose_calls_no_majority_takes_says_so() -> None:
    """It leads, and takes no calls."""
    found = Seen().view(standing=Standing.LEADING, suspension=NoMajority("node 2 has no room")).readiness()
    assert (found.serves, found.role, found.why) == (False, "leader", "node 2 has no room")


def test_member_without_a_leader_says_why_it_reaches_no_peer() -> None:
    """A peer that it is connected with is no reason."""
    apart = SimpleNamespace(node=2, address="127.0.0.1:7002", connected_since_s=None, last_error="the peer hung up")
    found = Seen().view(leader=None, peers=[apart, SimpleNamespace(connected_since_s=3.0, last_error="before")]).readiness()
    assert found.why.startswith("it knows no leader: ")
    assert found.why.endswith("; node 2 at 127.0.0.1:7002: the peer hung up")


def test_leader_shows_what_a_silent_peer_lacks_and_since_when() -> None:
    """In entries, and as the age of the oldest call that it has not on disk."""
    seen = Seen()
    leader = seen.cluster.elect(1)
    seen.cluster.cut(3)
    for index, at_s in ((2, 990.0), (3, 999.0)):
        leader.propose([called(index, at_s)])
    seen.cluster.tick(2)
    seen.applied = 2
    group = seen.group()
    assert (group["role"], group["term"], group["last"], group["commit"], group["applied"]) == ("leader", 1, 3, 3, 2)
    assert (group["lag_entries"], group["lag_s"]) == (1, 1.0)
    level, behind = group["peers"]
    assert (level["node"], level["match"], level["lag_entries"], level["lag_s"], level["sending"]) == (2, 3, 0, None, "replicate")
    assert (behind["node"], behind["match"], behind["lag_entries"], behind["lag_s"]) == (3, 1, 2, 10.0)
    assert behind["silent_s"] == 2 * TICK_S


def test_follower_lags_by_what_it_knows_that_the_leader_committed() -> None:
    """Entries that it has not run, and those that it has not got: the marks of the leader name them."""
    seen = Seen()
    leader = seen.cluster.elect(1)
    leader.propose([called(2, 996.0)])
    seen.cluster.tick()
    seen.applied = 1
    assert seen.group(2)["lag_entries"] == 1
    row = Executed(NodeId(1), NodeId(2), Term(0), [PartitionId(0)], [Term(1)], [Index(4)], [Index(5)], [0])
    assert seen.marks.take_marks(row, {0: (1, NodeId(1))}) == [0]
    group = seen.group(2)
    assert (group["role"], group["peers"], group["last"], group["lag_entries"], group["lag_s"]) == ("follower", [], 5, 4, 4.0)


def test_cluster_group_has_applied_what_was_handed_out() -> None:
    """No site runs its entries."""
    seen = Seen()
    seen.cluster.elect(1)
    group = seen.group(group=CLUSTER_GROUP)
    assert (group["applied"], group["lag_entries"], group["lag_s"]) == (1, 0, None)


def test_group_that_has_ended_is_empty() -> None:
    """It may end between two questions."""
    view = Seen().view()
    view._consensus.groups.cores[PartitionId(0)] = cast(Any, None)
    assert view._group(PartitionId(0), {}) == {}


def test_time_of_the_first_call_passes_over_entries_without_one() -> None:
    """Empty entries and skips have no time; what is not in memory has none either."""
    leader = Cluster().elect(1)
    assert first_call_s(leader.log, 0) is None
    leader.propose([called(2, 5.0)])
    assert first_call_s(leader.log, 0) == 5.0
    assert first_call_s(leader.log, 2) is None
    leader.propose([b"no record"] * LOOK_AHEAD_MAX)
    leader.propose([called(3 + LOOK_AHEAD_MAX, 6.0)])
    assert first_call_s(leader.log, 2) is None
    assert first_call_s(leader.log, 3) == 6.0


def test_ends_and_seats_are_those_of_consensus() -> None:
    """What a recovery without a majority compares, and who votes."""
    seen = Seen()
    seen.cluster.elect(1)
    group = seen.group()
    core = seen.cluster.core(1)
    assert group["end"] == [core.log.last_term, core.log.last]
    assert (group["voters"], group["learners"]) == ([1, 2, 3], [])


def test_whole_copies_are_those_that_answer_and_hold_all() -> None:
    """As the leader knows: a node that fell silent counts no more, one that lags never did; a follower knows nothing."""
    seen = Seen()
    seen.cluster.elect(1)
    assert seen.group()["whole"] == [1, 2, 3]
    assert seen.group(2)["whole"] == []
    seen.cluster.passes = lambda message: message.receiver != 3
    seen.cluster.core(1).propose([called(2, 5.0)])
    seen.cluster.settle()
    assert seen.group()["whole"] == [1, 2]
    silent = Seen()
    silent.cluster.elect(1)
    silent.cluster.cut(3)
    silent.cluster.tick_one(1, int(LIVE_S / TICK_S))
    assert silent.group()["whole"] == [1, 2, 3]
    silent.cluster.tick_one(1, 2)
    assert silent.group()["whole"] == [1, 2]
