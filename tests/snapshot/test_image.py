"""Capture: whole, at a batch boundary, while the site goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from procedures.storage.state import PartitionState, Position
from snapshot.capture import image as module
from snapshot.capture.image import ImageCapture
from snapshot.table_digest import open_image, table_digests


@pytest.fixture
def state(tmp_path: Path) -> PartitionState:
    """A state with 3,000 rows, all of one generation."""
    state = PartitionState.open(tmp_path / "p0.sqlite", partition=0)
    state.connection.execute(
        "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, generation INTEGER NOT NULL, filler TEXT NOT NULL)"
    )
    with state.connection:
        for row in range(3000):
            state.connection.execute("INSERT INTO t VALUES (?, 0, ?)", (row, "x" * 100))
    return state


def apply_batch(state: PartitionState, index: int) -> None:
    """One 'batch': changes every thousandth row but always the same share, and the position with it."""
    state.connection.execute("BEGIN IMMEDIATE")
    state.connection.execute("UPDATE t SET generation = ? WHERE id % 10 = ?", (index, index % 10))
    position = Position(index, 1, 1000 + index, index << 21)
    state.save(position, 0)
    state.connection.execute("COMMIT")
    state.position = position


def image_rows(path: Path) -> tuple[int, list[int]]:
    """The image's position and rows."""
    connection = open_image(path)
    index = connection.execute("SELECT idx FROM _cmdlog_meta").get
    rows = [int(str(row[0])) for row in connection.execute("SELECT generation FROM t ORDER BY id")]
    connection.close()
    assert isinstance(index, int)
    return index, rows


def expected_rows(index: int) -> list[int]:
    """The rows after that batch."""
    newest = {i % 10: i for i in range(1, index + 1)}
    return [newest.get(row % 10, 0) for row in range(3000)]


def test_image_under_concurrent_batches_is_one_batch_boundary(
    state: PartitionState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches between all steps leave an image that equals the state after exactly the reported batch."""
    monkeypatch.setattr(module, "STEP_PAGES_MAX", 2)
    capture, index = ImageCapture(state, str(tmp_path / "image")), 0
    while not capture.step():
        index += 1
        apply_batch(state, index)
    report = capture.report()
    apply_batch(state, index + 1)
    assert index > 10
    assert report["index"] == index
    assert (report["term"], report["checksum"], report["txn_id"]) == (1, 1000 + index, index << 21)
    assert image_rows(tmp_path / "image") == (index, expected_rows(index))


def test_image_equals_the_state_table_by_table(state: PartitionState, tmp_path: Path) -> None:
    """Row counts and digests of image and state are equal, and differ as soon as one row does."""
    capture = ImageCapture(state, str(tmp_path / "image"))
    while not capture.step():
        pass
    image = open_image(tmp_path / "image")
    assert table_digests(image) == table_digests(state.connection)
    apply_batch(state, 1)
    assert table_digests(image) != table_digests(state.connection)


def test_capture_that_cannot_write_is_reported_and_harms_nothing(state: PartitionState, tmp_path: Path) -> None:
    """A path in a folder that is not there gives a report with an error; the state goes on."""
    capture = ImageCapture(state, str(tmp_path / "missing" / "image"))
    assert capture.step()
    assert "FileNotFound" in capture.report()["error"]
    apply_batch(state, 1)


def test_capture_to_a_full_disk_is_reported_and_leaves_no_file(state: PartitionState, tmp_path: Path) -> None:
    """SQLITE_FULL of the copy is the copy's affair alone."""
    path = tmp_path / "image"
    capture = ImageCapture(state, str(path))
    assert capture._target is not None
    capture._target.execute("PRAGMA max_page_count = 20")
    while not capture.step():
        pass
    assert "FullError" in capture.report()["error"]
    assert not path.exists()


def test_aborted_capture_leaves_no_file_and_frees_the_state(state: PartitionState, tmp_path: Path) -> None:
    """After an abort in the middle the state can be written and captured again."""
    path = tmp_path / "image"
    capture = ImageCapture(state, str(path))
    capture.step()
    capture.abort()
    assert not path.exists()
    apply_batch(state, 1)
    again = ImageCapture(state, str(path))
    while not again.step():
        pass
    assert again.report()["index"] == 1


def test_checkpoints_are_short_only_while_a_copy_is_under_way(state: PartitionState, tmp_path: Path) -> None:
    """A checkpoint holds the next batch up: it comes more often during a capture, and as before after its end or its failure."""
    log = state.log
    before = log.pages_checkpoint
    capture = ImageCapture(state, str(tmp_path / "image"))
    assert log.pages_checkpoint == module.CHECKPOINT_PAGES < before
    while not capture.step():
        pass
    assert log.pages_checkpoint == before
    ImageCapture(state, str(tmp_path / "other")).abort()
    assert log.pages_checkpoint == before
    ImageCapture(state, str(tmp_path / "image"))  # it is there already
    assert log.pages_checkpoint == before


def test_existing_file_is_never_overwritten(state: PartitionState, tmp_path: Path) -> None:
    """A capture to a path that is taken fails and leaves the file as it was."""
    path = tmp_path / "image"
    path.write_bytes(b"another image")
    capture = ImageCapture(state, str(path))
    assert capture.step()
    assert "error" in capture.report()
    assert path.read_bytes() == b"another image"
