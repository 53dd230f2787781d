"""Manifest, seal, catalog: what is whole counts, what is not is named, and no crash makes one look like the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.checked_json import encode_checked
from procedures.storage.state import PartitionState, Position
from snapshot import catalog
from snapshot.capture.image import ImageCapture
from snapshot.capture.seal import seal
from snapshot.catalog import Snapshot, check, clean, free_path, list_snapshots, restore, temporary_path
from snapshot.errors import SnapshotDamaged, SnapshotForeign
from snapshot.manifest import CRC_KEY, decode_manifest, encode_manifest, parse_name, read_manifest, snapshot_name
from snapshot.retention import anchor_block, retain
from snapshot.table_digest import open_image, table_digests
from tests.snapshot.crashes import CrashingFiles, flip, seal_process

US = Identity(b"c" * 16, 1, b"i" * 8)


FILES = RealFiles()


def captured(directory: Path, *, partition: int = 0, index: int = 5) -> tuple[str, dict[str, Any]]:
    """An image in a temporary folder, and the facts about it."""
    os.makedirs(directory / "snapshots", exist_ok=True)
    state = PartitionState.open(directory / f"s{partition}", partition=partition)
    if not state.schema():
        state.connection.execute("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, v)")
        state.connection.execute("INSERT INTO t VALUES (1, 'one'), (2, 2.0), (3, x'03'), (4, NULL)")
    position = Position(index, 1, 1000 + index, index << 21)
    state.save(position, 0)
    state.position = position
    temporary = temporary_path(str(directory), partition)
    os.mkdir(temporary)
    capture = ImageCapture(state, os.path.join(temporary, "image.sqlite"))
    while not capture.step():
        pass
    state.close()
    report = {name: value for name, value in capture.report().items() if name != "path"}
    facts = {
        **report,
        "log_block": 10 * index,
        "epoch": 1,
        "configuration": {"voters": [1]},
        "catalogs": {"1": {"version": 1, "bundle": "…"}},
        "environment": {"python": "3.11"},
        "key_policy": {},
        "created": "2026-01-01T00:00:00Z",
        "cluster_id": US.cluster_id.hex(),
        "node_id": 1,
        "incarnation": US.incarnation.hex(),
    }
    return temporary, facts


def make(directory: Path, *, partition: int = 0, index: int = 5) -> Path:
    """A sealed snapshot."""
    temporary, facts = captured(directory, partition=partition, index=index)
    final = free_path(FILES, str(directory), partition=partition, index=index)
    seal(FILES, temporary, final, facts)
    return Path(final)


def listed(directory: Path, identity: Identity = US) -> list[Snapshot]:
    """The catalog of partition 0."""
    return [s for s in list_snapshots(FILES, str(directory), identity) if s.partition == 0]


def test_sealed_snapshot_says_what_it_holds(tmp_path: Path) -> None:
    """Position, rows and digests, files and everything that the node stated are in the manifest and stand a check."""
    path = make(tmp_path)
    manifest = read_manifest(FILES, str(path))
    assert (manifest.index, manifest.term, manifest.checksum, manifest.txn_id) == (5, 1, 1005, 5 << 21)
    assert {table.name: table.rows for table in manifest.tables} == {
        "t": 4,
        "_cmdlog_meta": 1,
        "_cmdlog_keys": 0,
        "_cmdlog_sessions": 0,
    }
    assert manifest.configuration == {"voters": [1]}
    assert manifest.schema == ("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, v)",)
    assert check(FILES, listed(tmp_path)[0]) == ""
    assert decode_manifest(encode_manifest(manifest), path="m") == manifest


def test_crash_at_every_step_leaves_a_whole_snapshot_or_none(tmp_path: Path) -> None:
    """Whichever change to the disk is the last, a start afterwards sees a verified snapshot or nothing at all."""
    outcomes = []
    for survived in range(20):
        directory = tmp_path / str(survived)
        temporary, facts = captured(directory)
        final = free_path(FILES, str(directory), partition=0, index=5)
        try:
            seal(CrashingFiles(survived), temporary, final, facts)
        except WriteFailed:
            clean(FILES, str(directory))
            found = listed(directory)
            assert [check(FILES, snapshot) for snapshot in found] in ([], [""])
            assert len(os.listdir(directory / "snapshots")) == len(found)
            outcomes.append(len(found))
        else:
            assert [check(FILES, snapshot) for snapshot in listed(directory)] == [""]
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 1}, "the crash points lie on both sides of the rename"


@pytest.mark.slow
def test_killed_seal_process_leaves_a_whole_snapshot_or_none(tmp_path: Path) -> None:
    """The real process, killed at moments all over its life."""
    for number, wait_s in enumerate((0.0, 0.1, 0.2, 0.3, 0.4)):
        directory = tmp_path / str(number)
        temporary, facts = captured(directory)
        final = free_path(FILES, str(directory), partition=0, index=5)
        seal_process(temporary, final, facts, killed_after_s=wait_s)
        clean(FILES, str(directory))
        assert [check(FILES, snapshot) for snapshot in listed(directory)] in ([], [""])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the image": lambda path: flip(path / "image.sqlite"),
    "a bit of the manifest": lambda path: flip(path / "manifest.json"),
    "a shorter image": lambda path: os.truncate(path / "image.sqlite", 4096),
    "a longer image": lambda path: os.truncate(path / "image.sqlite", 1 << 20),
    "no image": lambda path: (path / "image.sqlite").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_bytes(b""),
    "a manifest that is a list": lambda path: (path / "manifest.json").write_bytes(b"[]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_snapshot_is_named_and_its_predecessor_stands(tmp_path: Path, damage: str) -> None:
    """Whatever is done to the newest snapshot, it is named with its reason, and the one before it can be used."""
    make(tmp_path, index=5)
    newest = make(tmp_path, index=9)
    DAMAGE[damage](newest)
    problems = [check(FILES, snapshot) for snapshot in listed(tmp_path)]
    assert problems[0] == ""
    assert str(newest) in problems[1]


def test_snapshot_of_another_node_is_foreign(tmp_path: Path) -> None:
    """Cluster, node and incarnation must all be ours; a renamed folder is another partition's or position's."""
    path = make(tmp_path)
    for other in (replace(US, cluster_id=b"x" * 16), replace(US, node_id=2), replace(US, incarnation=b"x" * 8)):
        [found] = listed(tmp_path, other)
        assert found.manifest is None
        assert "belongs to" in found.problem
    path.rename(path.with_name(snapshot_name(0, 6)))
    [found] = listed(tmp_path)
    assert "renamed" in found.problem


def test_newer_format_is_foreign_not_damaged(tmp_path: Path) -> None:
    """A manifest with a good checksum and another format number asks for the newer program."""
    manifest = make(tmp_path) / "manifest.json"
    value = orjson.loads(manifest.read_bytes())
    value["format"] = 4
    del value[CRC_KEY]
    with pytest.raises(SnapshotForeign):
        decode_manifest(encode_checked(value, key=CRC_KEY), path="m")


def test_image_at_another_position_than_stated_is_not_sealed(tmp_path: Path) -> None:
    """A capture that reported another batch than the image holds is found before anything gets a name."""
    temporary, facts = captured(tmp_path)
    with pytest.raises(SnapshotDamaged):
        seal(FILES, temporary, str(tmp_path / "snapshots" / "p0000-0000000000000006"), {**facts, "index": 6})
    assert listed(tmp_path) == []


def test_names_are_of_one_strict_pattern() -> None:
    """Only what this module writes is read back; dots, slashes, other digits and copies below 2 are no names."""
    assert parse_name("p0003-0000000000000017") == (3, 17, 1)
    assert parse_name(snapshot_name(3, 17, 12)) == (3, 17, 12)
    for wrong in ("p3-17", "p0003-0000000000000017-1", "p0003-0000000000000017-0", "../p0003-0000000000000017",
                  "p0003-0000000000000017.tmp", "p0003-0000000000000017\n", "P0003-0000000000000017", ""):  # fmt: skip
        assert parse_name(wrong) is None, wrong


def test_two_images_of_one_position_get_two_names(tmp_path: Path) -> None:
    """An idle partition can be taken again, so that the log need not wait for it."""
    names = [make(tmp_path).name for _ in range(3)]
    assert names == ["p0000-0000000000000005", "p0000-0000000000000005-2", "p0000-0000000000000005-3"]
    assert [snapshot.copy for snapshot in listed(tmp_path)] == [1, 2, 3]


def test_restored_state_equals_the_image(tmp_path: Path) -> None:
    """The copy replaces the state with all that SQLite keeps beside it, and stands at the image's position."""
    make(tmp_path)
    target = tmp_path / "state"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{target}{suffix}").write_bytes(b"of an earlier life")
    [snapshot] = listed(tmp_path)
    restore(snapshot, str(target))
    assert not Path(f"{target}-wal").exists()
    state = PartitionState.open(target, partition=0)
    assert state.position == Position(5, 1, 1005, 5 << 21)
    image = open_image(Path(snapshot.path) / "image.sqlite")
    assert table_digests(image) == table_digests(state.connection)
    state.close()
    image.close()


