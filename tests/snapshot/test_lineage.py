"""Lineages: the two newest snapshots share nothing, chains stay whole, and no crash or damage on one touches the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.format.checked_json import encode_checked
from procedures.storage.state import PartitionState
from snapshot import retention
from snapshot.capture.seal import seal
from snapshot.catalog import Snapshot, check, clean, free_path, restore
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import CRC_KEY, MANIFEST_NAME, decode_manifest, encode_manifest
from snapshot.retention import anchor_block, fallback, independent, next_wish, retain
from snapshot.table_digest import TableDigest
from tests.snapshot.crashes import CrashingFiles, flip, seal_process
from tests.snapshot.deltas import FILES, KEYS, TABLES, Partition, digests_of

Truth = dict[str, dict[str, TableDigest]]  # name -> what the state held there


@pytest.fixture
def partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Partition]:
    """A small partition that is snapshotted as if it were a large one."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 100.0)
    partition = Partition(tmp_path)
    partition.apply([[("put", table, key, key) for table in TABLES for key in range(KEYS)]])
    yield partition
    partition.close()


def take(partition: Partition, count: int) -> Truth:
    """As many snapshots with work between them, and the truth about each."""
    truth: Truth = {}
    for _ in range(count):
        number = partition.site.state.position.index
        partition.apply([[("set", table, number % KEYS, 10 + number) for table in TABLES]], keyed=True)
        truth[partition.take().name] = partition.digests()
    return truth


def restored(snapshot: Snapshot, folder: Path) -> dict[str, TableDigest]:
    """What a restore brings; the position is checked by opening it."""
    target = folder / "restored"
    restore(snapshot, str(target))
    state = PartitionState.open(target, partition=0)
    assert snapshot.manifest is not None
    position, manifest = state.position, snapshot.manifest
    assert (position.index, position.txn_id) == (manifest.index, manifest.txn_id)
    state.close()
    return digests_of(target)


def test_snapshots_alternate_between_two_lineages(partition: Partition, tmp_path: Path) -> None:
    """Two whole ones, then deltas in turn; each restores to the state at its cut, and the newest two never share a file."""
    truth = take(partition, 7)
    found = partition.listed()
    kinds = [s.manifest.kind for s in found if s.manifest is not None]
    assert kinds == ["full", "full", *["delta"] * 5]
    assert [len(s.bases) for s in found] == [0, 0, 1, 1, 2, 2, 3]
    for at, snapshot in enumerate(found):
        assert check(FILES, snapshot) == ""
        assert restored(snapshot, tmp_path) == truth[snapshot.name]
        assert all(independent(snapshot, other) == (at % 2 != n % 2) for n, other in enumerate(found))


def test_manifest_of_a_delta_names_its_base_and_survives_a_round_trip(partition: Partition) -> None:
    """Kind, base and the schema that both share."""
    take(partition, 3)
    first, _, third = partition.listed()
    assert first.manifest is not None
    assert third.manifest is not None
    assert third.manifest.base == first.manifest.as_base(first.name)
    assert third.manifest.schema == first.manifest.schema
    assert decode_manifest(encode_manifest(third.manifest), path="m") == third.manifest
    stated = orjson.loads((Path(first.path) / MANIFEST_NAME).read_bytes())[CRC_KEY]
    assert f"{first.manifest.crc32c:08x}" == stated


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_crash_at_every_step_leaves_a_whole_snapshot_or_none(partition: Partition, tmp_path: Path, kind: str) -> None:
    """Whichever change to the disk is the last, both earlier snapshots stand, and the new one does or is nothing."""
    take(partition, 2)
    outcomes = []
    for survived in range(20):
        partition.apply([[("set", "items", 1, 100 + survived)]])
        temporary, facts = partition.captured(whole=kind == "full")
        assert facts["kind"] == kind
        final = free_path(FILES, str(tmp_path), partition=0, index=facts["index"])
        before = len(partition.listed())
        try:
            seal(CrashingFiles(survived), temporary, final, facts)
        except WriteFailed:
            clean(FILES, str(tmp_path))
            found = partition.listed()
            assert [check(FILES, snapshot) for snapshot in found] == [""] * len(found)
            outcomes.append(len(found) - before)
            if len(found) > before:
                assert restored(found[-1], tmp_path) == partition.digests()
        else:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 1}, "the crash points lie on both sides of the rename"


