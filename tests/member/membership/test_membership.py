"""Membership of running nodes: the failure set in every fault log, requests of operators, wishes of disks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.cluster.membership.operator_desk import MembershipRefused, RefusedBecause
from cmdlog.node.node import Node
from tests.member.members import Members, leads, member_of, members, number_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

SILENCE_S = 0.6
PEER, CLIENT = "127.0.0.1:7999", "http://node4"


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes that run; a silent one soon loses its vote."""
    with members(tmp_path, monkeypatch, count=3, failure_after_s=SILENCE_S) as made:
        made.join_all()
        wait_for(
            lambda: all(set(member_of(node).consensus.roll.stated) == {1, 2, 3} for node in made.nodes.values()), why=made.told
        )
        yield made


def seat(node: Node, other: int) -> str:
    """What the node knows of another one's seat."""
    return str(next(row["seat"] for row in member_of(node).membership.members()["members"] if row["node"] == other))


def state(node: Node, other: int) -> str:
    """How far it has come, as the node knows."""
    return str(next((row["state"] for row in member_of(node).membership.members()["members"] if row["node"] == other), ""))


def refusal(node: Node, *arguments: Any, **options: Any) -> RefusedBecause:
    """Why the request is refused."""
    with pytest.raises(MembershipRefused) as caught:
        member_of(node).membership.request(*arguments, **options)
    return caught.value.code


def test_a_removed_node_leaves_every_group_and_stays_stated(three: Members) -> None:
    """Learned by all from the log; a repetition is no error, a request for an older state is refused."""
    leader = three.leader()
    gone = number_of(three.followers()[0])
    version = member_of(leader).membership.members()["version"]
    assert refusal(leader, "remove", gone, base=version - 1) is RefusedBecause.STALE_BASE
    planned = member_of(leader).membership.request("remove", gone, plan=True)
    assert [stage["survives"] for stage in planned["plan"]["stages"]] == [1, 0]
    begun = member_of(leader).membership.request("remove", gone, base=version)
    assert (begun["already"], begun["state"]) == (False, "leaving")
    wait_for(lambda: (state(leader, gone), seat(leader, gone)) == ("removed", ""), why=three.told)
    assert member_of(leader).membership.request("remove", gone)["already"]
    other = next(node for number, node in three.nodes.items() if number != gone and not leads(node))
    wait_for(lambda: state(other, gone) == "removed", why=three.told)
    assert refusal(other, "remove", gone) is RefusedBecause.NOT_LEADING


def test_leadership_is_given_on_request_and_by_a_leader_that_leaves(three: Members) -> None:
    """The next leader continues the removal of the one before."""
    first = three.leader()
    second = number_of(three.followers()[0])
    assert refusal(first, "transfer", 9) is RefusedBecause.UNKNOWN_NODE
    assert member_of(first).membership.request("transfer", second)["plan"]["refusal"] is None
    leader = wait_for(lambda: next((node for node in three.nodes.values() if leads(node) and number_of(node) == second), None))
    assert leader is not None
    assert member_of(leader).membership.request("transfer", second)["already"]
    member_of(leader).membership.request("remove", second)
    third = wait_for(lambda: next((n for n in three.nodes.values() if leads(n) and number_of(n) != second), None), why=three.told)
    assert third is not None
    wait_for(lambda: state(third, second) == "removed", why=three.told)


def test_a_disk_joins_where_it_is_expected_and_nowhere_else(three: Members) -> None:
    """By the place that an operator has prepared; as a learner in every group it is admitted, with the places."""
    leader = three.leader()
    wish = CopyWish(4, b"new disk", b"", "it is new", PEER, CLIENT)
    assert member_of(leader).membership.take_wish(wish).refusal is WishRefusal.NOT_EXPECTED
    assert refusal(leader, "add", 4) is RefusedBecause.BAD_REQUEST
    assert member_of(leader).membership.request("add", 4, peer=PEER, client=CLIENT)["state"] == "expected"
    assert member_of(leader).membership.request("add", 4, peer=PEER, client=CLIENT)["already"]
    follower = three.followers()[0]
    assert member_of(follower).membership.take_wish(wish).refusal is WishRefusal.NOT_LEADING
    member_of(leader).membership.take_wish(wish)

    def admitted() -> bool:
        member = member_of(leader).membership.take_wish(wish).member
        return member is not None and set(member.admitted) == {0, 1, 1022}

    wait_for(admitted, why=three.told)
    assert seat(leader, 4) == "learner"
    assert member_of(leader).membership.members()["operation"] == {"node": 4, "state": "admitted"}
    other = CopyWish(4, b"another1", b"", "it is new", PEER, CLIENT)

    def leader_refuses(call: Callable[[Node], Any], wanted: Any) -> None:  # another may lead by now
        wait_for(lambda: call(three.leader()) is wanted, why=three.told)

    leader_refuses(lambda node: refusal(node, "remove", number_of(three.followers()[0])), RefusedBecause.OPERATION_UNDER_WAY)
    leader_refuses(lambda node: member_of(node).membership.take_wish(other).refusal, WishRefusal.REPLACE_NEEDED)
    member_of(three.leader()).membership.request("remove", 4)
    wait_for(lambda: state(three.leader(), 4) == "removed", why=three.told)
    leader_refuses(lambda node: member_of(node).membership.take_wish(wish).refusal, WishRefusal.REMOVED)


def test_a_disk_that_gives_up_its_life_takes_its_own_place(three: Members) -> None:
    """It names the life that the cluster has pinned: no operator is needed. The old life is refused from then on."""
    leader = three.leader()
    away = number_of(three.followers()[0])
    life = three.nodes[away]._wal.instance.identity.incarnation
    three.close(away)
    stranger = CopyWish(away, b"new disk", b"", "it is empty", "", "")
    wait_for(lambda: member_of(leader).membership.take_wish(stranger).refusal is WishRefusal.REPLACE_NEEDED)
    wish = CopyWish(away, b"new disk", life, "its log is damaged", "", "")
    member_of(leader).membership.take_wish(wish)

    def admitted() -> bool:
        member = member_of(leader).membership.take_wish(wish).member
        return member is not None and member.incarnation == wish.incarnation and bool(member.admitted)

    wait_for(admitted, why=three.told)
    member = member_of(leader).membership.take_wish(wish).member
    assert member is not None
    assert member.former == (life,)
    assert member_of(leader).membership.members()["failed"]["nodes"] == [away]
    wait_for(lambda: member_of(leader).consensus.network.book.records[away].incarnation == wish.incarnation)  # type: ignore[index]
    assert member_of(leader).consensus.network.book.records[away].former == (life,)  # type: ignore[index]
