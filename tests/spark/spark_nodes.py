"""Nodes for jobs on Spark, and what recovery makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet

import cmdlog
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from procedures import Database
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild as recover
from snapshot.catalog import list_snapshots
from snapshot.export import export
from tests.replay.ledgers import LEDGER, SMALL, Versions

ACCOUNTS = 8
PRICES = """
prices = db.table("prices", Column("id", Integer, primary_key=True), Column("price", Numeric(10, 8)), partition_by="id")
PRICE = insert(prices).values(id=bindparam("id_"), price=bindparam("price_"))


@db.procedure(partition_by="item")
def price(tx, item: int, digits: str) -> int:
    tx.execute(PRICE, id_=item, price_=Decimal(digits))
    return item
"""
SHOP = LEDGER.replace("from sqlalchemy import ", "from decimal import Decimal\nfrom sqlalchemy import Numeric, ") + PRICES


def make_node(versions: Versions, folder: Path, **options: Any) -> Path:
    """A stopped node of two partitions: accounts, a rate of all partitions, deposits in batches, prices of several scales."""
    db = versions.load("shop_v1", SHOP)
    with cmdlog.open(folder, db, partitions=2, **{**SMALL, **options}) as node:
        fill(node)
    return folder


def fill(node: Any) -> None:
    """The calls of `make_node`."""
    for account in range(ACCOUNTS):
        node.call("begin", account=account)
    node.call("set_rate", name="eur", rate=3)
    for answer in [node.submit("deposit", account=n % ACCOUNTS, amount=100 + n) for n in range(120)]:
        answer.result()
    for item in range(ACCOUNTS):
        node.call("price", item=item, digits=f"1.{'5' * (item + 1)}")
    node.call("set_rate", name="usd", rate=4)


def exported(node: Path, work: Path, *, until: int | None = None, db: Database | None = None) -> dict[str, list[dict[str, Any]]]:
    """Table -> rows, of `cmdlog recover --until` and `cmdlog snapshot export` behind it."""
    files = RealFiles()
    recover(make_plan(files, str(node), PAST, until=until), files, str(work / "node"))
    newest = {
        s.partition: s for s in list_snapshots(files, str(work / "node"), load_instance(files, str(work / "node")).identity)
    }
    export(files, list(newest.values()), str(work / "tables"), db=db)
    return {path.stem: parquet.read_table(path).to_pylist() for path in sorted((work / "tables").iterdir())}


def read_tables(manifest: dict[str, Any], out: Path, point: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Table -> rows of a finished rebuild, in the order of partitions; each file has the types of its table."""
    found = {}
    for name, table in manifest["points"][point]["tables"].items():
        read = [parquet.ParquetFile(out / file["path"]).read() for file in table["files"]]
        assert all({f.name: str(f.type) for f in part.schema} == table["columns"] for part in read)
        found[name] = [row for part in read for row in part.to_pylist()]
        assert len(found[name]) == table["rows"]
    return found
