"""A delta stands exactly at its cut, whatever goes on meanwhile, and a copy of its base with it equals a whole image there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procedures.idempotency import session_table
from procedures.idempotency.session_row import SINGLE_FIGURES, Stage
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState, Position
from snapshot.capture.delta import DeltaCapture, apply_deltas
from snapshot.errors import SnapshotDamaged
from snapshot.table_digest import open_image
from tests.snapshot.deltas import KEYS, TABLES, VERBS, Partition, Steps, digests_of

numbers = st.integers(0, KEYS - 1)
steps = st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from(TABLES), numbers, numbers), max_size=6)
kinds = st.sampled_from(("calls", "calls", "everywhere", "none"))
batches = st.lists(st.tuples(kinds, st.lists(steps, min_size=1, max_size=3), st.booleans()), max_size=6)
Batches = list[tuple[str, list[Steps], bool]]


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """A partition with some rows in every table."""
    partition = Partition(tmp_path)
    partition.apply([[("put", table, key, key) for table in TABLES for key in range(KEYS)]])
    partition.apply_everywhere([("put", "shared", key, key) for key in range(KEYS)])
    yield partition
    partition.close()


def run(partition: Partition, some: Batches) -> None:
    """Applies the batches."""
    for kind, calls, keyed in some:
        if kind == "none":
            partition.advance()
        elif kind == "everywhere":
            partition.apply_everywhere(calls[0], keyed=keyed)
        else:
            partition.apply(calls, keyed=keyed)


def finish(capture: DeltaCapture) -> dict[str, Any]:
    """Steps to the end."""
    while not capture.step():
        pass
    return capture.report()


def restored(base: Path, *deltas: DeltaCapture) -> Path:
    """A copy of the base with the deltas on it."""
    target = base.with_name(f"{base.name}.restored")
    shutil.copyfile(base, target)
    position = deltas[-1]._position
    assert position is not None
    apply_deltas(str(target), [delta.report()["path"] for delta in deltas], position)
    return target


def check_chain(folder: Path, before: Batches, between: Batches, during: Batches, later: Batches) -> None:
    """Image, work, delta with work between its steps, work, second delta: each restores to the state at its own cut."""
    partition = Partition(folder)
    run(partition, before)
    base = partition.image(folder / "base")
    start = partition.site.state.position
    run(partition, between)
    first, at_first = partition.delta(folder / "first", start), partition.digests()
    middle = partition.site.state.position
    for one in during:
        run(partition, [one])
        first.step()
    finish(first)
    run(partition, later)
    second, at_second = partition.delta(folder / "second", middle), partition.digests()
    finish(second)
    both = partition.delta(folder / "both", start)
    finish(both)
    partition.close()
    assert digests_of(restored(base, first)) == at_first
    assert digests_of(restored(base, first, second)) == at_second
    assert digests_of(restored(base, both)) == at_second


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(before=batches, between=batches, during=batches, later=batches)
def test_restored_chain_equals_the_state_at_the_cut(before: Batches, between: Batches, during: Batches, later: Batches) -> None:
    """Inserts, updates, moved keys, replaced rows, failed statements, rolled-back calls, keys that expire: at every cut."""
    with tempfile.TemporaryDirectory() as folder:
        check_chain(Path(folder), before, between, during, later)


def test_delta_holds_what_changed_and_nothing_else(partition: Partition, tmp_path: Path) -> None:
    """One changed row and one that is gone, in their tables; of the others not even the table."""
    partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("set", "items", 2, 3 * KEYS), ("drop", "pairs", 1, 1)]])
    finish(partition.delta(tmp_path / "delta", start))
    delta = open_image(tmp_path / "delta")
    names = {str(row[0]) for row in delta.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert names == {f"{prefix}{name}" for name in ("_cmdlog_meta", "items", "pairs") for prefix in ("", "_cmdlog_gone_")}
    assert delta.execute("SELECT * FROM items").fetchall() == [(2, f"v{3 * KEYS}", 3 * KEYS)]
    assert delta.execute('SELECT count(*) FROM "_cmdlog_gone_pairs"').get == 1
    delta.close()


def test_row_that_a_later_batch_touches_is_written_as_it_was(partition: Partition, tmp_path: Path) -> None:
    """Changed, removed, or made again behind the cut: the delta shows none of it."""
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("set", "items", key, KEYS + key) for key in range(4)], [("drop", "items", 5, 0)]])
    capture, wanted = partition.delta(tmp_path / "delta", start), partition.digests()
    partition.apply([[("set", "items", 0, 90), ("drop", "items", 1, 0), ("move", "items", 2, 77), ("put", "items", 5, 91)]])
    finish(capture)
    assert digests_of(restored(base, capture)) == wanted


def test_values_swapped_in_a_unique_index_are_restored(partition: Partition, tmp_path: Path) -> None:
    """Each row stands in the way of the other while they are put, in whatever order."""
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    swap: Steps = []
    for one, other in ((1, 6), (2, 5)):
        swap += [("set", "items", one, 50), ("set", "items", other, one), ("set", "items", one, other)]
    partition.apply([swap])
    assert dict(partition.site.rows("SELECT id, u FROM items WHERE id IN (1, 2, 5, 6)")) == {1: 6, 6: 1, 2: 5, 5: 2}
    capture = partition.delta(tmp_path / "delta", start)
    finish(capture)
    assert digests_of(restored(base, capture)) == partition.digests()


def test_outcomes_and_tombstones_of_keys_take_part(partition: Partition, tmp_path: Path) -> None:
    """Keys that are added, that expire and that are forgotten between base and cut are the same after a restore."""
    partition.apply([[]], keyed=True)
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    for _ in range(30):
        partition.apply([[]], keyed=True)
    capture = partition.delta(tmp_path / "delta", start)
    for _ in range(10):
        partition.apply([[]], keyed=True)
        capture.step()
    finish(capture)
    target = restored(base, capture)
    keys = "SELECT count(*), min(idx), max(idx), count(outcomes) FROM _cmdlog_keys"
    rows, lowest, highest, kept = map(int, map(str, apsw.Connection(str(target)).execute(keys).fetchall()[0]))
    assert highest == start.index + 30
    assert kept < rows
    assert lowest > start.index, "what the base held is forgotten"


def test_rows_of_sessions_take_part(partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come, shrink, grow old and go between base and cut, and what is said of forgotten sessions, are the same."""
    monkeypatch.setattr(session_table, "SHRINK_AFTER", 4)
    partition.apply([[], [], [], []], keyed=True)
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    for _ in range(20):
        partition.apply([[], [], [], []], keyed=True)
    partition.apply_everywhere([], keyed=True)
    capture, wanted = partition.delta(tmp_path / "delta", start), partition.digests()
    rows = partition.site.rows("SELECT * FROM _cmdlog_sessions")
    for _ in range(10):
        partition.apply([[], [], [], []], keyed=True)
        capture.step()
    finish(capture)
    target = restored(base, capture)
    assert digests_of(target)["_cmdlog_sessions"] == wanted["_cmdlog_sessions"]
    with closing(apsw.Connection(str(target))) as connection:
        assert connection.execute("SELECT * FROM _cmdlog_sessions").fetchall() == rows
    assert {row[0] for row in rows} > {SINGLE_FIGURES}
    assert {row[2] for row in rows} >= {Stage.NEW, Stage.SHRUNK}
    assert min(row[0] for row in rows if row[0] > 0) > start.index, "what the base held is gone"


