"""A hole in the archive: who wants what lies in front of it is refused by name, in a history as in a recovery."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from replay.errors import Incomplete, UntilUnreachable
from replay.fork.fork import START, fork
from replay.fork.remaining_log import RestUnreadable
from replay.log.archive_reach import time_of
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.planner import PAST, make_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.recover.to_directory import rebuild
from snapshot.recovery_points import Point, write_point
from tests.commands import Command
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.ledgers import importable
from tests.replay.rig import APP, balances_of

pytestmark = pytest.mark.slow


def made(folder: Path, identity: Identity | None = None, factor: int = 1) -> ArchiveRig:
    """A stopped node whose ring was used several times over; the archive has what was in it."""
    with pytest.MonkeyPatch.context() as patch:
        if identity is not None:
            patch.setattr(Identity, "fresh", lambda: identity)
        rig = ArchiveRig(folder, segments=8, segment_bytes=32 << 10, factor=factor)
    rig.rotate(3, batches=10)
    rig.close()
    assert len(rig.names(".seg")) >= 5
    return rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """The node; tests that change it take a copy."""
    return made(tmp_path_factory.mktemp("archived"))


@pytest.fixture(scope="module")
def twin(rig: ArchiveRig, tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """Another node that says it is the same one; its deposits count twice."""
    return made(tmp_path_factory.mktemp("twin"), rig.identity, factor=2)


@pytest.fixture(scope="module")
def anew(rig: ArchiveRig, tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """The same node of the same cluster, made anew."""
    own = rig.identity
    return made(tmp_path_factory.mktemp("anew"), Identity(own.cluster_id, own.node_id, Identity.fresh().incarnation), factor=2)


@pytest.fixture
def node(rig: ArchiveRig, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(rig.copy(tmp_path / "node"))


def segment(rig: ArchiveRig, node: Path, number: int) -> Path:
    """An archived segment of a copy."""
    return node / "archive" / rig.names(".seg")[number]


def with_manifest(path: Path, act: Callable[[Path], object]) -> None:
    """Does it to both files of an archived segment."""
    act(path)
    act(path.with_suffix(".json"))


def put(rig: ArchiveRig, other: ArchiveRig, path: Path) -> None:
    """The other node's segment of that number stands under this name, with its manifest."""
    source = Path(other.directory) / "archive" / other.names(".seg")[rig.names(".seg").index(path.name)]
    for suffix in (".seg", ".json"):
        shutil.copyfile(source.with_suffix(suffix), path.with_suffix(suffix))


MIDDLE, LAST = 2, -1
HOLES = {  # number of the segment, what is done, what is said of the segment that is named
    "gone": (MIDDLE, "is missing"),
    "gone-with-manifest": (MIDDLE, "are in no file"),
    "in-front-of-the-ring": (LAST, "is missing"),
    "in-front-of-the-ring-with-manifest": (LAST, "are in no file"),
    "cut-to-nothing": (MIDDLE, "the head of"),
    "made-anew": (MIDDLE, "it is a segment of"),
    "twin": (MIDDLE, "is not part of the log"),
}


EVERY_TIME = ("in-front-of-the-ring", "twin")


@pytest.fixture(params=[name if name in EVERY_TIME else pytest.param(name, marks=pytest.mark.torture) for name in HOLES])
def hole(request: pytest.FixtureRequest, rig: ArchiveRig, node: Path) -> str:
    """One is planted; its name."""
    name = str(request.param)
    path = segment(rig, node, HOLES[name][0])
    if name == "cut-to-nothing":
        damage.truncate(str(path), 100)
    elif name == "made-anew":
        put(rig, request.getfixturevalue("anew"), path)
    elif name == "twin":
        put(rig, request.getfixturevalue("twin"), path)
    elif name.endswith("manifest"):
        with_manifest(path, Path.unlink)
    else:
        path.unlink()
    return name


def txn_ids(told: list[dict[str, Any]]) -> list[int]:
    """Of calls, as they were told."""
    return [int(call["txn_id"]) for call in told]


