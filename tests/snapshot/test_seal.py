"""Sealing an image: how often the process lets others in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.files import RealFiles
from procedures.storage.state import PartitionState
from snapshot import background_io, table_digest
from snapshot.capture import seal
from snapshot.manifest import CHUNK_BYTES, IMAGE_NAME, file_entry

ROWS = 5_000
TEXT = "x" * 400
FACTS: dict[str, Any] = {
    "cluster_id": "ab" * 16,
    "node_id": 1,
    "incarnation": "cd" * 16,
    "log_block": 1,
    "epoch": 0,
    "configuration": None,
    "catalogs": {},
    "environment": None,
    "key_policy": None,
    "created": "2026-01-01T00:00:00Z",
}


class Rests:
    """Counts, and takes none."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self) -> bool:
        self.taken += 1
        return False


@pytest.fixture
def captured(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The image of a state with one table, some 2 MB, and the facts about it."""
    image = tmp_path / "captured" / IMAGE_NAME
    image.parent.mkdir()
    state = PartitionState.open(tmp_path / "state", partition=0)
    state.connection.execute("CREATE TABLE boxes (box INTEGER PRIMARY KEY, label TEXT NOT NULL) STRICT")
    with state.connection:
        state.connection.executemany("INSERT INTO boxes VALUES (?, ?)", ((box, TEXT) for box in range(ROWS)))
    state.connection.execute("VACUUM INTO ?", (str(image),))
    state.close()
    return image, dict.fromkeys(("partition", "index", "term", "checksum", "txn_id"), 0) | FACTS


def test_every_part_of_the_check_rests(captured: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums rest at every piece, SQLite's check at every few pages, digests at every few rows: none is long at once."""
    image, facts = captured
    pieces = image.stat().st_size / CHUNK_BYTES
    pages = image.stat().st_size / 4096
    sums = Rests()
    file_entry(str(image), sums)
    assert sums.taken >= pieces
    whole = Rests()
    seal.describe(str(image), facts, whole)
    monkeypatch.setattr(seal, "table_digests", lambda _connection: {})
    without = Rests()
    seal.describe(str(image), facts, without)
    assert without.taken - sums.taken >= pages / seal.STEPS_BETWEEN_RESTS
    assert whole.taken - without.taken >= ROWS / table_digest.ROWS_PER_CHUNK


def test_sealing_rests_from_begin_to_end(captured: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking, forgetting and reading back share one breath."""
    image, facts = captured
    checked, forgotten, rests = Rests(), Rests(), Rests()
    seal.describe(str(image), facts, checked)
    background_io.forget_cache(str(image), forgotten)
    read_back = image.stat().st_size / CHUNK_BYTES
    monkeypatch.setattr(seal, "Breath", lambda: rests)
    seal.seal(RealFiles(), str(image.parent), str(image.parent.parent / "p0000-0000000000000000"), facts)
    assert rests.taken >= checked.taken + forgotten.taken + read_back
