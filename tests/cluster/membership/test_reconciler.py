"""The reconciler of a leader that is its own majority: one step at a time, from replicated state alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.membership.member_requests import MemberRequest
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RefusedBecause
from cmdlog.cluster.membership.reconciler import QUIET_TICKS, Reconciler, ReconcilerGround
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId
from tests.cluster.membership.plan_model import LIVES, member_of
from tests.raft.cluster import lead, solo
from tests.wal.faultkit import CLUSTER, node
from tests.wal.sim.simfiles import SimFiles

ME = NodeId(1)
NEW = b"new disk"
ADD = MemberRequest("add", 4, "127.0.0.1:7004", "http://127.0.0.1:8004")


class Roll:
    """Holds what was committed."""

    def __init__(self) -> None:
        self.stated: Mapping[int, ClusterMember] = {1: member_of(1)}
        self.faults: FaultSet | None = None
        self.version = 7


class Led:
    """Node 1 votes alone in two groups; entries wait until the test commits them."""

    def __init__(self) -> None:
        self.lock, self.failure, self.leads = threading.RLock(), None, True
        self.roll, self.groups = Roll(), RaftGroups(ME)
        for group in (0, CLUSTER_GROUP):
            self.groups.add(PartitionId(group), lead(solo(voters=(1,))))
        self.settle()
        files = SimFiles()
        files.mkdir("/n")
        faults = FaultSets(FaultLog.open(files, "/n", node(1)), CLUSTER, lambda record: None)
        self.placed: list[tuple[RecordKind, Mapping[str, Any], Callable[[Any], None]]] = []
        self.given: list[NodeId] = []
        self.pinned, self.unstated = {4: NEW}, list[ClusterMember]()
        self.reconciler = Reconciler(ReconcilerGround(
            self, self.groups, self.roll, faults, LeaderFitness(ME), lambda: self.leads, lambda: "http://node2",  # type: ignore[arg-type]
            lambda: self.unstated, lambda: self.pinned, lambda *entry: self.placed.append(entry), self.given.append, 300,
        ))  # fmt: skip

    def ask(self, group: int, request: Callable[[Any], Any]) -> Any:
        return self.groups.ask(PartitionId(group), request)

    def wake(self) -> None:
        """As the driver does."""

    def settle(self) -> None:
        """Everything is written."""
        while (round_ := self.groups.collect()) is not None:
            self.groups.durable(round_.number)

    def commit(self) -> MemberStage:
        """The entry on its way."""
        ((kind, value, done),) = self.placed
        self.placed.clear()
        assert kind is RecordKind.MEMBER
        member = ClusterMember.from_json(value)
        self.roll.stated = {**self.roll.stated, member.node: member}
        self.roll.version += 1
        done(None)
        return member.stage

    def step(self) -> None:
        self.reconciler.note_ticks(QUIET_TICKS)
        self.settle()

    def seats(self) -> list[tuple[int, ...]]:
        return [core.configuration.learners for core in self.groups.cores.values()]


@pytest.fixture
def led() -> Led:
    """A leader with nothing to do."""
    return Led()


def requested(led: Led, request: MemberRequest, **options: Any) -> dict[str, Any]:
    """The answer; the entry is committed meanwhile."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: found.append(led.reconciler.request_change(request, **{"base": None, "plan": False, **options}))
    )
    thread.start()
    while thread.is_alive():
        with led.lock:
            if led.placed:
                led.commit()
        thread.join(0.001)
    return found[0]


def refused(led: Led, request: MemberRequest, **options: Any) -> RefusedBecause:
    """The code."""
    with pytest.raises(MembershipRefused) as caught:
        led.reconciler.request_change(request, **{"base": None, "plan": False, **options})
    return caught.value.code


def test_a_disk_that_joins_becomes_a_learner_and_is_admitted_with_the_places(led: Led) -> None:
    """One entry at a time: nothing else happens while it is on its way."""
    led.roll.stated = {**led.roll.stated, 4: member_of(4, MemberStage.JOINING, NEW)}
    led.step()
    assert led.seats() == [(4,), (4,)]
    led.step()
    led.step()
    assert len(led.placed) == 1
    assert led.commit() is MemberStage.ADMITTED
    assert set(led.roll.stated[4].admitted) == {0, CLUSTER_GROUP}
    led.step()
    assert led.reconciler.why_waiting() == "node 4 has not caught up"