def test_history_that_would_begin_behind_a_hole_is_refused(rig: ArchiveRig, node: Path, hole: str, command: Command) -> None:
    """The segment is named, and why it does not join; what is behind the hole is told with --from, or with a note."""
    every = txn_ids([{"txn_id": txn} for txn, _ in rig.history])
    number, words = HOLES[hole]
    before = damage.tree_hash(str(node))
    code, failed = command("log", "history", node, "--json")
    error = failed["error"]
    assert (code, error["kind"]) == (10, "HistoryCutOff"), failed
    named = segment(rig, node, number - 1 if hole.endswith("with-manifest") else number)
    assert (str(named) in error["message"], words in error["message"]) == (True, True), error["message"]
    begin = int(error["hint"].split("--from ")[1].split(",")[0])
    behind = [txn for txn in every if txn >= begin]
    assert 0 < len(behind) < len(every)
    assert f"after transaction {begin - 1} ({time_of(begin - 1)[:19]}" in error["message"]

    code, told = command.values("log", "history", node, "--from", begin)
    assert (code, txn_ids(told)) == (0, behind)
    code, failed = command("log", "history", node, "--from", begin - 1, "--json")
    assert (code, failed["error"]["kind"]) == (10, "HistoryCutOff")

    code, text = command.text("log", "history", node, "--accept-data-loss")
    assert (code, text.count("note:")) == (0, 1)
    assert f"{named} is not part of the log" in text
    code, told = command.values("log", "history", node, "--accept-data-loss")
    assert (code, txn_ids(told)) == (0, behind)
    assert damage.tree_hash(str(node)) == before


def test_recovery_across_a_hole_restores_the_moment_or_is_refused(rig: ArchiveRig, node: Path, hole: str, tmp_path: Path) -> None:
    """In front of it, in it and behind it, planned for one directory or for several: the model's balances, or a refusal."""
    ends, told = set(), list[str]()
    for n, (txn, balances) in enumerate(rig.history[len(rig.history) // 8 :: len(rig.history) // 4]):
        joint = make_joint_plan(RealFiles(), [str(node)], until=txn)
        for name in ("alone", "jointly"):
            out = str(tmp_path / f"{name}{n}")
            try:
                if name == "alone":
                    rebuild(make_plan(RealFiles(), str(node), PAST, until=txn), RealFiles(), out, workers=0)
                else:
                    rebuild_jointly(joint, RealFiles(), out, workers=0)
            except (Incomplete, UntilUnreachable) as refused:
                ends.add(f"{name} refused")
                told.append(str(refused))
            else:
                ends.add(f"{name} restored")
                assert balances_of(out) == balances, (hole, name, txn)
    assert {"alone restored", "jointly restored"} <= ends
    names = [path.name for path in (node / "archive").glob("*.seg")] + rig.names(".seg")
    assert all(any(name in words for name in names) for words in told), told


def test_fork_across_a_hole_is_refused_by_name(rig: ArchiveRig, node: Path, hole: str, tmp_path: Path) -> None:
    """The segment is named, as in a history, and nothing is made."""
    named = segment(rig, node, HOLES[hole][0] - 1 if hole.endswith("with-manifest") else HOLES[hole][0])
    with importable(tmp_path) as versions, pytest.raises(RestUnreadable, match=named.name):
        fork(RealFiles(), str(node), at=START, db=versions.load("ledger_again", f"FACTOR = 1\n{APP}"), out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_recovery_points_keep_stands_apart_without_a_hole(rig: ArchiveRig, node: Path, command: Command) -> None:
    """The archive gave up what is between, by its rules: the history begins behind it, as of any archive that was shortened."""
    with_manifest(segment(rig, node, MIDDLE), Path.unlink)
    first, last = (int(part) for part in segment(rig, node, MIDDLE - 1).stem.split("-")[3:5])
    write_point(RealFiles(), str(node), Point(txn_id=7, created="", snapshots={}, from_block=1, to_block=last))
    code, text = command.text("log", "history", node)
    assert (code, text.count("note:")) == (0, 1)
    assert "note: earlier calls of partitions 0 to 1 are in no log or archive at hand" in text
    write_point(RealFiles(), str(node), Point(txn_id=7, created="", snapshots={}, from_block=1, to_block=first - 1))
    code, failed = command("log", "history", node, "--json")
    assert (code, failed["error"]["kind"]) == (10, "HistoryCutOff")


def test_a_moment_of_which_nothing_is_left_is_refused_also_with_losses(rig: ArchiveRig, node: Path, tmp_path: Path) -> None:
    """Partitions would be empty, and a recovery of nothing passes for one."""
    shutil.rmtree(node / "archive")
    plan = make_joint_plan(RealFiles(), [str(node)], until=rig.history[len(rig.history) // 8][0], accept_data_loss=True)
    assert plan.incomplete
    with pytest.raises(UntilUnreachable, match="nothing of partition 0 from before that moment is at hand"):
        rebuild_jointly(plan, RealFiles(), str(tmp_path / "out"), workers=0, accept_data_loss=True)
    assert not (tmp_path / "out").exists()
