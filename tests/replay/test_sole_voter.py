"""One directory of several, or one that was emptied, decides nothing by itself: every command gives the same answer."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.fault_log import FaultLog, make_record
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures.code.loaded_modules import load_bundle
from replay.errors import NotSoleVoter
from replay.log.collect_evidence import gather
from replay.log.evidence import NodeEvidence
from replay.plan.sole_voter import votes_alone, why_not_alone
from tests.commands import Command
from tests.replay import damage
from tests.replay.historyapp import NOTES, history_bundle
from tests.replay.historycheck import FILES, recovered
from tests.replay.historymembers import History
from tests.replay.historynode import RESERVE_BYTES, SEGMENT_BYTES, SEGMENTS, HistoryNode
from tests.replay.rig import APP, balances_of

FORGET = "its log states no configuration"


def work(history: History, rounds: int = 2) -> None:
    """Acknowledged deposits on every partition."""
    for partition in range(history.partitions):
        for _ in range(rounds):
            history.deposits(partition)
        assert history.spread(partition)


@pytest.fixture
def member(tmp_path: Path) -> tuple[History, str]:
    """One of three directories, whose log ends with a batch that no other node has."""
    history = History(tmp_path / "h", seed=81)
    work(history)
    assert history.deposits(0) is not None
    history.finish()
    return history, history.directory_of(1)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """APP of the histories' own code."""
    (tmp_path / "ledger_now.py").write_text(f"FACTOR = 1\n{APP}{NOTES}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ledger_now", raising=False)  # of an earlier test, whose file is gone
    return "ledger_now:db"


def emptied(node: HistoryNode) -> str:
    """The directory with its log made again, with nothing in it."""
    node.discard()
    node.stop()
    return node.directory


def alone_again(node: HistoryNode, partitions: int) -> str:
    """The directory with its log made again, as that of a cluster of one."""
    node.stop()
    shutil.rmtree(os.path.join(node.directory, "log"))
    os.remove(os.path.join(node.directory, "instance.json"))
    faults = f"{node.directory}.faults"
    os.rename(os.path.join(node.directory, "faults"), faults)
    shutil.rmtree(node.directory)
    voters = {"voters": [node.number], "epoch": 1, "partitions": partitions}
    groups = (CLUSTER_GROUP, *range(partitions))
    records = [encode_json(RecordKind.CONFIGURATION, voters, partition=group, term=1, index=1) for group in groups]
    Log.create(
        FILES,
        node.directory,
        node.identity,
        segment_bytes=SEGMENT_BYTES,
        segments=SEGMENTS,
        reserve_bytes=RESERVE_BYTES,
        initial=records,
    )
    os.rmdir(os.path.join(node.directory, "faults"))
    os.rename(faults, os.path.join(node.directory, "faults"))
    return node.directory


WAYS: dict[str, Callable[[str, Path, str], list[object]]] = {
    "in place": lambda directory, _out, _app: ["recover", directory],
    "plan": lambda directory, _out, _app: ["recover", directory, "--plan"],
    "to": lambda directory, out, _app: ["recover", directory, "--to", out],
    "until": lambda directory, out, _app: ["recover", directory, "--to", out, "--until", "2023-11-14T22:13:20.020Z"],
    "partitions": lambda directory, out, _app: ["recover", directory, "--to", out, "--partitions", "3"],
    "current code": lambda directory, out, app: ["recover", directory, "--to", out, "--code", "current", "--app", app],
    "fork": lambda directory, out, app: ["fork", directory, "--at", "start", "--app", app, "--to", out],
    "history": lambda directory, _out, _app: ["log", "history", directory],
    "serve": lambda directory, _out, app: ["serve", app, "--data", directory, "--port", "0"],
}


@pytest.mark.parametrize("way", WAYS)
def test_one_member_of_three_is_refused(
    member: tuple[History, str], tmp_path: Path, ledger: str, command: Command, way: str
) -> None:
    """Exit code 17 on every way; its uncommitted batch is not executed, and its log stays a member's."""
    _, directory = member
    log, states = os.path.join(directory, "log"), os.path.join(directory, "state")
    before = damage.tree_hash(log)
    code, told = command.text(*WAYS[way](directory, tmp_path / "out", ledger))
    assert code == 17, told
    assert "{1, 2, 3}" in told.replace("\n", " ")
    assert not (tmp_path / "out" / "instance.json").exists()
    assert damage.tree_hash(log) == before
    assert not os.path.exists(states) or not [name for name in os.listdir(states) if name.endswith(".sqlite")]


def test_refusal_names_the_ways_out(member: tuple[History, str], command: Command) -> None:
    """All directories into a new one, the other nodes, or what this one holds by itself."""
    code, told = command.text("recover", member[1])
    text = " ".join(told.split())
    assert code == 17
    for way in ("cmdlog recover DIR DIR2 DIR3 --to OUT", "other nodes", "--join cluster.json", "--accept-data-loss --to OUT"):
        assert way in text