def test_restore_of_a_changed_image_leaves_no_state(tmp_path: Path) -> None:
    """What is copied is compared with the manifest, too."""
    path = make(tmp_path)
    [snapshot] = listed(tmp_path)
    flip(path / "image.sqlite")
    with pytest.raises(SnapshotDamaged):
        restore(snapshot, str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "state.restore").exists()


def test_retention_keeps_the_newest_and_counts_only_usable_ones(tmp_path: Path) -> None:
    """A damaged snapshot does not push a good one out."""
    for index in (1, 2, 3, 4):
        make(tmp_path, index=index)
    flip(tmp_path / "snapshots" / snapshot_name(0, 4) / "manifest.json")
    assert retain(FILES, listed(tmp_path), kept=2) == [snapshot_name(0, 1)]
    assert [snapshot.index for snapshot in listed(tmp_path)] == [2, 3, 4]
    with pytest.raises(ValueError, match="two"):
        retain(FILES, listed(tmp_path), kept=1)


def test_removal_that_is_broken_off_leaves_no_half_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name goes first: what a crash leaves of the files is swept at the next start."""
    for index in (1, 2, 3):
        make(tmp_path, index=index)
    monkeypatch.setattr(catalog, "remove_tree", lambda _path: (_ for _ in ()).throw(OSError("died")))
    with pytest.raises(OSError):
        retain(FILES, listed(tmp_path), kept=2)
    monkeypatch.undo()
    assert [snapshot.index for snapshot in listed(tmp_path)] == [2, 3]
    assert len(clean(FILES, str(tmp_path))) == 1
    assert sorted(os.listdir(tmp_path / "snapshots")) == [snapshot_name(0, 2), snapshot_name(0, 3)]


def test_cleaning_touches_temporary_names_alone(tmp_path: Path) -> None:
    """Whatever an operator put beside the snapshots stays."""
    os.makedirs(tmp_path / "snapshots" / "tmp-mine")
    os.makedirs(tmp_path / "snapshots" / "tmp-p0001-0123456789abcdef")
    assert clean(FILES, str(tmp_path)) == ["tmp-p0001-0123456789abcdef"]
    assert os.listdir(tmp_path / "snapshots") == ["tmp-mine"]


def test_anchor_is_the_block_of_the_second_newest_usable_snapshot(tmp_path: Path) -> None:
    """With fewer than two nothing may go; a damaged one does not count."""
    assert anchor_block(listed(tmp_path)) is None
    make(tmp_path, index=1)
    assert anchor_block(listed(tmp_path)) is None
    make(tmp_path, index=2)
    assert anchor_block(listed(tmp_path)) == 10
    path = make(tmp_path, index=3)
    assert anchor_block(listed(tmp_path)) == 20
    shutil.rmtree(path)
    os.mkdir(path)
    assert anchor_block(listed(tmp_path)) == 10


def test_next_snapshot_of_an_idle_position_sorts_behind_those_that_are_left(tmp_path: Path) -> None:
    """Retention has taken the first copies; their names must not come back as the oldest."""
    folder = tmp_path / "snapshots"
    folder.mkdir(exist_ok=True)
    for copy in (3, 4):
        (folder / snapshot_name(2, 7, copy)).mkdir()
    assert free_path(FILES, str(tmp_path), partition=2, index=7).endswith(snapshot_name(2, 7, 5))
    assert free_path(FILES, str(tmp_path), partition=2, index=8).endswith(snapshot_name(2, 8, 1))
