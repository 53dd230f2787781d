"""One thing at a time that happens to the members of a simulated cluster; each story ends with all judges."""

from __future__ import annotations

import pytest

from cmdlog.member.rejoin.rejoin_record import RejoinReason
from cmdlog.wal.format.cluster_record import MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.members.changing_cluster import ChangingCluster
from tests.cluster.sim.members.changing_run import end_and_judge
from tests.cluster.sim.members.member_faults import MemberFaults
from tests.cluster.sim.members.story_kit import (
    cluster_version,
    failed_by_logs,
    is_member,
    leader,
    leader_takes,
    peaceful_cluster,
    request,
    run_until,
    stated,
    votes_everywhere,
)
from tests.cluster.sim.members.subset_recovery import check_subsets
from tests.cluster.sim.sim_member import directory_of

pytestmark = pytest.mark.slow

COPY_STEPS = 22  # of a node that is made again, until it starts


def follower(world: ChangingCluster) -> int:
    """A node that does not lead."""
    return next(node for node in sorted(world.members) if not world.members[node].leads)


def wipe(world: ChangingCluster, node: int) -> bytes:
    """The node comes back with an empty disk; the life that is over."""
    life = stated(world)[node].incarnation
    world.wipe(node)
    world.boot(node)
    return life


def test_wiped_node_is_copied_and_votes_again() -> None:
    """Under another life; the former one is known for ever, and the failure set was declared and taken back."""
    world = peaceful_cluster()
    node = follower(world)
    life = wipe(world, node)
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    assert stated(world)[node].former == (life,)
    assert set(stated(world)[node].admitted) == {0, 1, CLUSTER_GROUP}
    run_until(world, lambda: failed_by_logs(world, world.members) == [set()] * 3)
    assert all(one.fault_log.newest.sequence == 2 for one in world.members.values() if one.fault_log.newest is not None)
    end_and_judge(world)


def test_node_of_a_former_life_is_in_the_failure_set_before_it_is_a_learner() -> None:
    """Who looks at a directory of the former life knows by then that it is one."""
    world = peaceful_cluster(2)
    node = follower(world)
    life = wipe(world, node)
    others = sorted(set(world.machines) - {node})
    run_until(world, lambda: stated(world).get(node) is not None and stated(world)[node].stage is MemberStage.ADMITTED)
    assert failed_by_logs(world, [leader(world).node]) == [{node}]
    run_until(world, lambda: is_member(world, node, life=life))
    assert len(others) == 2
    end_and_judge(world)


def test_node_with_a_damaged_log_heals_without_an_operator() -> None:
    """It shows which life its disk had, so nobody has to say that it may come back."""
    world = peaceful_cluster(3)
    node = follower(world)
    life = stated(world)[node].incarnation
    run_until(world, lambda: int(world.members[node].log.durable_block) > 8)
    world.spoil(node)
    folder = f"{directory_of(node)}/log"
    first = next(name for name in world.machines[node].files.listdir(folder) if name.startswith("seg-"))
    world.machines[node].files.overwrite(f"{folder}/{first}", 4096, bytes(600))
    world.boot(node)
    world.boot(node)
    assert world.happened["damage found"] == 1
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    assert world.happened["wish replace_needed"] == 0
    assert life in stated(world)[node].former
    assert world.machines[node].files.listdir(f"{directory_of(node)}/quarantine")
    end_and_judge(world)


def test_added_node_becomes_a_voter_everywhere() -> None:
    """By itself, once it has caught up."""
    world = peaceful_cluster(4)
    node = world.add_machine()
    assert node == 4
    request(world, "add", node)
    run_until(world, lambda: is_member(world, 4) and votes_everywhere(world, 4))
    assert stated(world)[4].former == ()
    end_and_judge(world)


def test_removed_node_is_in_no_group() -> None:
    """What it ended with is known for ever."""
    world = peaceful_cluster(5, nodes=5)
    node = follower(world)
    request(world, "remove", node)
    run_until(world, lambda: node in world.retired)
    assert stated(world)[node].stage is MemberStage.REMOVED
    assert set(stated(world)[node].ended) == {0, 1, CLUSTER_GROUP}
    for member in world.members.values():
        run_until(world, lambda: not any(node in core.configuration.members() for core in member.groups.cores.values()))  # noqa: B023
    end_and_judge(world)


def test_leading_node_that_is_removed_gives_leadership_away_first() -> None:
    """Another node finishes the change."""
    world = peaceful_cluster(6)
    node = leader(world).node
    request(world, "remove", node)
    run_until(world, lambda: node in world.retired)
    assert leader(world).node != node
    end_and_judge(world)


