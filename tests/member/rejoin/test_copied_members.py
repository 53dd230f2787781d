"""Nodes in one process whose directories are emptied, damaged or too far back are copied, and level again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cmdlog.member.rejoin import life_end
from cmdlog.member.rejoin.life_end import CopyNeeded
from cmdlog.member.rejoin.quarantine_folder import list_quarantine
from cmdlog.member.rejoin.rejoin_record import MemberRemoved
from cmdlog.node.assembly import MACHINE
from cmdlog.node.node import Node
from cmdlog.wal.errors import Wedged
from tests.member.members import Members, ask_retried, member_of, members
from tests.node.rig import when_there_is_room
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes that run."""
    with members(tmp_path, monkeypatch, count=3) as made:
        made.join_all()
        yield made


def bump_all(cluster: Members, first: int, last: int) -> None:
    """One call for each number."""
    for number in range(first, last):
        ask_retried(cluster.leader, "bump", key=f"k{number}", id=number % 16, amount=number)


def positions(node: Node) -> list[tuple[int, int]]:
    """What each partition has committed, and run."""
    return [(part["committed"], part["applied"]) for part in node.status()["partitions"].values()]


def is_level(cluster: Members) -> bool:
    """Every node has committed and run the same, and every one votes."""
    found = [positions(node) for node in cluster.nodes.values()]
    rows = [row for node in cluster.nodes.values() for row in member_of(node).membership.members()["members"]]
    return all(of == found[0] for of in found) and {row["seat"] for row in rows} == {"voter"} and _stages(rows) == {"member"}


def _stages(rows: list[dict[str, object]]) -> set[object]:
    return {row["state"] for row in rows}


def test_emptied_node_is_copied_and_votes_again(three: Members, tmp_path: Path) -> None:
    """An operator replaces it; its directory is made again under another incarnation, and it votes in every group."""
    bump_all(three, 0, 20)
    leader = three.leader()
    node = next(number for number, of in three.nodes.items() if of is not leader)
    three.close(node)
    shutil.rmtree(tmp_path / f"n{node}")
    bump_all(three, 20, 40)
    member_of(leader).membership.request("replace", node)
    three.join(node)
    wait_for(lambda: is_level(three), why=three.told)
    bump_all(three, 40, 50)
    wait_for(lambda: is_level(three), why=three.told)


def test_copied_node_keeps_what_was_promised_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log begins with the copy; that the window is longer than its life is no loss, and no alarm."""
    with members(tmp_path, monkeypatch, count=3, retention_window_s=86_400.0) as made:
        made.join_all()
        bump_all(made, 0, 20)
        node = a_follower(made)
        made.close(node)
        shutil.rmtree(tmp_path / f"n{node}")
        member_of(made.leader()).membership.request("replace", node)
        made.join(node)
        wait_for(lambda: is_level(made), why=made.told)
        reach = made.nodes[node].status()["archive"]
        assert (reach["window_kept"], reach["oldest_txn"] != "0") == (True, True)


def a_follower(cluster: Members) -> int:
    """A node that does not lead."""
    leader = cluster.leader()
    return next(number for number, of in cluster.nodes.items() if of is not leader)


def test_damaged_node_is_made_whole_without_an_operator(three: Members, tmp_path: Path) -> None:
    """A block of its log has changed: its old files are in quarantine, and it votes in every group again."""
    bump_all(three, 0, 20)
    node = a_follower(three)
    three.close(node)
    damage_log(tmp_path / f"n{node}")
    bump_all(three, 20, 40)
    three.join(node)
    wait_for(lambda: is_level(three), why=three.told)
    (entry,) = list_quarantine(MACHINE.files, str(tmp_path / f"n{node}"))
    assert entry.reason == "damaged"


def damage_log(directory: Path) -> None:
    """A byte in the middle of what the log's newest segment holds."""
    segment = max((directory / "log").glob("seg-*"))
    data = bytearray(segment.read_bytes())
    used = len(data.rstrip(b"\0"))
    data[used // 2] ^= 0xFF
    segment.write_bytes(data)


@pytest.mark.torture
def test_node_that_is_too_far_back_ends_and_is_copied_by_its_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away while the others wrote more than a log holds, and they have it no more."""
    monkeypatch.setattr("cmdlog.cluster.replication.KEPT_ENTRIES", 8)
    with members(tmp_path, monkeypatch, count=3, segment_bytes=256 << 10, segments=4) as three:
        three.join_all()
        leave_behind(three)


def leave_behind(three: Members) -> None:
    """A follower, and what becomes of it."""
    node = a_follower(three)
    three.close(node)
    for number in range(84):
        call: dict[str, Any] = {"key": f"s{number}", "id": number % 4, "seq": number, "data": bytes(20_000)}
        when_there_is_room(partial(ask_retried, three.leader, "store", **call))
        if number % 14 == 13:
            for other in three.nodes.values():
                other.take_snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life_end, "STUCK_TICKS", 20)
        back = three.join(node)
        wait_for(lambda: isinstance(back.error, CopyNeeded), why=three.told)
    with contextlib.suppress(Wedged):  # a block may wait for room that will not come
        three.close(node)
    three.join(node)
    wait_for(lambda: is_level(three), why=three.told)
    (entry,) = list_quarantine(MACHINE.files, str(three.folder / f"n{node}"))
    assert entry.reason == "too_far_back"


def test_removed_node_ends_and_never_starts_again(three: Members) -> None:
    """Also when it was away while it was removed."""
    node = a_follower(three)
    member_of(three.leader()).membership.request("remove", node)
    removed = three.nodes[node]
    three.wait_hurried(lambda: isinstance(removed.error, MemberRemoved))  # it asks once it has heard no leader for a while
    three.close(node)
    with pytest.raises(MemberRemoved) as refused:
        three.join(node)
    assert refused.value.exit_code == 11