def test_embedded_use_refuses_a_member(member: tuple[History, str]) -> None:
    """`cmdlog.open` raises what the command says."""
    with pytest.raises(NotSoleVoter, match="cannot decide alone"):
        cmdlog.open(member[1], load_bundle(history_bundle(1)), partitions=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["wiped", "rejoining", "made again"])
def test_emptied_directory_is_refused(tmp_path: Path, ledger: str, command: Command, how: str, way: str) -> None:
    """Exit code 17 for a log that was made again under the same identity, with or without a fault log that knows."""
    history = History(tmp_path / "h", seed=82)
    work(history)
    if how == "wiped":
        directory = emptied(history.nodes[2])
    elif how == "rejoining":
        assert history.declare_failed(2)
        assert history.rejoin(2, "discarded")
        directory = history.directory_of(2)
    else:
        history.nodes[3].stop()
        assert history.declare_failed(3)
        directory = alone_again(history.nodes[2], history.partitions)
    history.nodes[2].up = history.nodes[2].up and how == "rejoining"
    history.finish()
    code, told = command.text(*WAYS[way](directory, tmp_path / "out", ledger))
    assert code == 17, told
    assert not (tmp_path / "out" / "instance.json").exists()


@pytest.mark.parametrize("chosen", [1, 2])
def test_recovered_node_is_served_alone(tmp_path: Path, ledger: str, command: Command, chosen: int) -> None:
    """The forced configuration of a joint recovery makes its node a sole voter, though its fault log knows the others."""
    history = History(tmp_path / "h", seed=83)
    work(history)
    if chosen == 2:
        assert history.elect(CLUSTER_GROUP, 2)
        assert history.change_code(1)
    history.nodes[3].stop()
    assert history.declare_failed(3)
    history.finish()
    out = str(tmp_path / "out")
    recovered(history.directories, Path(out))
    assert why_not_alone(gather(FILES, out)) == ""
    assert command("recover", out)[0] == 0
    with cmdlog.open(out, importlib.import_module(ledger.split(":", maxsplit=1)[0]).db, partitions=2) as opened:
        assert opened.call("deposit", account=0, amount=1)
    assert balances_of(out).keys() == history.balances_at().keys()


def test_member_is_recovered_alone_where_the_loss_is_accepted(
    member: tuple[History, str], tmp_path: Path, command: Command
) -> None:
    """The way that the refusal names works, and what it makes decides alone."""
    out = str(tmp_path / "out")
    code, told = command("recover", member[1], "--to", out, "--accept-data-loss", "--json")
    assert code == 0, json.dumps(told)
    assert votes_alone(gather(FILES, out))


def test_uncommitted_removal_of_the_others_makes_no_sole_voter(tmp_path: Path) -> None:
    """A configuration that lists this node alone counts only when it is committed: the one before lists another voter."""
    history = History(tmp_path / "h", nodes=2, seed=84)
    for group in history.groups:
        assert history.configure(group, {1}) is not None
    history.finish()
    assert not votes_alone(gather(FILES, history.directory_of(1)))


def test_fault_log_decides_with_the_configuration(tmp_path: Path) -> None:
    """A cluster of one votes alone until its fault log lists it, or cannot be relied on."""
    history = History(tmp_path / "h", nodes=1, seed=85)
    history.finish()
    node = gather(FILES, history.directory_of(1))
    assert votes_alone(node)
    assert not votes_alone(replace(node, fault_problem="both copies are bad"))
    mark = make_record(bytes.fromhex(node.cluster_id), None, failed={1}, epoch=0, term=1, author=1)
    assert not votes_alone(replace(node, faults=(mark,)))
    assert FORGET in why_not_alone(replace(node, groups={}))
    assert FORGET in why_not_alone(NodeEvidence("d", node.cluster_id, 1, "life"))


def test_faults_of_an_open_log_are_read(tmp_path: Path) -> None:
    """A start reads the fault log, too: a node that marked itself does not start."""
    history = History(tmp_path / "h", nodes=1, seed=86)
    identity: Identity = history.nodes[1].identity
    history.finish()
    directory = history.directory_of(1)
    FaultLog.open(FILES, directory, identity).append(failed={1}, term=1)
    with pytest.raises(NotSoleVoter, match="own fault record 1"):
        cmdlog.open(directory, load_bundle(history_bundle(1)), partitions=2)


def test_log_without_the_cluster_group_is_refused(tmp_path: Path, command: Command) -> None:
    """A log that can be read of a partition only says neither who votes nor which code ran: exit code 17, with the loss too."""
    directory = str(tmp_path / "node")
    record = encode_json(RecordKind.CONFIGURATION, {"voters": [1], "epoch": 1}, partition=0, term=1, index=1)
    Log.create(FILES, directory, Identity.fresh(1), segment_bytes=SEGMENT_BYTES, segments=SEGMENTS, reserve_bytes=RESERVE_BYTES,
               initial=[record])  # fmt: skip
    for more in ([], ["--accept-data-loss"]):
        code, told = command.text("recover", directory, "--to", tmp_path / "out", *more)
        assert code == 17, told
        assert "cluster group" in told
        assert not (tmp_path / "out" / "instance.json").exists()