def test_silent_voter_is_demoted_in_every_group_and_comes_back() -> None:
    """The failure set is in the fault log of every other node, and is empty in the end."""
    world = peaceful_cluster(7)
    node = follower(world)
    others = sorted(set(world.machines) - {node})
    world.crash(node, power=False)
    run_until(world, lambda: failed_by_logs(world, others) == [{node}] * 2)
    assert not any(node in core.configuration.voters for core in leader(world).groups.cores.values())
    newest = leader(world).fault_log.newest
    assert newest is not None
    assert len(newest.demotions) == 3
    world.boot(node)
    run_until(world, lambda: is_member(world, node) and failed_by_logs(world, world.members) == [set()] * 3)
    assert leader(world).roll.stated[node].former == ()
    end_and_judge(world)


def test_second_silent_voter_keeps_its_vote() -> None:
    """Without it the others could decide nothing, and would lose what it alone may have."""
    world = peaceful_cluster(8)
    first, second = (node for node in sorted(world.members) if not world.members[node].leads)
    world.crash(first, power=False)
    run_until(world, lambda: leader(world).fault_log.failed == {first})
    world.crash(second, power=False)
    for _ in range(3000):
        world.step()
        world.check()
    assert all(member.fault_log.failed == {first} for member in world.members.values())
    world.boot(first)
    world.boot(second)
    run_until(world, lambda: is_member(world, first) and is_member(world, second))
    end_and_judge(world)


def test_one_change_at_a_time() -> None:
    """A second administrator is refused, and so is one whose picture of the members is old."""
    world = peaceful_cluster(9, nodes=5)
    base = cluster_version(world)
    one, two = sorted(node for node in world.members if not world.members[node].leads)[:2]
    request(world, "replace", one)
    run_until(world, lambda: cluster_version(world) > base)
    assert not leader_takes(world, "remove", two)
    assert world.happened["refused operation_under_way"] == 1
    assert not leader(world).request("remove", two, base=base)
    run_until(world, lambda: is_member(world, one, life=b"life%04d" % one) and one in world.members)
    assert not leader(world).request("remove", two, base=base)
    assert world.happened["refused stale_base"] >= 1
    end_and_judge(world)


def test_lives_that_are_over_stay_so() -> None:
    """A disk that comes back after two others had its place is a former life, and is made again."""
    world = peaceful_cluster(10)
    node = follower(world)
    world.crash(node, power=False)
    old = world.machines[node]
    lives = [b"life%04d" % node]
    for _ in range(2):
        world.wipe(node)
        world.boot(node)
        run_until(world, lambda: is_member(world, node, life=lives[-1]) and node in world.members and node not in world.spoiled)
        lives.append(stated(world)[node].incarnation)
    world.spoil(node)
    world.machines[node] = old
    world.boot(node)
    run_until(world, lambda: is_member(world, node, life=lives[-1]) and node in world.members and node not in world.spoiled)
    assert stated(world)[node].former[: len(lives)] == tuple(lives), "an admission that was asked for again may add one"
    end_and_judge(world)


@pytest.mark.parametrize("starts", [1, 5])
def test_old_copy_of_a_directory_is_not_heard(starts: int) -> None:
    """Nor does it vote, until it is made again from a copy; also when it has counted further than what the others have met."""
    world = peaceful_cluster(2)
    world.keeps_all = False
    node = follower(world)
    faults = MemberFaults(world)
    world.crash(node, power=False)
    world.boot(node)
    save_old(world, node)
    for _ in range(2):
        world.crash(node, power=False)
        world.boot(node)
        make_known(world, node)
    for other in world.members.values():  # so that the logs let something go
        for partition in other.machine.states:
            other.capture(partition)
    run_until(world, lambda: world.can_spare(node))
    faults._restore_old()
    assert world.happened["old copy"] == 1
    world.boot(node)
    for _ in range(starts - 1):
        world.crash(node, power=False)
        world.boot(node)
    met = max(hears(world, other, node) or 0 for other in world.members)
    assert (world.members[node].book.start.number > met) is (starts > 1)
    run_until(world, lambda: world.happened["peer refused"] > 0)
    assert world.happened["old copy heard"] == 0
    run_until(world, lambda: node not in world.spoiled and is_member(world, node))
    end_and_judge(world)


def test_new_disk_refuses_an_old_copy_of_a_node_that_it_never_met() -> None:
    """It knows what the source of its copy had met."""
    world = peaceful_cluster(5)
    world.keeps_all = False
    old = follower(world)
    save_old(world, old)
    world.crash(old, power=False)
    world.boot(old)
    make_known(world, old)
    new = next(node for node in sorted(world.members) if node != old and not world.members[node].leads)
    world.cut = {(old, new), (new, old)}
    life = wipe(world, new)
    run_until(world, lambda: is_member(world, new, life=life) and new in world.members and new not in world.spoiled)
    assert hears(world, new, old) == world.members[old].book.start.number
    run_until(world, lambda: world.can_spare(old))
    MemberFaults(world)._restore_old()
    assert world.happened["old copy"] == 1
    world.boot(old)
    before = world.happened["peer refused"]
    assert not world.members[new].believes(old, world.members[old].stamp)
    assert world.happened["peer refused"] == before + 1
    world.cut.clear()
    end_and_judge(world)