def test_a_disk_waits_for_its_pin(led: Led) -> None:
    """The book is written in another thread."""
    led.roll.stated = {**led.roll.stated, 4: member_of(4, MemberStage.JOINING, NEW)}
    led.pinned = {4: LIVES[4]}
    led.step()
    assert led.seats() == [(), ()]
    led.pinned = {4: NEW}
    led.step()
    assert led.seats() == [(4,), (4,)]


def test_the_next_leader_continues(led: Led) -> None:
    """A node that does not lead does nothing; an entry that was lost is stated again."""
    led.roll.stated = {**led.roll.stated, 4: member_of(4, MemberStage.JOINING, NEW)}
    led.leads = False
    led.step()
    assert led.seats() == [(), ()]
    led.leads = True
    led.step()
    led.step()
    ((_, value, done),) = led.placed
    led.placed.clear()
    done(RuntimeError("this node leads no more"))
    led.step()
    assert [entry[1] for entry in led.placed] == [value]


def test_a_request_is_answered_when_its_entry_is_committed(led: Led) -> None:
    """Then it is done already; a plan changes nothing."""
    assert led.reconciler.request_change(ADD, base=None, plan=True)["state"] == ""
    told = requested(led, ADD, base=7)
    assert (told["state"], told["version"], told["already"]) == ("expected", 8, False)
    assert requested(led, ADD, base=7)["already"]  # whatever it was made for: it is done


def test_a_request_for_another_state_is_refused_as_that(led: Led) -> None:
    """Whatever else speaks against it."""
    assert refused(led, ADD, base=6) is RefusedBecause.STALE_BASE
    assert refused(led, MemberRequest("remove", 1), base=6) is RefusedBecause.STALE_BASE
    assert refused(led, MemberRequest("remove", 1), base=7) is RefusedBecause.LAST_VOTER
    led.leads = False
    assert refused(led, ADD) is RefusedBecause.NOT_LEADING
    assert led.placed == []


def test_an_entry_without_a_majority_has_an_unknown_outcome(led: Led) -> None:
    """Leadership is lost while it is on its way."""
    found: list[RefusedBecause] = []
    thread = threading.Thread(target=lambda: found.append(refused(led, ADD)))
    thread.start()
    while not led.placed:
        thread.join(0.001)
    led.placed.pop()[2](RuntimeError("this node leads no more"))
    thread.join()
    assert found == [RefusedBecause.UNKNOWN_OUTCOME]


def test_a_wish_is_answered_at_once(led: Led) -> None:
    """Its entry is placed; until that is committed the disk asks again."""
    wish = CopyWish(4, NEW, b"", "it is new", "", "")
    requested(led, ADD)
    assert led.reconciler.take_wish(wish).refusal is None
    assert led.reconciler.take_wish(wish).refusal is WishRefusal.BUSY
    assert led.commit() is MemberStage.JOINING
    led.leads = False
    assert led.reconciler.take_wish(wish).refusal is WishRefusal.NOT_LEADING


def test_a_first_member_is_one_before_the_log_states_it(led: Led) -> None:
    """The leader has met it, and its entry is on its way."""
    led.roll.stated = {}
    assert refused(led, MemberRequest("remove", 1)) is RefusedBecause.UNKNOWN_NODE
    led.unstated = [member_of(1)]
    assert refused(led, MemberRequest("remove", 1)) is RefusedBecause.LAST_VOTER


def test_leadership_that_is_asked_for_is_given(led: Led) -> None:
    """By the part that transfers it; a leader that leaves alone in the world keeps it."""
    led.roll.stated = {1: member_of(1, MemberStage.LEAVING)}
    led.step()
    assert led.given == []
    assert refused(led, MemberRequest("transfer", 9)) is RefusedBecause.UNKNOWN_NODE
