"""Logs from before exact numbers: their Numeric is text, and everything that reads them finds it so."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

import cmdlog
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, load_bundle
from procedures.bundle_dialect import KNOWN, TEXT_NUMERIC
from procedures.errors import SchemaConflict
from procedures.numeric.numeric_types import numeric_as_text
from replay.drill.drill import drill
from replay.fork.fork import START, fork
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from snapshot.catalog import list_snapshots
from snapshot.export import export
from tests.replay.ledgers import SMALL, Versions, rows_of

pytestmark = pytest.mark.slow
PRICES = """
from decimal import Decimal
from sqlalchemy import Column, Integer, Numeric, bindparam, insert, select, update
from procedures import Database

db = Database("prices")
prices = db.table(
    "prices", Column("id", Integer, primary_key=True), Column("price", Numeric(12, 2)), Column("free", Numeric(12, 4)),
    partition_by="id",
)
PUT = insert(prices).values(id=bindparam("id_"), price=bindparam("price_"), free=Decimal("1.5"))
SET = update(prices).where(prices.c.id == bindparam("id_")).values(price=bindparam("price_"))
GET = select(prices.c.price).where(prices.c.id == bindparam("id_"))
ABOVE = select(prices.c.id).where(prices.c.price > bindparam("price_")).order_by(prices.c.price)


@db.procedure(partition_by="item")
def put(tx, item: int, digits: str) -> str:
    tx.execute(PUT, id_=item, price_=Decimal(digits))
    return str(tx.execute(GET, id_=item).scalar())


@db.procedure(partition_by="item")
def change(tx, item: int, digits: str) -> list[int]:
    tx.execute(SET, id_=item, price_=Decimal(digits))
    return [row.id for row in tx.execute(ABOVE, price_=Decimal("2"))]
"""
HASH_BEFORE = "8e341862a9e3729f0cca1e1dd9e7cf4d6d36082637361556965a1e4c7d079781"
SQL_BEFORE = "SELECT prices.id \nFROM prices \nWHERE prices.price > :price_ ORDER BY prices.price"
FILES = RealFiles()


def load(versions: Versions, name: str, source: str = PRICES) -> Database:
    """As cmdlog loaded it before numbers were exact."""
    with numeric_as_text():
        return versions.load(name, source)


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node whose code and state have text."""
    folder = tmp_path_factory.mktemp("prices") / "node"
    with cmdlog.open(folder, load(versions, "prices_v1"), partitions=2, **SMALL) as opened:
        for item in range(8):
            opened.call("put", item=item, digits=f"{item}.5{'0' * item}")
        found = [opened.call("change", item=item, digits=f"{item * 3}") for item in range(8)]
    assert any(found), "no text was compared: the test is empty"
    return folder


def test_a_bundle_of_that_time_is_the_same(versions: Versions) -> None:
    """Its hash and its SQL are those that the version before gave it; it holds no member `dialect`."""
    bundle = capture_bundle(load(versions, "prices_v1"))
    assert bundle.dialect == TEXT_NUMERIC
    assert "dialect" not in orjson.loads(bundle.to_bytes())
    assert (bundle.hash, bundle.sql["prices_v1.ABOVE"]) == (HASH_BEFORE, SQL_BEFORE)
    loaded = load_bundle(Bundle.from_bytes(bundle.to_bytes()))
    assert loaded.schema_statements() == load(versions, "prices_v1").schema_statements()
    assert "price TEXT" in loaded.schema_statements()[0]


def test_a_bundle_of_exact_numbers_says_so(versions: Versions) -> None:
    """The same source is another bundle, and loads as exact even where text is asked for."""
    with_text = capture_bundle(load(versions, "prices_v1"))
    exact = capture_bundle(versions.load("prices_v2", PRICES))
    assert exact.dialect == KNOWN[-1]
    assert orjson.loads(exact.to_bytes())["dialect"] == KNOWN[-1]
    assert with_text.sql != exact.sql or with_text.hash != exact.hash
    assert "price INTEGER" in load_bundle(Bundle.from_bytes(exact.to_bytes())).schema_statements()[0]


def test_a_log_with_text_replays_as_it_ran(node: Path, tmp_path: Path) -> None:
    """From the start, with digests compared; the rows are the text that was stored."""
    rebuild(make_plan(FILES, str(node), PAST), FILES, str(tmp_path / "out"))
    assert rows_of(tmp_path / "out", "prices") == rows_of(node, "prices")
    assert "21" in {row[1] for row in rows_of(node, "prices")}


def test_a_drill_proves_it(node: Path) -> None:
    """The restore of a log with text is proved like any other."""
    report = drill(FILES, str(node), seed=1)
    assert (report.verdict, report.error) == ("proven", None)


def test_a_fork_with_old_code_keeps_text(node: Path, versions: Versions, tmp_path: Path) -> None:
    """The same calls end as they did; exact code is refused on the old tables, and starts from the first call."""
    report = fork(FILES, str(node), at=START, db=load(versions, "prices_v1"), out=str(tmp_path / "same"))
    assert report.tally.changed == 0
    exact = versions.load("prices_v2", PRICES)
    fork(FILES, str(node), at=START, db=exact, out=str(tmp_path / "exact"))
    assert sorted(row[1] for row in rows_of(tmp_path / "exact", "prices")) == [0, 300, 600, 900, 1200, 1500, 1800, 2100]


def test_new_code_is_refused_on_an_old_state(node: Path, versions: Versions) -> None:
    """With both ways out; with TextNumeric it continues."""
    with (
        pytest.raises(Exception, match=r"TextNumeric\(12, 2\)") as refused,
        cmdlog.open(node, versions.load("prices_v2", PRICES)),
    ):
        pass
    assert isinstance(refused.value, SchemaConflict | cmdlog.CmdlogError)


def test_an_export_shows_the_numbers(node: Path, versions: Versions, tmp_path: Path) -> None:
    """Of text and of units alike, as decimals."""
    from pyarrow import parquet

    def exported(directory: Path, name: str) -> list[Any]:
        rebuild(make_plan(FILES, str(directory), PAST), FILES, str(tmp_path / name))
        newest = {
            s.partition: s
            for s in list_snapshots(FILES, str(tmp_path / name), load_instance(FILES, str(tmp_path / name)).identity)
        }
        export(FILES, list(newest.values()), str(tmp_path / f"{name}-tables"))
        rows = parquet.read_table(next((tmp_path / f"{name}-tables").rglob("*prices*"))).to_pylist()
        return sorted((row["id"], row["price"], row["free"]) for row in rows)

    fork(FILES, str(node), at=START, db=versions.load("prices_v2", PRICES), out=str(tmp_path / "exact"))
    text, units = exported(node, "text"), exported(tmp_path / "exact", "units")
    assert text == units
    assert units[7] == (7, Decimal("21.00"), Decimal("1.5000"))