def test_schema_change_ends_a_delta_and_forbids_the_next(partition: Partition, tmp_path: Path) -> None:
    """Rows may look different then: what changed since earlier cuts is not known any more."""
    partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("set", "items", key, key) for key in range(4)]])
    capture = partition.delta(tmp_path / "delta", start)
    at = partition.site.state.position
    partition.site.executor.apply_schema(
        index=at.index + 1,
        term=1,
        checksum=7,
        txn_id=at.txn_id + 1,
        change=StatedChange(("CREATE INDEX later ON items (u, id)",)),
    )
    finish(capture)
    assert "changed during the capture" in capture.report()["error"]
    assert not (tmp_path / "delta").exists()
    assert partition.changes.since(start) is None


def test_delta_to_a_full_disk_is_reported_and_the_next_one_is_whole(partition: Partition, tmp_path: Path) -> None:
    """In a step or while a batch is applied: the partition goes on, and the keys are still known."""
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("set", table, key, 7) for table in ("blobs", "sums", "folded") for key in range(KEYS)]])
    for at_once in (True, False):
        capture = partition.delta(tmp_path / "delta", start)
        assert capture._target is not None
        capture._target.execute("PRAGMA max_page_count = 3")
        if at_once:
            partition.apply([[("set", table, key, 6) for table in ("blobs", "sums", "folded") for key in range(KEYS)]])
        assert "FullError" in finish(capture)["error"]
        assert not (tmp_path / "delta").exists()
        assert partition.changes.watch is None
    capture = partition.delta(tmp_path / "delta", start)
    finish(capture)
    assert digests_of(restored(base, capture)) == partition.digests()


