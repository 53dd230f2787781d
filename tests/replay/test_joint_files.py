"""Recovery from several nodes' directories, from the command line to the balances: every kind of damage in one copy is repaired
from another, what cannot be is refused by name, and no given directory changes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from cmdlog.wal.fault_log import read_faults
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from replay.errors import ReplayError
from tests.commands import Command
from tests.replay import damage
from tests.replay.histories import recover_seed
from tests.replay.historycheck import FILES, recovered
from tests.replay.historymembers import History
from tests.replay.rig import balances_of


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Three nodes whose logs have several small segments, written in different orders; everything is committed."""
    history = History(tmp_path_factory.mktemp("template") / "h", seed=41, segment_bytes=32 << 10)
    rng = random.Random(41)
    for step in range(90):
        partition = rng.randrange(2)
        history.deposits(partition, rng.randint(1, 6))
        history.spread(partition, rng.choice([[2, 3], [3, 2], [2], [3]]))
        history.nodes[rng.randint(1, 3)].flush()
        if step == 40:
            history.change_code(3)
    for partition in (1, 0):
        assert history.spread(partition)
    history.finish()
    assert all(len(damage.segments(directory)) >= 4 for directory in history.directories)
    return history


@pytest.fixture
def nodes(template: History, tmp_path: Path) -> list[str]:
    """Copies of the three directories, to be damaged."""
    copies = [str(tmp_path / f"node-{number}") for number in template.nodes]
    for directory, copy in zip(template.directories, copies, strict=True):
        shutil.copytree(directory, copy)
    return copies


# -- the command ---------------------------------------------------------------------------------------------------------------


def test_command_makes_a_node_of_three_directories(template: History, nodes: list[str], tmp_path: Path, command: Command) -> None:
    """Balances are the history's, the new node opens, votes alone, and the given directories stay as they are."""
    before = [damage.tree_hash(directory) for directory in nodes]
    code, _ = command("recover", *nodes, "--to", tmp_path / "out", "--json")
    assert code == 0
    assert balances_of(str(tmp_path / "out")) == template.balances_at()
    assert [damage.tree_hash(directory) for directory in nodes] == before
    wal = Log.open(FILES, str(tmp_path / "out"))
    assert len(wal.recovered.groups.state(CLUSTER_GROUP).configuration["voters"]) == 1  # type: ignore[index]
    assert wal.recovered.txn_id_max >= max(txn_id for _, _, txn_id in template.acknowledged)
    wal.close()