def test_old_copy_of_one_of_two_voters_counts_beside_no_other_directory() -> None:
    """Alone it passes for the node that it was: each of two voters holds all that they acknowledged."""
    world = peaceful_cluster(17)
    gone = follower(world)
    request(world, "remove", gone)
    run_until(world, lambda: gone in world.retired and len(world.members) == 2)
    old = follower(world)
    save_old(world, old)
    world.crash(old, power=False)
    world.boot(old)
    new = world.add_machine()
    assert new is not None
    request(world, "add", new)
    run_until(world, lambda: is_member(world, new) and votes_everywhere(world, new))
    make_known(world, old)
    run_until(world, lambda: world.can_spare(old))
    MemberFaults(world)._restore_old()
    assert world.happened["old copy"] == 1
    for node in sorted(world.members):
        world.crash(node, power=True)
    check_subsets(world, world.rng)
    assert world.happened["recovery of old copies alone"] == 1
    assert world.happened["recovery proved"] == 2, "of the two others, with and without it"
    end_and_judge(world)


def save_old(world: ChangingCluster, node: int) -> None:
    """An old copy of the node's directory is kept, to be restored later."""
    machine, states = world.machines[node], list[dict[int, ListState]]()
    for _ in range(2):
        states.append({partition: state.captured() for partition, state in machine.captured.items()})
    world.saved[node] = machine.files.kill(), *states, world.members[node].book.start.number  # type: ignore[assignment]


def make_known(world: ChangingCluster, node: int) -> None:
    """Every other member meets the present start of the node: the leader at once, and followers when they vote, and only then."""
    start = world.members[node].book.start.number
    run_until(world, lambda: (found := world.leader()) is not None and hears(world, found.node, node) in (start, None))
    former = leader(world).node
    world.cut = {pair for other in world.members for pair in ((former, other), (other, former))}
    run_until(world, lambda: (found := world.leader()) is not None and found.node != former)
    world.cut.clear()
    run_until(world, lambda: all(hears(world, other, node) in (start, None) for other in world.members))


def hears(world: ChangingCluster, member: int, peer: int) -> int | None:
    """Which start of the peer's directory the member has met last; None of its own."""
    if member == peer:
        return None
    record = world.members[member].book.records.get(peer)  # type: ignore[call-overload]
    return 0 if record is None or record.start is None else record.start.number


def test_far_follower_asks_for_a_copy() -> None:
    """No log holds what it lacks."""
    world = peaceful_cluster(12)
    node = follower(world)
    life = stated(world)[node].incarnation
    with_note = world.members[node]
    world.wish_copy(node, RejoinReason.TOO_FAR_BACK)
    world.condemn(with_note)
    run_until(world, lambda: node not in world.members)
    world.boot(node)
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    assert world.happened["wish replace_needed"] == 0
    end_and_judge(world)


@pytest.mark.parametrize("after", range(1, COPY_STEPS, 6))
def test_node_dies_at_a_step_of_its_copy(after: int) -> None:
    """With a loss of power: the next start makes a whole node all the same."""
    world = peaceful_cluster(13)
    node = follower(world)
    life = wipe(world, node)
    steps = 0
    while steps < after and node in world.rejoins:
        before = world.rejoins.get(node)
        world.step()
        world.check()
        if before is not None and world.rejoins.get(node) is before and standing(world, node) == "admitted":
            world.copy_on()
            steps += 1
    if node in world.machines:
        world.crash(node, power=True)
        world.boot(node)
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    end_and_judge(world)


def standing(world: ChangingCluster, node: int) -> str:
    """How far the node has come."""
    of = stated(world).get(node)
    return "" if of is None else of.stage.value


def test_source_of_a_copy_dies() -> None:
    """Another one gives it."""
    world = peaceful_cluster(14)
    node = follower(world)
    life = wipe(world, node)
    run_until(world, lambda: standing(world, node) == "admitted")
    for other in sorted(world.members):
        world.crash(other, power=True)
        world.boot(other)
        for _ in range(40):
            world.step()
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    end_and_judge(world)


def test_leader_changes_in_the_middle_of_a_replacement() -> None:
    """After each stage; the next leader continues where the last one stopped."""
    world = peaceful_cluster(15, nodes=5)
    node = follower(world)
    life = wipe(world, node)
    for stage in ("leaving_old", "expected", "joining", "admitted"):
        run_until(world, lambda: standing(world, node) in (stage, "admitted", "member"))  # noqa: B023
        gone = leader(world).node
        world.crash(gone, power=False)
        run_until(world, lambda: world.leader() is not None)
        world.boot(gone)
    run_until(world, lambda: is_member(world, node, life=life) and node in world.members)
    end_and_judge(world)