@pytest.mark.slow
def test_killed_seal_process_of_a_delta_leaves_a_whole_snapshot_or_none(partition: Partition, tmp_path: Path) -> None:
    """The real process, killed at moments all over its life; left alone it succeeds."""
    take(partition, 2)
    for wait_s in (0.1, 0.2, 0.3, 0.4, 60.0):
        partition.apply([[("set", "items", 1, int(1000 * wait_s))]])
        temporary, facts = partition.captured()
        final = free_path(FILES, str(tmp_path), partition=0, index=facts["index"])
        seal_process(temporary, final, facts, killed_after_s=wait_s)
        clean(FILES, str(tmp_path))
        assert [problem for s in partition.listed() if (problem := check(FILES, s))] == []
    newest = partition.listed()[-1]
    assert restored(newest, tmp_path) == partition.digests()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the data": lambda path: flip(next(path.glob("*.sqlite"))),
    "a bit of the manifest": lambda path: flip(path / MANIFEST_NAME),
    "shorter data": lambda path: os.truncate(next(path.glob("*.sqlite")), 100),
    "no data": lambda path: next(path.glob("*.sqlite")).unlink(),
    "no manifest": lambda path: (path / MANIFEST_NAME).unlink(),
    "no folder": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("at", [0, 3, 5])
def test_damage_in_one_lineage_leaves_the_other(partition: Partition, tmp_path: Path, damage: str, at: int) -> None:
    """Whatever is done to any snapshot: those that stand on it are named with the reason, all of the other lineage restore."""
    truth = take(partition, 6)
    names = [snapshot.name for snapshot in partition.listed()]
    broken = tmp_path / "snapshots" / names[at]
    DAMAGE[damage](broken)
    for snapshot in partition.listed():
        problem, n = check(FILES, snapshot), names.index(snapshot.name)
        if n % 2 == at % 2 and n >= at:
            assert names[at] in problem
        else:
            assert problem == ""
            assert restored(snapshot, tmp_path) == truth[snapshot.name]


def test_base_that_was_replaced_under_its_name_is_refused(partition: Partition, tmp_path: Path) -> None:
    """A whole snapshot of the same position, name and node is not the one that the delta was made on."""
    take(partition, 3)
    first = partition.listed()[0]
    assert first.manifest is not None
    values = {name: getattr(first.manifest, name) for name in first.manifest.__dataclass_fields__}
    other = type(first.manifest)(**{**values, "created": "2026-01-01T00:00:01Z"})
    (Path(first.path) / MANIFEST_NAME).write_bytes(encode_manifest(other))
    found = partition.listed()
    assert check(FILES, found[0]) == ""
    assert "a different snapshot has that name now" in found[2].problem
    assert found[2].manifest is None
    with pytest.raises(SnapshotDamaged, match="a different snapshot"):
        restore(found[2], str(tmp_path / "state"))


def test_delta_whose_base_goes_while_it_is_captured_is_not_sealed(partition: Partition, tmp_path: Path) -> None:
    """The seal looks for the base that the node had in mind, and gives no name without it."""
    take(partition, 2)
    temporary, facts = partition.captured()
    assert facts["kind"] == "delta"
    shutil.rmtree(tmp_path / "snapshots" / facts["base"]["name"])
    with pytest.raises(SnapshotDamaged):
        seal(FILES, temporary, free_path(FILES, str(tmp_path), partition=0, index=99), facts)
    assert len(partition.listed()) == 1