def test_command_ends_at_the_wanted_transaction(template: History, nodes: list[str], tmp_path: Path, command: Command) -> None:
    """`--until` over several directories gives the balances as they were then."""
    txn_ids = sorted(txn_id for _, _, txn_id in template.acknowledged)
    until = txn_ids[len(txn_ids) // 2]
    code, told = command("recover", *nodes, "--to", tmp_path / "out", "--until", until, "--json")
    assert code == 0, told
    assert balances_of(str(tmp_path / "out")) == template.balances_at(until)


def test_moment_that_never_was_is_refused_over_several_nodes(
    template: History, nodes: list[str], tmp_path: Path, command: Command
) -> None:
    """A moment to come is not rounded to the newest state, nor one before the first call to an empty one."""
    newest = max(txn_id for _, _, txn_id in template.acknowledged)
    for until, why in ((newest + (1 << 40), "was not reached"), (1, "is before the first one")):
        code, told = command("recover", *nodes, "--to", tmp_path / "out", "--until", until, "--json")
        assert code != 0
        assert why in str(told)
        assert not (tmp_path / "out").exists()


def test_command_refuses_what_two_of_five_cannot_prove(tmp_path: Path, command: Command) -> None:
    """Exit code 17, the voters that are missing are named, nothing is made; with the loss accepted it goes on."""
    history = History(tmp_path / "h", nodes=5, seed=42)
    history.deposits(0)
    assert history.spread(0)
    given = history.finish()[:2]
    code, told = command("recover", *given, "--to", tmp_path / "out")
    assert code == 17, told
    assert "missing {3, 4, 5}" in told.replace("\n", " ")
    assert not (tmp_path / "out" / "instance.json").exists()
    code, told = command("recover", *given, "--to", tmp_path / "out", "--accept-data-loss", "--json")
    assert code == 0, told
    assert balances_of(str(tmp_path / "out")) == history.balances_at()


def test_failures_are_remembered_by_the_new_node(tmp_path: Path) -> None:
    """Its fault log goes on with the cluster's sequence."""
    history = History(tmp_path / "h", seed=43)
    assert history.declare_failed(3)
    assert history.rejoin(3)
    history.nodes[2].stop()
    assert history.declare_failed(2)
    directories = history.finish()
    recovered(directories, tmp_path / "out")
    records = read_faults(FILES, str(tmp_path / "out"))
    assert records[: len(history.lineage)] == tuple(history.lineage)


# -- damage in one copy --------------------------------------------------------------------------------------------------------


def test_every_segment_may_be_damaged_on_one_node_each(template: History, nodes: list[str], tmp_path: Path) -> None:
    """D21: no node has a whole log, and together they have everything."""
    for number, directory in enumerate(nodes):
        for path in damage.segments(directory)[number::3]:
            damage.zero_sector(path, damage.used_bytes(path) // 2)
    _, balances = recovered(nodes, tmp_path / "out")
    assert balances == template.balances_at()
    txn_ids = sorted(txn_id for _, _, txn_id in template.acknowledged)
    for until in txn_ids[7 :: len(txn_ids) // 4]:
        _, balances = recovered(nodes, tmp_path / f"out-{until}", until=until)
        assert balances == template.balances_at(until)


def test_log_that_is_gone_altogether_is_replaced_by_the_others(template: History, nodes: list[str], tmp_path: Path) -> None:
    """D15: all segments of one node."""
    for path in damage.segments(nodes[0]):
        damage.delete(path)
    _, balances = recovered(nodes, tmp_path / "out")
    assert balances == template.balances_at()


@pytest.mark.parametrize("copies", [(0,), (1,), (0, 1)])
def test_hard_state_and_fault_log_of_one_node_may_be_unreadable(
    template: History, nodes: list[str], tmp_path: Path, copies: tuple[int, ...]
) -> None:
    """D23, D25: one copy is healed by the other; without both the node does not count, and the others suffice."""
    damage.damage_hard_state(nodes[0], *copies)
    damage.damage_fault_log(nodes[1], *copies)
    if len(copies) == 2:
        with pytest.raises(ReplayError) as refused:
            recovered(nodes, tmp_path / "refused")
        assert refused.value.exit_code == 17
        assert "both copies of the hard state are bad" in str(refused.value)
        assert "copy of the fault log" in str(refused.value)
        shutil.rmtree(nodes[1])
        shutil.copytree(template.directories[1], nodes[1])
    _, balances = recovered(nodes, tmp_path / "out")
    assert balances == template.balances_at()


def test_same_place_damaged_on_all_nodes_is_said(template: History, nodes: list[str], tmp_path: Path) -> None:
    """D22: on two of three nodes the third has it; on all, the entries that are missing are named with the files."""
    for directory in nodes[:2]:
        damage.delete(damage.segments(directory)[1])
    _, balances = recovered(nodes, tmp_path / "out")
    assert balances == template.balances_at()
    damage.delete(damage.segments(nodes[2])[1])
    with pytest.raises(ReplayError) as refused:
        recovered(nodes, tmp_path / "other")
    assert refused.value.exit_code == 17
    assert "in no log at hand" in str(refused.value)
    assert "seg-0000000000000002.wal" in str(refused.value)


# -- files in the wrong place --------------------------------------------------------------------------------------------------


def test_segments_swapped_between_nodes_are_refused_by_name(nodes: list[str], tmp_path: Path) -> None:
    """D17: both are foreign where they lie, so neither node counts, and the third one alone proves nothing."""
    one, other = (damage.segments(directory)[1] for directory in nodes[:2])
    damage.swap(one, other)
    with pytest.raises(ReplayError) as refused:
        recovered(nodes, tmp_path / "out")
    assert refused.value.exit_code == 17
    assert f"{one}: segment of cluster" in str(refused.value)
    assert f"{other}: segment of cluster" in str(refused.value)


def test_renumbered_segment_is_named(template: History, nodes: list[str], tmp_path: Path, command: Command) -> None:
    """D16: two segments of one node under each other's names."""
    damage.swap(*damage.segments(nodes[2])[1:3])
    code, told = command("recover", *nodes, "--plan", "--json")
    assert code == 0
    assert "under another name" in json.dumps(told)
    _, balances = recovered(nodes, tmp_path / "out")
    assert balances == template.balances_at()


# -- any history ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 12, 6))
def test_any_history_is_recovered_or_refused(tmp_path: Path, first: int) -> None:
    """From all directories of a history without open ends the balances are those of the chosen logs, damage in one or not."""
    for seed in range(first, first + 6):
        recover_seed(tmp_path / str(seed), seed)


def test_history_tells_every_acknowledged_call_once_in_order(template: History, nodes: list[str], command: Command) -> None:
    """`log history` over three directories: ascending transaction ids, all that was acknowledged, and with --until not more."""
    code, told = command.values("log", "history", *nodes)
    assert code == 0
    txn_ids = [int(call["txn_id"]) for call in told]
    assert txn_ids == sorted(set(txn_ids))
    assert {txn_id for _, _, txn_id in template.acknowledged} <= set(txn_ids)
    middle = txn_ids[len(txn_ids) // 2]
    _, (told,) = command.values("log", "history", *nodes, "--from", middle, "--until", middle)
    assert told["txn_id"] == str(middle)
    assert command("log", "history", nodes[0])[0] == 17