def test_existing_file_is_never_overwritten_by_a_delta(partition: Partition, tmp_path: Path) -> None:
    """A path that is taken fails and stays as it was."""
    base = partition.image(tmp_path / "base")
    before = base.read_bytes()
    capture = partition.delta(base, partition.site.state.position)
    assert "FileExists" in finish(capture)["error"]
    assert base.read_bytes() == before


def test_delta_on_another_base_is_refused(partition: Partition, tmp_path: Path) -> None:
    """Other tables, other columns, or another end than stated: nobody gets a state of that."""
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("set", "items", 1, 3 * KEYS)]])
    capture = partition.delta(tmp_path / "delta", start)
    finish(capture)
    with pytest.raises(SnapshotDamaged, match="should be at"):
        apply_deltas(str(shutil.copyfile(base, tmp_path / "copy")), [str(tmp_path / "delta")], Position(99, 1, 7, 1))
    other = PartitionState.open(tmp_path / "other", partition=0)
    other.close()
    assert capture._position is not None
    with pytest.raises(SnapshotDamaged, match="items"):
        apply_deltas(str(tmp_path / "other"), [str(tmp_path / "delta")], capture._position)


def test_steps_are_bounded_and_so_is_what_one_frees(
    partition: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small parts and many keys every key is written once, one unit a step."""
    monkeypatch.setattr("snapshot.capture.delta.PART_KEYS", 2)
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    for key in range(KEYS):
        partition.apply([[("set", "blobs", key, 7), ("set", "sums", key, 7)]])
    capture, wanted = partition.delta(tmp_path / "delta", start), partition.digests()
    taken = 0
    while not capture.step():
        partition.apply([[("set", "blobs", taken % KEYS, taken % KEYS)]])
        taken += 1
    assert 2 * KEYS <= taken <= 8 * KEYS
    delta = open_image(tmp_path / "delta")
    assert delta.execute("SELECT count(*), count(DISTINCT id) FROM blobs").fetchall() == [(KEYS, KEYS)]
    delta.close()
    assert digests_of(restored(base, capture)) == wanted


def test_nothing_is_synced_when_a_delta_is_put_on_an_image(partition: Partition, tmp_path: Path) -> None:
    """The restored file is not durable on purpose; a sync of the whole copy took two thirds of the time."""
    base = partition.image(tmp_path / "base")
    start = partition.site.state.position
    partition.apply([[("put", table, 1, 2) for table in TABLES]])
    delta = partition.delta(tmp_path / "delta", start)
    finish(delta)
    synced: list[str] = []
    usual = apsw.vfs_names()[0]

    class Watched(apsw.VFSFile):
        def __init__(self, name: Any, flags: list[int]) -> None:
            super().__init__(usual, name, flags)

        def xSync(self, flags: int) -> None:
            synced.append("sync")
            super().xSync(flags)

    class Watching(apsw.VFS):
        def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
            return Watched(name, flags)

    watching = Watching("watching", usual, makedefault=True)
    try:
        target = restored(base, delta)
    finally:
        watching.unregister()
    assert synced == []
    assert digests_of(target) == partition.digests()