def test_restore_of_a_delta_that_changed_after_it_was_listed_leaves_no_state(partition: Partition, tmp_path: Path) -> None:
    """The checksums are compared when it is used, too."""
    take(partition, 4)
    newest = partition.listed()[-1]
    flip(Path(newest.path) / "delta.sqlite")
    with pytest.raises(SnapshotDamaged, match="has changed"):
        restore(newest, str(tmp_path / "restored"))
    assert not [name for name in os.listdir(tmp_path) if name.startswith("restored")]


def test_restore_after_a_killed_one_starts_from_nothing(partition: Partition, tmp_path: Path) -> None:
    """A log of SQLite that a killed restore left beside its copy is not applied to the next one."""
    truth = take(partition, 4)
    newest = partition.listed()[-1]
    for suffix in ("", "-wal", "-shm", "-journal"):
        shutil.copyfile(partition.site.path, f"{tmp_path / 'restored.restore'}{suffix}")
    assert restored(newest, tmp_path) == truth[newest.name]


def test_retention_keeps_the_chains_of_what_it_keeps(partition: Partition, tmp_path: Path) -> None:
    """Bases do not count and stay; once a whole one begins each lineage anew, the old chains go."""
    truth = take(partition, 6)
    assert retain(FILES, partition.listed(), kept=2) == []
    for _ in range(2):
        partition.apply([[("set", "items", 1, 500)]])
        truth[partition.take(whole=True).name] = partition.digests()
    assert len(retain(FILES, partition.listed(), kept=2)) == 6
    for snapshot in partition.listed():
        assert restored(snapshot, tmp_path) == truth[snapshot.name]


def test_retention_keeps_what_recovery_falls_back_to(partition: Partition) -> None:
    """With damage in one lineage the newest ones stand on each other: the other lineage stays, and holds the log."""
    take(partition, 6)
    (Path(partition.listed()[5].path) / MANIFEST_NAME).unlink()
    (Path(partition.listed()[3].path) / MANIFEST_NAME).unlink()
    usable = [s for s in partition.listed() if s.manifest is not None]
    assert [len(s.bases) for s in usable] == [0, 0, 1, 2]
    second = fallback(partition.listed())
    assert second is not None
    assert anchor_block(partition.listed()) == 10 * second.index
    retain(FILES, partition.listed(), kept=2)
    assert second.name in {s.name for s in partition.listed()}
    assert anchor_block(partition.listed()) == 10 * second.index


def test_anchor_is_of_the_newest_independent_snapshot(partition: Partition) -> None:
    """Of two that share their base the older one is nothing to fall back to."""
    take(partition, 1)
    assert anchor_block(partition.listed()) is None
    take(partition, 4)
    found = partition.listed()
    assert anchor_block(found) == 10 * found[3].index
    assert anchor_block([s for s in found if s.name != found[3].name]) == 10 * found[1].index
    assert anchor_block([found[0], found[2], found[4]]) is None


def test_chain_is_bounded_in_deltas_and_in_rows(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond either bound the wish has no base, so the next one is whole; also of an image that is small anyway."""
    take(partition, 4)
    assert next_wish(partition.listed(), "x")[1] is not None
    for name, value in (("DELTAS_MAX", 1), ("ROWS_SHARE", 0.01), ("IMAGE_BYTES_MIN", 1 << 30)):
        with monkeypatch.context() as patch:
            patch.setattr(retention, name, value)
            wish, base = next_wish(partition.listed(), "x")
            assert (wish.base, base) == (None, None), name
            assert wish.keep == tuple(s.index for s in partition.listed()[-2:])


@pytest.mark.parametrize(
    "wrong", [{"kind": "delta"}, {"kind": "other"}, {"base": {"name": "x"}}, {"base": 7}, {"files": []}], ids=str
)
def test_manifest_whose_kind_and_base_disagree_is_damaged(partition: Partition, wrong: dict[str, object]) -> None:
    """A good checksum does not make sense of it."""
    path = partition.take() / MANIFEST_NAME
    value = {**orjson.loads(path.read_bytes()), **wrong}
    del value[CRC_KEY]
    with pytest.raises(SnapshotDamaged):
        decode_manifest(encode_checked(value, key=CRC_KEY), path="m")
