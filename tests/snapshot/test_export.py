"""Export: every type exactly, all partitions in one file, bounded, atomic, and wrong values named."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cmdlog
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import NotEmpty
from cmdlog.wal.files import RealFiles
from procedures.samples import bank
from snapshot import export as module
from snapshot import retention
from snapshot.catalog import Snapshot, list_snapshots
from snapshot.errors import SnapshotDamaged
from snapshot.export import BadValue, ExportError, ExportProgress, ParquetMissing, export
from snapshot.manifest import TableEntry, decode_manifest, encode_manifest, file_entry
from snapshot.table_digest import open_image, table_digests
from tests.commands import Command

FILES = RealFiles()
APP = """
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID
from sqlalchemy import (JSON, Boolean, Column, Date, DateTime, Double, Enum, BigInteger, Integer, LargeBinary, Numeric, String,
                        Uuid, insert, bindparam)
from procedures import Database

db = Database("every")
things = db.table(
    "things",
    Column("id", Integer, primary_key=True),
    Column("big", BigInteger), Column("flag", Boolean), Column("real", Double), Column("price", Numeric(12, 2)),
    Column("exact", Numeric(18, 6)), Column("at", DateTime), Column("day", Date),
    Column("ident", Uuid),
    Column("nested", JSON), Column("text", String), Column("kind", Enum("a", "b", name="kind")), Column("raw", LargeBinary),
    partition_by="id",
)
lines = db.table(
    "lines", Column("id", Integer, primary_key=True), Column("line", Integer, primary_key=True), Column("note", String),
    partition_by="id",
)
rates = db.table("rates", Column("name", String, primary_key=True), Column("value", Integer, nullable=False), replicated=True)
NAMES = [column.name for column in things.columns]
ADD = insert(things).values({name: bindparam(name + "_") for name in NAMES})
LINE = insert(lines).values(id=bindparam("id_"), line=bindparam("line_"), note=bindparam("note_"))
RATE = insert(rates).values(name=bindparam("name_"), value=bindparam("value_"))


@db.procedure(partition_by="id")
def add(tx, id: int, big: int, flag: bool, real: float, price: Decimal, exact: Decimal, at: datetime, day: date,
        ident: UUID, text: str, kind: str, raw: bytes) -> None:
    given = {**locals(), "nested": {"b": [1, None, "x"], "a": 1.5}}
    tx.execute(ADD, **{name + "_": given[name] for name in NAMES})


@db.procedure(partition_by="id")
def empty(tx, id: int) -> None:
    tx.execute(ADD, **{name + "_": None for name in NAMES[1:]}, id_=id)


@db.procedure(partition_by="id")
def fill(tx, id: int, count: int) -> None:
    for line in range(count):
        tx.execute(LINE, id_=id, line_=line, note_="n" * (line % 7))


@db.procedure()
def rate(tx, name: str, value: int) -> None:
    tx.execute(RATE, name_=name, value_=value)
"""
FULL_ROW: dict[str, Any] = {
    "id": 1,
    "big": -(2**63),
    "flag": True,
    "real": -0.1,
    "price": Decimal("-12345678.90"),
    "exact": Decimal("1.234567"),
    "at": datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    "day": date(1969, 12, 31),
    "ident": "12345678-1234-5678-1234-567812345678",
    "text": "Grüße\n\0end",
    "kind": "b",
    "raw": bytes(range(256)),
}
TYPES = {
    "id": pa.int64(), "big": pa.int64(), "flag": pa.bool_(), "real": pa.float64(), "price": pa.decimal128(12, 2),
    "exact": pa.decimal128(18, 6), "at": pa.timestamp("us", tz="UTC"), "day": pa.date32(),
    "ident": pa.string(), "nested": pa.string(), "text": pa.string(), "kind": pa.string(), "raw": pa.binary(),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A closed node directory of two partitions, each with one snapshot, and the application beside it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "every_app.py").write_text(APP)
    sys.path.insert(0, str(folder))
    app = importlib.import_module("every_app")
    with cmdlog.open(folder / "node", app.db, partitions=2, segments=4, segment_bytes=4 << 20) as opened:
        opened.call("add", **FULL_ROW)
        opened.call("empty", id=2)
        for number in range(10, 14):
            opened.call("empty", id=number)
            opened.call("fill", id=number, count=50)
        opened.call("rate", name="eur", value=100)
        opened.node.take_snapshot()
    yield folder / "node"
    sys.modules.pop("every_app")
    sys.path.remove(str(folder))


@pytest.fixture
def node(made: Path, tmp_path: Path) -> str:
    """A copy of it for the test to break."""
    return str(shutil.copytree(made, tmp_path / "node"))


def snapshots_of(directory: str) -> list[Snapshot]:
    """All of the node's."""
    return list_snapshots(FILES, directory, load_instance(FILES, directory).identity)


