"""The tables about the log, without Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.wal.format.checked_json import encode_checked
from cmdlog.wal.ids import txn_millis
from replay.spark.base.options import parse_options
from replay.spark.datasource.log_tables import SCHEMAS, check_paths, rows_of
from replay.spark.reading import segment_index
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.spark.reading import made, read, txns


def table(name: str, *directories: str, **options: str) -> list[dict[str, Any]]:
    """The rows by column; every row has the schema's columns."""
    columns = [column.split()[0] for column in SCHEMAS[name].split(", ")]
    given = parse_options({"paths": orjson.dumps(directories).decode(), "table": name, **options})
    check_paths(given)
    found = rows_of(given)
    return [dict(zip(columns, row, strict=True)) for row in found]


def test_segments_say_what_is_where(tmp_path: Path) -> None:
    """Per segment and partition: which transactions, how many calls, whether it lies in the archive."""
    rig = ArchiveRig(tmp_path)
    rig.rotate(4)
    rig.close()
    rows = table("segments", rig.directory)
    every = sorted(txn for txn, _ in rig.history)
    assert sum(row["calls"] for row in rows) == len(every)
    of_calls = [row for row in rows if row["calls"]]
    assert (min(row["first_txn"] for row in of_calls), max(row["last_txn"] for row in of_calls)) == (every[0], every[-1])
    assert {row["archived"] for row in rows} == {True, False}
    assert of_calls[0]["first_ts"] == datetime.fromtimestamp(txn_millis(of_calls[0]["first_txn"]) / 1000, UTC)
    assert {row["partition_id"] for row in table("segments", rig.directory, partitions="1")} <= {1, None}


def test_snapshots_are_listed_with_the_bad_ones(tmp_path: Path) -> None:
    """D18: a snapshot that is not whole is told with the reason, and hinders no read."""
    rig = made(tmp_path, 4)
    rig.restart()
    good, bad = rig.snapshot(0), rig.snapshot(1)
    rig.close()
    os.unlink(os.path.join(bad, "manifest.json"))
    rows = {row["partition_id"]: row for row in table("snapshots", rig.directory)}
    assert (rows[0]["name"], rows[0]["problem"]) == (os.path.basename(good), "")
    assert rows[0]["txn_id"] in txns(read(rig.directory))
    assert rows[1]["problem"]
    assert any("snapshot" in row["what"] for row in table("faults", rig.directory))


def test_good_log_has_neither_gaps_nor_faults(tmp_path: Path) -> None:
    """Nothing is told where nothing is wrong."""
    rig = made(tmp_path, 4)
    assert table("gaps", rig.directory) == table("faults", rig.directory) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_is_told_with_its_place_and_what_it_costs(tmp_path: Path, number: int) -> None:
    """D14: faults name segment and offset, gaps the entries; gaps and what can still be read make the whole."""
    rig = made(tmp_path)
    segment_index._kept.clear()
    segment = damage.segments(rig.directory)[number]
    damage.flip(segment, 6 * 4096 + 100)
    assert (segment, 6 * 4096) in {(row["path"], row["offset"]) for row in table("faults", rig.directory)}
    missing = sum(row["missing"] for row in table("gaps", rig.directory))
    assert len(read(rig.directory, failOnDataLoss="false")) < 96
    assert missing > 0 or number == 2  # the end of the newest segment is behind what is known committed


def test_directory_that_is_refused_wholly_is_a_fault(tmp_path: Path) -> None:
    """Without instance file, with one that is damaged or newer, without log: a row says so, and no read is needed to know it."""
    changes: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: path.unlink(), "instance.json is missing"),
        (lambda path: path.write_bytes(b"{}"), "does not match its checksum"),
        (lambda path: path.write_bytes(newer(path)), "has format 9, this program reads"),
        (lambda path: shutil.rmtree(path.parent / "log"), "whose folder log/ is missing"),
    ]
    for number, (change, why) in enumerate(changes):
        rig = made(tmp_path / str(number), 4)
        change(Path(rig.directory, "instance.json"))
        (row,) = table("faults", rig.directory)
        assert (row["node"], row["directory"]) == (None, rig.directory)
        assert why in row["what"]


def newer(path: Path) -> bytes:
    """The instance file as a program of another format would have written it."""
    value = {**orjson.loads(path.read_bytes()), "format": 9}
    del value["checksum"]
    return encode_checked(value)


def test_faults_are_told_of_each_directory_and_between_them(tmp_path: Path) -> None:
    """One directory is refused wholly, one is damaged, and two are of different clusters: everything stands in the table."""
    rigs = [made(tmp_path / name) for name in ("lost", "hurt", "other")]
    segment_index._kept.clear()
    Path(rigs[0].directory, "instance.json").unlink()
    segment = damage.segments(rigs[1].directory)[0]
    damage.flip(segment, 6 * 4096 + 100)
    rows = table("faults", *(rig.directory for rig in rigs))
    assert [row["directory"] for row in rows] == [rigs[0].directory, rigs[1].directory, None]
    assert (rows[1]["node"], rows[1]["path"], rows[1]["offset"]) == (1, segment, 6 * 4096)
    assert "of cluster" in rows[2]["what"]
