"""A leader whose entries no majority takes: when calls are refused, what is said, who is answered, and when that ends."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.leader_fitness import LeaderFitness, Unfitness
from cmdlog.member.leading.commit_checks import GIVE_UP_S, LATE_S, CommitChecks
from cmdlog.member.leading.leadership import Standing
from cmdlog.node.outcome import CallRefused, NoMajority
from cmdlog.raft.configuration import Configuration, NodeId, nodes
from cmdlog.raft.messages import NO_TERM, Fitness
from cmdlog.wal.ids import CLUSTER_GROUP

US = NodeId(1)


class Leader:
    """Node 1, which leads; the test says what followers confirm and say."""

    def __init__(self, **configuration: Any) -> None:
        self.leadership = SimpleNamespace(standing=Standing.LEADING)
        self.fitness = LeaderFitness(US)
        self.configuration = Configuration(**(configuration or {"voters": nodes({1, 2, 3})}))
        others = {*self.configuration.members()} - {US}
        self.live, self.progress = {US, *others}, {node: SimpleNamespace(match=7) for node in others}
        self.waited_s, self.refusal, self.given_up = 0.0, None, list[tuple[float, str]]()
        self.deposed_by_asking = False
        driver = SimpleNamespace(lock=threading.RLock(), failure=None, ask_groups=self._ask)
        self.checks = CommitChecks(driver, self.leadership, self.fitness, self)  # type: ignore[arg-type]

    def _ask(self, request: Any) -> Any:
        core = SimpleNamespace(
            id=US, leader=US, configuration=self.configuration, live=lambda: self.live, progress=self.progress,
            log=SimpleNamespace(last=9),
        )  # fmt: skip
        if self.deposed_by_asking:
            self.leadership.standing = Standing.FOLLOWING
        return request(SimpleNamespace(cores={CLUSTER_GROUP: core}))

    def say_full(self, *peers: int) -> None:
        for peer in peers:
            self.fitness.take_fitness(Fitness(NodeId(peer), US, NO_TERM, int(Unfitness.LOG_FULL)))

    def look(self, waited_s: float) -> str:
        """What calls are refused with after a look; "" when they are taken."""
        self.waited_s = waited_s
        self.checks.check_commits()
        return str(self.refusal or "")

    # -- `ReplicatedPipelines` -----------------------------------------------------------------------------------------------

    @property
    def uncommitted_s(self) -> float:
        return self.waited_s

    @property
    def suspended(self) -> bool:
        return self.refusal is not None

    refusal: CallRefused | None

    def suspend_calls(self, refusal: CallRefused | None) -> None:
        self.refusal = refusal

    def give_up_uncommitted(self, older_than_s: float, why: str) -> int:
        self.given_up.append((older_than_s, why))
        return int(self.waited_s >= older_than_s)


@pytest.fixture
def leader() -> Leader:
    """Of three nodes."""
    return Leader()


def test_calls_are_taken_while_commits_come(leader: Leader) -> None:
    """Also when followers say that they are full: the last entry may have found room."""
    leader.say_full(2, 3)
    assert leader.look(LATE_S / 2) == ""
    assert not leader.given_up


def test_full_followers_refuse_calls_soon_and_answer_those_that_are_logged_later(leader: Leader) -> None:
    """Calls that nobody can commit are not logged in the first place."""
    leader.say_full(2, 3)
    refused = leader.look(LATE_S)
    assert isinstance(leader.refusal, NoMajority)
    assert leader.refusal.code == "no_quorum"
    assert "no room in the log or on the volume of node 2 and node 3: make room there" in refused
    assert leader.given_up == [(GIVE_UP_S, leader.given_up[0][1])]
    assert "not committed yet: no room" in leader.given_up[0][1]


def test_slow_followers_have_time(leader: Leader) -> None:
    """One that can commit may be slow; after its time calls are refused all the same, and each is named."""
    leader.say_full(2)
    assert leader.look(GIVE_UP_S - 0.1) == ""
    refused = leader.look(GIVE_UP_S)
    assert "no room in the log or on the volume of node 2:" in refused
    assert "no confirmation from node 3, which answers:" in refused


def test_a_silent_follower_is_no_majority_with_a_full_one(leader: Leader) -> None:
    """Each is named with its own reason."""
    leader.say_full(2)
    leader.live -= {NodeId(3)}
    refused = leader.look(LATE_S)
    assert "no room in the log or on the volume of node 2:" in refused
    assert "no answer from node 3: start it" in refused


def test_who_has_confirmed_everything_is_not_named(leader: Leader) -> None:
    """Full or not: it is not what the call waits for."""
    leader.say_full(2, 3)
    leader.progress[NodeId(2)].match = 9
    assert "node 2" not in leader.look(LATE_S)


def test_learners_are_not_asked() -> None:
    """They confirm nothing that counts."""
    leader = Leader(voters=nodes({1, 2}), learners=nodes({3}))
    leader.say_full(3)
    assert leader.look(LATE_S) == ""
    assert "node 3" not in leader.look(GIVE_UP_S)


def test_both_halves_of_a_joint_configuration_must_have_room() -> None:
    """A majority of the new voters is not enough."""
    leader = Leader(voters=nodes({1, 2, 3}), outgoing=nodes({1, 4, 5}))
    leader.say_full(4, 5)
    assert "volume of node 4 and node 5:" in leader.look(LATE_S)


def test_calls_are_refused_until_the_last_late_entry_is_committed(leader: Leader) -> None:
    """Followers that make room take entries one by one."""
    leader.say_full(2, 3)
    leader.look(LATE_S)
    leader.say_full()
    leader.fitness.meet_peer(NodeId(2))
    leader.fitness.meet_peer(NodeId(3))
    assert "no confirmation from node 2 and node 3" in leader.look(LATE_S)
    assert leader.look(0.0) == ""


def test_a_node_that_does_not_lead_leaves_refusals_to_others(leader: Leader) -> None:
    """Its entries are the next leader's."""
    leader.say_full(2, 3)
    for standing in (Standing.FOLLOWING, Standing.TAKING_OVER):
        leader.leadership.standing = standing
        assert leader.look(GIVE_UP_S) == ""
    assert not leader.given_up


def test_leadership_that_ends_with_the_look_is_not_refused_for(leader: Leader) -> None:
    """What follows from a request may be that another node leads: calls are refused for that then."""
    leader.say_full(2, 3)
    leader.deposed_by_asking = True
    assert leader.look(GIVE_UP_S) == ""
    assert not leader.given_up
