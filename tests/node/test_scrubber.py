"""The scrub of a running node: whatever is damaged on its disk is found, named and repaired; a pass continues where it was."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.node.node import Node
from cmdlog.node.scrub.damage_repair import RETRY_S
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import Lsn
from cmdlog.wal.opening.home import adopt
from tests.node.rig import counters, open_node
from tests.node.scrubbed import (
    FAR,
    SHAPE,
    a_full_node,
    flip_bit,
    found_paths,
    items_of,
    run_pass,
    run_repairs,
    scrub_of,
    write_segments,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

NOT_READ = {"points", "reserve", "promise.json", "hardstate", "home"}
"""What lies in these folders and is checked when it is opened: a few hundred bytes, or nothing that is needed."""


@pytest.fixture(scope="module")
def full_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a node that holds files of every kind; closed, not to be written to."""
    directory = tmp_path_factory.mktemp("full") / "node"
    a_full_node(directory).close()
    return directory


@pytest.fixture
def full_node(full_directory: Path, tmp_path: Path) -> Iterator[Node]:
    """Of its own for every test."""
    directory = tmp_path / "node"
    shutil.copytree(full_directory, directory)
    adopt(RealFiles(), str(directory))
    node = open_node(directory, inline=True, **SHAPE)
    yield node
    node.close()


def test_a_whole_node_has_no_findings_and_every_file_is_read(full_node: Node) -> None:
    """A pass reads each file of log, snapshots and archive, to its end, and finds nothing."""
    items = [item for of_kind in items_of(full_node).values() for item in of_kind]
    assert {item.kind for item in items} == {"log", "snapshot", "archive_log", "archive_snapshot"}
    read = {item.path for item in items} | {item.path.replace(".seg", ".json") for item in items}
    for folder in ("log", "snapshots", "archive"):
        for entry in os.scandir(os.path.join(full_node.directory, folder)):
            known = entry.path in read or entry.name.split(".")[0] in NOT_READ or entry.name in NOT_READ
            assert known or entry.name.startswith("free-"), f"{entry.path} is read by no scrub"
    status = run_pass(scrub_of(full_node))
    assert (status["findings"], status["last"]["files"], status["last"]["damaged"]) == ([], len(items), 0)
    snapshots = sum(item.bytes for item in items if item.kind.endswith("snapshot"))
    assert status["last"]["bytes"] > snapshots + len(items_of(full_node)["log"]) * SHAPE["segment_bytes"] // 3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["manifest.json", "image.sqlite"])
def test_a_damaged_snapshot_is_set_aside_and_a_fresh_one_taken(full_node: Node, name: str, seed: int) -> None:
    """It is named, moved into quarantine, and never used; the log is held until the fresh one counts."""
    damaged = items_of(full_node)["snapshot"][2 * (seed % 2) + 1]
    flip_bit(Path(damaged.path) / name, seed=seed)
    status = run_pass(scrub_of(full_node))
    (found,) = status["findings"]
    assert (found["kind"], os.path.basename(found["path"]) in (name, damaged.name)) == ("snapshot", True)
    status = run_repairs(scrub_of(full_node))
    (over,) = status["repaired"]
    assert status["findings"] == []
    assert "quarantine" in over["repair"]
    assert not os.path.exists(damaged.path)
    (kept,) = Path(full_node.directory, "quarantine").glob(f"*-scrub/snapshot-{damaged.name}")
    assert (kept / name).exists()
    usable = [snapshot for snapshot in full_node.snapshots() if "problem" not in snapshot]
    assert sum(snapshot["partition"] == int(damaged.name[1:5]) for snapshot in usable) == 2
    assert run_pass(scrub_of(full_node), FAR + 1)["findings"] == []


def test_the_log_is_held_when_the_snapshot_to_fall_back_to_is_damaged(full_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor moves back at once, so that a newest snapshot alone never lets the log before it go."""
    moves: list[tuple[str, int]] = []
    anchors = full_node.overview.ground.wal.anchors
    set_anchor = anchors.set

    def note_and_set(name: str, lsn: Lsn) -> None:
        moves.append((name, lsn.block))
        set_anchor(name, lsn)

    monkeypatch.setattr(anchors, "set", note_and_set)
    oldest = items_of(full_node)["snapshot"][0]  # of two: the log is cut there
    before = full_node.overview.ground.wal.anchors.status()["snapshot-p0000"]["block"]
    flip_bit(Path(oldest.path) / "image.sqlite", seed=7)
    run_pass(scrub_of(full_node))
    run_repairs(scrub_of(full_node))
    mine = [block for name, block in moves if name == "snapshot-p0000"]
    assert mine[0] == 0
    assert mine[-1] >= before


def test_all_kinds_at_once(full_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass finds damage in every kind of file, each by its own name."""
    items = items_of(full_node)
    paths = [
        items["log"][1].path,
        items["archive_log"][2].path,
        os.path.join(items["snapshot"][0].path, "image.sqlite"),
        os.path.join(items["archive_snapshot"][1].path, "image.sqlite"),
    ]
    for seed, path in enumerate(paths):
        flip_bit(path, seed=seed, begin=8192, end=20_000)
    scrub = scrub_of(full_node)
    monkeypatch.setattr(scrub._repair, "advance", lambda _now: False)  # fresh snapshots would end the one that is read last
    seen: set[str] = set()
    for _ in range(1000):
        scrub.step(FAR)
        status = scrub.status()
        seen |= {found["path"] for found in (*status["findings"], *status["repaired"])}
        if status["passes"]:
            break
    assert sorted(seen) == sorted(paths)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_segment_of_a_node_alone_is_needed_no_more(tmp_path: Path, seed: int) -> None:
    """Named with its place; fresh snapshots are taken, the ring lets it go, and a recovery from nothing but the disk succeeds."""
    node = open_node(tmp_path / "node", inline=True, **{**SHAPE, "retention_window_s": 0.0})
    last = write_segments(node, 4, first=0)
    damaged = items_of(node)["log"][1]
    offset = flip_bit(damaged.path, seed=seed, begin=8192, end=200_000)
    (found,) = run_pass(scrub_of(node))["findings"]
    assert (found["kind"], found["path"]) == ("log", damaged.path)
    assert 0 <= offset - found["offset"] < 32_000
    if found.get("txn_id"):
        assert found["partition"] in (0, 1)
    wait_for(lambda: scrub_of(node).step(FAR) is not None and not os.path.exists(damaged.path), why=lambda: str(node.status()))
    assert scrub_of(node).step(FAR + 2 * RETRY_S) >= 0
    status = scrub_of(node).status()
    assert (found_paths(status["findings"]), found_paths(status["repaired"])) == ([], [damaged.path])
    write_segments(node, 1, first=last)
    before = counters(node)
    node.close()
    shutil.rmtree(tmp_path / "node" / "state")
    node = open_node(tmp_path / "node", inline=True, **{**SHAPE, "retention_window_s": 0.0})
    assert counters(node) == before
    node.close()