def change(snapshot: Snapshot, sql: str) -> None:
    """Changes an image behind everybody's back, with fitting checksums: STRICT tables would refuse it."""
    image, path = Path(snapshot.path, "image.sqlite"), Path(snapshot.path, "manifest.json")
    connection = apsw.Connection(str(image))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(replace(sql, ' STRICT, WITHOUT', ' WITHOUT'), ' STRICT', '')")
    connection.close()
    connection = apsw.Connection(str(image))
    connection.execute(sql)
    connection.close()
    manifest = decode_manifest(path.read_bytes(), path=str(path))
    opened = open_image(image)
    tables = tuple(TableEntry(name, digest.rows, digest.sha256) for name, digest in table_digests(opened).items())
    opened.close()
    path.write_bytes(encode_manifest(replace(manifest, tables=tables, files=(file_entry(str(image)),))))


# -- what is written -----------------------------------------------------------------------------------------------------


def test_every_type_comes_back_as_it_was_declared(node: str, tmp_path: Path) -> None:
    """Types of the schema, and the very values: bytes, digits, microseconds, NULL."""
    export(FILES, snapshots_of(node), str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out" / "things.parquet")
    assert {field.name: field.type for field in table.schema} == TYPES
    assert [field.name for field in table.schema if not field.nullable] == ["id"]
    rows = {row["id"]: row for row in table.to_pylist()}
    assert rows[1] == {
        **FULL_ROW,
        "nested": '{"a":1.5,"b":[1,null,"x"]}',
    }
    assert rows[2] == {**dict.fromkeys(TYPES), "id": 2, "nested": "null"}  # what None is in JSON
    assert sorted(rows) == [1, 2, 10, 11, 12, 13]


def test_rows_of_all_partitions_stand_in_one_file_and_replicated_ones_once(node: str, tmp_path: Path) -> None:
    """One file per table, sorted within a partition; where each partition stands is in the metadata."""
    exported = export(FILES, snapshots_of(node), str(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path / "out")) == ["lines.parquet", "rates.parquet", "things.parquet"]
    assert [(one.table, one.rows) for one in exported] == [("lines", 200), ("rates", 1), ("things", 6)]
    lines = pq.read_table(tmp_path / "out" / "lines.parquet")
    assert sorted((row["id"], row["line"]) for row in lines.to_pylist()) == [
        (n, line) for n in range(10, 14) for line in range(50)
    ]
    about = orjson.loads(lines.schema.metadata[b"cmdlog"])
    stated = {str(s.partition): s.manifest.txn_id for s in snapshots_of(node) if s.manifest}
    assert {p: int(of["txn_id"]) for p, of in about["partitions"].items()} == stated
    assert len(stated) == 2


def test_table_that_is_not_declared_any_more_has_the_types_of_sqlite(node: str, tmp_path: Path) -> None:
    """Its rows stay in the state, so they are exported."""
    from procedures import Database

    export(FILES, snapshots_of(node), str(tmp_path / "out"), db=Database("none"))
    schema = pq.read_schema(tmp_path / "out" / "things.parquet")
    found = {name: str(schema.field(name).type) for name in ("id", "flag", "real", "price", "at", "raw")}
    assert found == {
        "id": "int64",
        "flag": "int64",
        "real": "double",
        "price": "decimal128(12, 2)",
        "at": "string",
        "raw": "binary",
    }


def test_delta_is_exported_as_the_state_that_it_makes_of_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows, those of the base and those that changed since, as the newest snapshot has them; nothing else is left."""
    monkeypatch.setattr(retention, "IMAGE_BYTES_MIN", 0)
    monkeypatch.setattr(retention, "ROWS_SHARE", 10.0)
    with cmdlog.open(tmp_path / "bank", bank.db, partitions=1, segments=4, segment_bytes=4 << 20) as opened:
        opened.call("open_accounts", branch=1, first=0, count=10, savings=5, checking=5)
        opened.node.take_snapshot()
        opened.node.take_snapshot()
        opened.call("deposit_checking", branch=1, customer=3, amount=7)
        [described] = opened.node.take_snapshot()
    assert described["kind"] == "delta"
    newest = snapshots_of(str(tmp_path / "bank"))[-1]
    export(FILES, [newest], str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "accounts.parquet").to_pylist()
    assert [row["checking"] for row in rows] == [5, 5, 5, 12, 5, 5, 5, 5, 5, 5]
    assert sorted(os.listdir(tmp_path / "out")) == ["accounts.parquet", "rates.parquet"]


def test_chunks_and_groups_bound_the_memory(node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go through in chunks, by number and by size, and end in groups; none is lost or doubled."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    monkeypatch.setattr(module, "CHUNK_BYTES", 200)
    monkeypatch.setattr(module, "GROUP_ROWS", 20)
    seen: list[ExportProgress] = []
    export(FILES, snapshots_of(node), str(tmp_path / "out"), progress=seen.append)
    file = pq.ParquetFile(tmp_path / "out" / "lines.parquet")
    sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert sum(sizes) == 200
    assert max(sizes) <= 27
    assert len({(row["id"], row["line"]) for row in file.read().to_pylist()}) == 200
    assert [progress.rows for progress in seen] == sorted(progress.rows for progress in seen)
    assert seen[-1].rows == seen[-1].rows_total == 207


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("big", "'text'", "int64"),
        ("flag", "2", "bool"),
        ("real", "'x'", "double"),
        ("price", "'1.234'", "decimal128"),
        ("at", "'2026-01-31T12:00:00'", "timestamp"),
        ("at", "17", "timestamp"),
        ("day", "'31.1.2026'", "date32"),
        ("text", "x'00'", "string"),
        ("raw", "'text'", "binary"),
    ],
)
def test_value_of_another_type_is_named_with_its_row(node: str, tmp_path: Path, column: str, value: str, kind: str) -> None:
    """Nothing is rounded or guessed, and nothing is left."""
    [holder] = [s for s in snapshots_of(node) if _has(s, 11)]
    change(holder, f"UPDATE things SET {column} = {value} WHERE id = 11")  # noqa: S608 - values of this file
    with pytest.raises(BadValue, match=f"table things, row id=11, column {column}: .* is not a valid {kind}"):
        export(FILES, snapshots_of(node), str(tmp_path / "out"))
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


def _has(snapshot: Snapshot, row: int) -> bool:
    connection = open_image(Path(snapshot.path, "image.sqlite"))
    found = connection.execute("SELECT count(*) FROM things WHERE id = ?", (row,)).get
    connection.close()
    return found == 1


def test_damaged_snapshot_is_not_exported(node: str, tmp_path: Path) -> None:
    """All checksums are compared first."""
    image = Path(snapshots_of(node)[1].path, "image.sqlite")
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)
    with pytest.raises(SnapshotDamaged, match="cannot be exported"):
        export(FILES, snapshots_of(node), str(tmp_path / "out"))


def test_table_whose_name_is_a_path_is_refused(node: str, tmp_path: Path) -> None:
    """Names in an image never become paths."""
    change(snapshots_of(node)[0], 'CREATE TABLE "../up" (id INTEGER PRIMARY KEY)')
    with pytest.raises(ExportError, match="has a name that no application can declare"):
        export(FILES, snapshots_of(node), str(tmp_path / "out"))
    assert not list(tmp_path.glob("up*"))


def test_missing_pyarrow_is_told_with_the_extra_that_brings_it(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported only for an export; nothing is made without it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ParquetMissing, match=r"cmdlog\[parquet\]"):
        export(FILES, snapshots_of(node), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_folder_that_holds_something_is_left_alone(node: str, tmp_path: Path) -> None:
    """An empty one is used."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(NotEmpty, match="choose an empty or new folder"):
        export(FILES, snapshots_of(node), str(tmp_path / "out"))
    (tmp_path / "out" / "mine").unlink()
    export(FILES, snapshots_of(node), str(tmp_path / "out"))
    assert len(os.listdir(tmp_path / "out")) == 3


def test_export_that_is_broken_off_leaves_nothing(node: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle: neither the folder nor a temporary one."""

    def interrupt(progress: ExportProgress) -> None:
        if progress.table == "rates":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(FILES, snapshots_of(node), str(tmp_path / "out"), progress=interrupt)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("out")]


# -- the command ---------------------------------------------------------------------------------------------------------


def test_command_exports_the_newest_snapshots_or_one(node: str, tmp_path: Path, command: Command) -> None:
    """What it wrote, from which snapshots; one snapshot alone has its partition's rows."""
    code, value = command("snapshot", "export", node, "--to", tmp_path / "all", "--json")
    assert code == 0
    assert {table["table"]: table["rows"] for table in value["tables"]} == {"lines": 200, "rates": 1, "things": 6}
    assert sorted(value["snapshots"]) == ["0", "1"]
    name = value["snapshots"]["1"]["snapshot"]
    code, value = command(
        "snapshot", "export", node, "--to", tmp_path / "one", "--snapshot", name, "--app", "every_app:db", "--json"
    )
    assert code == 0
    assert value["snapshots"] == {"1": {"snapshot": name, "txn_id": value["snapshots"]["1"]["txn_id"]}}
    assert 0 < sum(table["rows"] for table in value["tables"]) < 207
    code, value = command("snapshot", "export", node, "--to", tmp_path / "none", "--snapshot", "../../etc", "--json")
    assert (code, value["error"]["message"]) == (1, "there is no snapshot ../../etc")
