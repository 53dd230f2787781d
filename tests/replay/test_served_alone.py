"""A directory of one of several members is never opened alone, whatever its log would decide by itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.member.rejoin.rejoin_record import REJOIN_NAME, TOMBSTONE_NAME
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import NotSoleVoter
from replay.plan import sole_voter
from replay.plan.sole_voter import check_served_alone, check_whole_member, other_members
from tests.commands import Command
from tests.replay.historycheck import FILES
from tests.replay.historymembers import History
from tests.replay.rig import APP

ONE, TWO = (ClusterMember(node, bytes([node]) * 8, f"10.0.0.{node}:7000", "") for node in (1, 2))
WAYS: dict[str, Callable[[str, str], list[object]]] = {
    "in place": lambda directory, _app: ["recover", directory],
    "adopt": lambda directory, _app: ["adopt", directory],
    "serve": lambda directory, app: ["serve", app, "--data", directory, "--port", "0"],
}


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application."""
    (tmp_path / "ledger_now.py").write_text(f"FACTOR = 1\n{APP}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "ledger_now:db"


@pytest.fixture
def alone(tmp_path: Path) -> str:
    """The directory of a node that votes alone."""
    history = History(tmp_path / "h", nodes=1, seed=91)
    history.deposits(0)
    assert history.spread(0)
    history.finish()
    return history.directory_of(1)


def stated(*members: ClusterMember, learners: tuple[int, ...] = ()) -> GroupStates:
    """What the log of node 1, the only voter, says of members."""
    groups = GroupStates()
    value = {"voters": [1], "learners": list(learners)}
    entries = {member.node: Stated(5, 2, member.to_json()) for member in members}
    groups.by_partition[CLUSTER_GROUP] = GroupState(
        term=2, commit=5, last_index=5, last_term=2, configurations=[Stated(1, 1, value)], members=entries
    )
    return groups


@pytest.mark.parametrize(
    ("groups", "others"),
    [
        (stated(), set()),
        (stated(ONE), set()),
        (stated(ONE, ClusterMember(2, b"", "h:1", "", MemberStage.REMOVED)), set()),
        (stated(ONE, ClusterMember(2, b"", "h:1", "", MemberStage.EXPECTED)), {2}),
        (stated(ONE, TWO), {2}),
        (stated(learners=(3,)), {3}),
    ],
    ids=["no entries", "itself", "removed", "expected", "member", "learner"],
)
def test_others_are_those_that_belong_or_are_expected(groups: GroupStates, others: set[int], tmp_path: Path) -> None:
    """A removed node is nobody; without others the only voter is opened alone."""
    identity = Identity(bytes(16), 1, bytes(8))
    assert other_members(groups, 1) == others
    if not others:
        check_served_alone(FILES, str(tmp_path), identity, groups)
        return
    with pytest.raises(NotSoleVoter, match=re.escape(f"the others are {{{others.pop()}}}")) as refused:
        check_served_alone(FILES, str(tmp_path), identity, groups)
    for way in ("--join cluster.json", "cmdlog recover DIR DIR2 DIR3 --to OUT", "--accept-data-loss --to OUT"):
        assert way in refused.value.hint


def test_file_names_are_those_of_the_copy() -> None:
    """They belong to the node's own modules, which lie above this one."""
    assert sole_voter.REJOIN_PATH[1] == REJOIN_NAME
    assert sole_voter.TOMBSTONE_PATH[1] == TOMBSTONE_NAME


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [REJOIN_NAME, TOMBSTONE_NAME])
def test_half_made_copies_and_removed_nodes_are_refused(alone: str, ledger: str, command: Command, name: str, way: str) -> None:
    """Exit code 17, though the log would decide alone; nothing is written."""
    (Path(alone) / "cluster" / name).write_text("{}")
    log = (Path(alone) / "log" / "hardstate").read_bytes()
    code, told = command.text(*WAYS[way](alone, ledger))
    assert code == 17, told
    assert "cluster" in told
    assert (Path(alone) / "log" / "hardstate").read_bytes() == log


def test_nothing_is_begun_where_a_copy_is_under_way(tmp_path: Path, ledger: str, command: Command) -> None:
    """A new disk has no instance yet: `serve` without --join would make a node of its own there."""
    folder = tmp_path / "new" / "cluster"
    folder.mkdir(parents=True)
    (folder / REJOIN_NAME).write_text("{}")
    code, told = command.text("serve", ledger, "--data", tmp_path / "new", "--port", "0")
    assert code == 17, told
    assert "--join" in told
    assert not (tmp_path / "new" / "instance.json").exists()
    check_whole_member(FILES, str(tmp_path / "other"))


def test_a_member_is_not_adopted(tmp_path: Path, command: Command) -> None:
    """The others would refuse the new life of its disk; a copy of a node alone is adopted."""
    for nodes, code in ((3, 17), (1, 0)):
        history = History(tmp_path / f"h{nodes}", nodes=nodes, seed=92)
        history.finish()
        copy = str(tmp_path / f"copy{nodes}")
        shutil.copytree(history.directory_of(1), copy)
        before = (Path(copy) / "instance.json").read_bytes()
        got, told = command.text("adopt", copy)
        assert got == code, told
        assert ((Path(copy) / "instance.json").read_bytes() == before) is bool(code)
        assert ("cluster replace 1" in " ".join(told.split())) is bool(code)
        assert os.path.exists(copy)
