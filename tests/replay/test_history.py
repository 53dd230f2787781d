"""`cmdlog log history`: archive and log as one, around damage where the loss is accepted, and words where nothing is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmdlog.wal.files import RealFiles
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.commands import Command
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.ledgers import SMALL, importable
from tests.replay.rig import Rig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A stopped node whose log has ten small segments."""
    rig = Rig(tmp_path_factory.mktemp("history"), segment_bytes=32 << 10)
    rig.deposits(40)
    rig.close()
    assert len(damage.segments(rig.directory)) >= 8
    return rig


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used several times over; the archive has what was in it."""
    rig = ArchiveRig(tmp_path_factory.mktemp("archived"), segments=6)
    rig.rotate(4)
    rig.close()
    assert len(rig.names(".seg")) >= 3
    return rig


def txn_ids(told: list[dict[str, str]]) -> list[int]:
    """Of calls, as they were told."""
    return [int(call["txn_id"]) for call in told]


def test_archive_is_part_of_the_history(archived: ArchiveRig, command: Command) -> None:
    """Every call since the first one, once and in order; what lies before --from is not read."""
    code, told = command.values("log", "history", archived.directory)
    assert code == 0
    assert txn_ids(told) == [txn for txn, _ in archived.history]
    middle = archived.history[len(archived.history) // 2][0]
    code, told = command.values("log", "history", archived.directory, "--from", middle)
    assert txn_ids(told) == [txn for txn, _ in archived.history if txn >= middle]


def test_segments_before_the_range_are_not_read(archived: ArchiveRig, command: Command, tmp_path: Path) -> None:
    """Damage in an archived segment stops only who wants its calls, naming the file; or it is told around."""
    shutil.copytree(archived.directory, tmp_path / "node")
    name = archived.names(".seg")[1]
    damage.flip(str(tmp_path / "node" / "archive" / name), 9000)
    code, failed = command("log", "history", tmp_path / "node", "--json")
    assert (code, failed["error"]["kind"]) == (10, "HistoryDamaged")
    assert name in failed["error"]["message"]
    assert "offset" in failed["error"]["message"]
    assert "partitions 0 to 1" in failed["error"]["message"]
    late = archived.history[-4][0]
    code, told = command.values("log", "history", tmp_path / "node", "--from", late)
    assert (code, txn_ids(told)) == (0, [txn for txn, _ in archived.history if txn >= late])
    code, told = command.values("log", "history", tmp_path / "node", "--accept-data-loss")
    known = {txn for txn, _ in archived.history}
    assert code == 0
    assert sorted(set(txn_ids(told))) == txn_ids(told)
    assert len(known) - 20 < len(told) < len(known)
    assert set(txn_ids(told)) < known


@pytest.mark.parametrize(("segment", "how"), [(2, "flip"), (-1, "flip"), (2, "delete")])
def test_damage_is_one_clear_error_or_told_around(whole: Rig, command: Command, tmp_path: Path, segment: int, how: str) -> None:
    """Exit code 10 with file, place and partitions, and what to do; with the loss accepted all that can be read is told."""
    shutil.copytree(whole.directory, tmp_path / "node")
    path = damage.segments(str(tmp_path / "node"))[segment]
    if how == "flip":
        damage.flip(path, 9000)
    else:
        damage.delete(path)
    code, failed = command("log", "history", tmp_path / "node", "--json")
    error = failed["error"]
    assert (code, error["kind"]) == (10, "HistoryDamaged")
    assert f"{path} at offset" in error["message"]
    assert "partitions 0 to 1" in error["message"]
    assert len(error["message"]) < 300
    assert "--accept-data-loss" in error["hint"]
    before = damage.tree_hash(str(tmp_path / "node"))
    code, text = command.text("log", "history", tmp_path / "node", "--accept-data-loss")
    assert code == 0
    assert "note:" in text
    code, told = command.values("log", "history", tmp_path / "node", "--accept-data-loss")
    known = [txn for txn, _ in whole.history]
    assert sorted(set(txn_ids(told))) == txn_ids(told)
    assert set(txn_ids(told)) < set(known)
    assert len(told) > len(known) - 20
    assert damage.tree_hash(str(tmp_path / "node")) == before


def test_nothing_to_tell_is_explained(whole: Rig, command: Command) -> None:
    """Before the first call, behind the last one, and where no call in the range is asked for: a note, and exit code 0."""
    first, last = whole.history[0][0], whole.history[-1][0]
    code, text = command.text("log", "history", whole.directory, "--until", first - 1)
    assert (code, text.startswith("note: no call is in that range: the first one at hand is")) == (0, True)
    assert str(first) in text
    code, text = command.text("log", "history", whole.directory, "--from", last + 1)
    assert (code, f"the last one at hand is transaction {last}" in text) == (0, True)
    code, text = command.text("log", "history", whole.directory, "--until", first, "--partition", 1)
    assert (code, text) == (0, "note: none of the 1 calls in that range is of partition 1\n")
    code, text = command.text("log", "history", whole.directory, "--until", first - 1, "--json")
    assert (code, text.startswith('{"note":"no call is in that range')) == (0, True)


def test_what_nobody_has_is_a_mistake(whole: Rig, command: Command, tmp_path: Path) -> None:
    """A partition or a procedure that there is not: exit code 2, and what there is."""
    code, failed = command("log", "history", whole.directory, "--partition", 9, "--json")
    assert (code, failed["error"]["message"], failed["error"]["hint"]) == (2, "there is no partition 9", "there are: 0, 1")
    import cmdlog

    with importable(tmp_path) as versions:
        with cmdlog.open(tmp_path / "node", versions.load("ledger_v1"), **SMALL) as opened:
            opened.call("begin", account=1)
        code, failed = command("log", "history", tmp_path / "node", "--procedure", "deposits", "--json")
        assert (code, failed["error"]["hint"]) == (2, "did you mean deposit?")
        code, told = command.values("log", "history", tmp_path / "node", "--procedure", "begin")
        assert (code, [call["params"] for call in told]) == (0, [{"account": 1}])
        code, text = command.text("log", "history", tmp_path / "node", "--procedure", "deposit")
        assert (code, "note: none of the 1 calls in that range is of procedure deposit" in text) == (0, True)


def test_node_that_began_with_a_state_tells_its_own_calls(command: Command, tmp_path: Path) -> None:
    """A log that a recovery made begins behind entries that it does not hold: what came since is told, and that more was."""
    import cmdlog

    with importable(tmp_path) as versions:
        db = versions.load("ledger_v1")
        with cmdlog.open(tmp_path / "node", db, **SMALL) as opened:
            opened.call("begin", account=1)
        planned = make_plan(RealFiles(), str(tmp_path / "node"), PAST, until=None)
        rebuild(planned, RealFiles(), str(tmp_path / "out"), workers=0)
        with cmdlog.open(tmp_path / "out", db, **SMALL) as opened:
            opened.call("deposit", account=1, amount=5)
    code, told = command.values("log", "history", tmp_path / "out")
    assert (code, [call["params"] for call in told]) == (0, [{"account": 1, "amount": 5}])
    code, text = command.text("log", "history", tmp_path / "out")
    assert "note: earlier calls of partitions 0 to 3 are in no log or archive at hand" in text
    code, text = command.text("log", "history", tmp_path / "out", "--from", told[0]["txn_id"])
    assert (code, "note:" in text) == (0, False)
