"""Many groups of one node: one round of writes, bundled heartbeats, and groups that end alone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

import pytest

from cmdlog.raft import (
    Configuration,
    Drop,
    HardState,
    InvariantBroken,
    RaftCore,
    RaftSettings,
    Restored,
    Role,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import NodeId, nodes
from cmdlog.raft.messages import (
    Append,
    AppendReply,
    Bundle,
    Campaign,
    Heartbeat,
    HeartbeatBundle,
    HeartbeatReplyBundle,
    InstallSnapshot,
    VoteRequest,
)
from cmdlog.raft.multi_raft import GroupId, Parcel, RaftGroups, Round
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import column

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def a_core(node: NodeId, group: int, *, voters: Iterable[int] = (1, 2, 3), hard: HardState | None = None) -> RaftCore:
    """A node of a new group."""
    restored = Restored(hard or HardState(), SnapshotDescriptor(configuration=Configuration(voters=nodes(voters))))
    return RaftCore(node, rng=random.Random(f"{node}/{group}"), settings=RaftSettings(), restored=restored)


class Network:
    """Three nodes with the same groups; writes are durable at once, parcels arrive in the order in which they were sent."""

    def __init__(self, groups: int) -> None:
        self.nodes = {node: RaftGroups(node) for node in (A, B, C)}
        self.rounds: list[Round] = []
        self.wire: deque[tuple[NodeId, Parcel]] = deque()
        self.applied: dict[tuple[NodeId, int], list[bytes]] = {}
        for node, own in self.nodes.items():
            for group in reversed(range(groups)):
                own.add(GroupId(group), a_core(node, group))

    def settle(self) -> None:
        """Runs until nobody has anything to do or to say."""
        busy = True
        while busy:
            busy = sum(self._take(node, own) for node, own in self.nodes.items()) > 0
            while self.wire:
                _, parcel = self.wire.popleft()
                for group, message in parcel.messages:
                    self.nodes[parcel.receiver].step(group, message)
                for bundle in parcel.bundles:
                    self.nodes[parcel.receiver].take_heartbeats(bundle)

    def _take(self, node: NodeId, own: RaftGroups) -> bool:
        taken = own.collect()
        if taken is None:
            return False
        self.rounds.append(taken)
        for group, _, ready in taken.taken:
            if ready.committed is not None:
                self.applied.setdefault((node, group), []).extend(filter(None, ready.committed.payloads))
        self.wire += [(node, parcel) for parcel in [*taken.send_now, *own.durable(taken.number)]]
        return True

    def elect(self, groups: int) -> None:
        """Makes A the leader of every group."""
        for group in range(groups):
            core = self.nodes[A].cores[GroupId(group)]
            core.elapsed = core.timeout - 1
        self.nodes[A].tick()
        self.settle()


def parts(parcels: list[Parcel], kind: type[Bundle]) -> list[Bundle]:
    """The bundles of one kind."""
    return [bundle for parcel in parcels for bundle in parcel.bundles if isinstance(bundle, kind)]


def test_one_round_has_the_records_of_all_groups_in_order() -> None:
    """One block, one sync, whatever the number of groups."""
    network = Network(5)
    network.elect(5)
    network.rounds.clear()
    for group in range(5):
        network.nodes[A].ask(GroupId(group), lambda core: core.propose([b"x"]))
    network.settle()
    first = network.rounds[0]
    assert [group for group, _, ready in first.taken if ready.completion is not None] == [0, 1, 2, 3, 4]
    assert [parcel.receiver for parcel in first.send_now] == [B, C]
    assert all(group in range(5) and isinstance(message, Append) for group, message in first.send_now[0].messages)
    network.nodes[A].tick()
    network.settle()
    assert {tuple(payloads) for payloads in network.applied.values()} == {(b"x",)}
    assert len(network.applied) == 15


def test_heartbeats_and_their_answers_are_one_bundle_per_peer() -> None:
    """A tick of many groups is one message per peer."""
    network = Network(40)
    network.elect(40)
    network.nodes[A].tick()
    sent = network.nodes[A].collect()
    assert sent is not None
    beats = parts(sent.send_now, HeartbeatBundle)
    assert [(bundle.receiver, list(bundle.groups)) for bundle in beats] == [(B, list(range(40))), (C, list(range(40)))]
    assert not any(parcel.messages for parcel in sent.send_now)
    network.nodes[B].take_heartbeats(beats[0])
    answered = network.nodes[B].collect()
    assert answered is not None
    (answer,) = parts(answered.send_now, HeartbeatReplyBundle)
    assert (answer.receiver, list(answer.groups)) == (A, list(range(40)))
    before = network.nodes[A].cores[GroupId(7)].progress[B].acked_round
    network.nodes[A].take_heartbeats(answer)
    assert network.nodes[A].cores[GroupId(7)].progress[B].acked_round == before + 1


def test_nothing_leaves_before_its_round_and_all_before_it_are_durable() -> None:
    """Also what belongs to a round that wrote nothing itself."""
    own = RaftGroups(A)
    own.add(GroupId(0), a_core(A, 0))
    term = Term(1)
    append = Append(B, A, term, Term(0), Index(0), column(1, 1))
    own.step(GroupId(0), append)
    first = own.collect()
    own.step(GroupId(0), append)  # a duplicate: acknowledged again, nothing to write
    second = own.collect()
    assert first is not None
    assert second is not None
    assert [[ready.completion is not None for _, _, ready in round_.taken] for round_ in (first, second)] == [[True], [False]]
    assert first.send_now == second.send_now == []
    assert own.durable(0) == []
    (parcel,) = own.durable(second.number)
    assert [type(message) for _, message in parcel.messages] == [AppendReply] * 2
    assert own.durable(second.number) == []


def test_reads_and_copies_come_out_with_their_group() -> None:
    """A round says whose they are."""
    network = Network(2)
    network.elect(2)
    network.nodes[A].ask(GroupId(1), lambda core: core.read_index(5))
    network.settle()
    assert [(group, read.context) for each in network.rounds for group, _, ready in each.taken for read in ready.reads] == [
        (1, 5)
    ]
    manifest = SnapshotDescriptor(Index(9), Term(1), Configuration(voters=nodes((1, 2, 3))))
    own = network.nodes[B]
    own.step(GroupId(1), InstallSnapshot(A, B, own.cores[GroupId(1)].term, manifest))
    taken = own.collect()
    assert taken is not None
    assert [(group, ready.copy) for group, _, ready in taken.taken] == [(1, manifest)]


def _break(core: RaftCore) -> None:
    """Makes every further term an impossible one: what a bug of ours would look like."""
    core.term = Term(99)
    core.become_follower(Term(1), None)


def test_a_broken_group_ends_alone() -> None:
    """It is named with its reason, says nothing any more, and the others go on."""
    network = Network(3)
    own = network.nodes[A]
    with pytest.raises(InvariantBroken):
        own.ask(GroupId(1), _break)
    assert (list(own.cores), list(own.failed)) == ([0, 2], [1])
    own.step(GroupId(1), Heartbeat(B, A, Term(1), Index(0), 0))
    assert own.drops == {Drop.STOPPED: 1}
    with pytest.raises(KeyError):
        own.ask(GroupId(1), lambda core: core.propose([b"x"]))


@pytest.mark.parametrize("moment", ["tick", "step", "collect", "durable"])
def test_a_group_may_break_at_any_moment(moment: str) -> None:
    """Wherever it is noticed, the node goes on with the other groups."""
    own = RaftGroups(A)
    for group in (0, 1):
        own.add(GroupId(group), a_core(A, group, voters=(1,)))
    broken = own.cores[GroupId(0)]
    for core in own.cores.values():
        core.elapsed = core.timeout
    own.tick()
    taken = own.collect()
    assert taken is not None
    broken.broken("planted", "by the test")
    if moment == "tick":
        own.tick()
    elif moment == "step":
        own.step(GroupId(0), Heartbeat(B, A, Term(1), Index(0), 0))
    elif moment == "collect":
        own.collect()
    own.durable(taken.number)
    assert (list(own.cores), list(own.failed)) == ([1], [0])
    assert own.cores[GroupId(1)].role is Role.LEADER


def test_a_group_is_added_once_and_only_to_its_node() -> None:
    """A mistake of the caller, told before anything happens."""
    own = RaftGroups(A)
    own.add(GroupId(0), a_core(A, 0))
    for core in (a_core(A, 0), a_core(B, 1)):
        with pytest.raises(ValueError, match="is here already"):
            own.add(GroupId(0 if core.id == A else 1), core)


def test_quiet_groups_want_nothing() -> None:
    """No round, no write, no message."""
    own = RaftGroups(A)
    own.add(GroupId(0), a_core(A, 0))
    assert own.collect() is None
    own.tick()
    assert own.collect() is None


def test_touched_groups_are_those_that_may_have_changed() -> None:
    """A group that rests is not among them; one that votes or ends is, once."""
    own = RaftGroups(A)
    for number in range(3):
        own.add(GroupId(number), a_core(A, number))
    assert own.collect() is None
    assert own.take_touched() == {0, 1, 2}
    assert own.take_touched() == set()
    own.tick()
    own.step(GroupId(1), VoteRequest(B, A, Term(1), Campaign.REAL, Index(0), Term(0)))
    own.collect()
    with pytest.raises(InvariantBroken):
        own.ask(GroupId(2), lambda core: core.become_follower(Term(core.term - 1), None))
    assert own.take_touched() == {1, 2}
    assert own.take_touched() == set()


def test_a_round_is_bounded_in_bytes_and_groups_take_turns() -> None:
    """Groups without room in a round send all the same, and the next round begins with them; nothing of any group is lost."""
    network = Network(4)
    network.elect(4)
    leading = network.nodes[A]
    leading.round_bytes_max = 100
    for group in range(4):
        leading.ask(GroupId(group), lambda core: core.propose([b"x" * 40] * 3))
    rounds = []
    while (taken := leading.collect()) is not None:
        rounds.append(taken)
    first = rounds[0]
    assert {group for group, _ in first.send_now[0].messages} == {0, 1, 2, 3}
    written = [{group: len(of.entries) for group, _, of in each.taken if of.entries is not None} for each in rounds]
    assert written == [{0: 2, 1: 1}, {2: 2, 3: 1}, {0: 1, 1: 1, 2: 1}, {1: 1, 3: 2}]
    for each in rounds:
        leading.durable(each.number)
    assert all(core.log.stable == core.log.last for core in leading.cores.values())


def test_a_follower_whose_disk_stalls_takes_no_more_entries_of_any_group() -> None:
    """Memory is bounded over all groups; votes and heartbeats are still taken."""
    network = Network(3)
    network.elect(3)
    leading, following = network.nodes[A], network.nodes[B]
    following.undurable_bytes_max = 100
    leading.ask(GroupId(0), lambda core: core.propose([b"x" * 120]))
    taken = leading.collect()
    assert taken is not None
    (append,) = (message for parcel in taken.send_now if parcel.receiver == B for _, message in parcel.messages)
    following.step(GroupId(0), append)
    writing = following.collect()
    assert writing is not None
    assert following.undurable_bytes == 120
    term = following.cores[GroupId(1)].term
    following.step(GroupId(1), Append(A, B, term, term, Index(1), column(2, term)))
    following.step(GroupId(1), Append(A, B, term, term, Index(1), column(2)))
    following.step(GroupId(1), Heartbeat(A, B, term, Index(1), 5))
    assert following.drops == {Drop.NO_ROOM: 1}
    assert following.cores[GroupId(1)].log.last == 1
    following.durable(writing.number)
    leading.durable(taken.number)
    assert (leading.undurable_bytes, following.undurable_bytes) == (0, 0)
