"""What-if back-fills on Spark: other code over the same calls, and the diff with the call that made each row differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures import Database
from replay.fork.fork import START, fork
from replay.fork.rerun import CallUnfit
from replay.spark.jobs.backfill import backfill
from replay.spark.jobs.job import TaskError
from tests.replay.ledgers import SMALL, Call, Versions, logged_calls, rows_of
from tests.spark.spark_nodes import ACCOUNTS, SHOP, make_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
AUDIT = """
audits = db.table("audits", Column("id", Integer, primary_key=True), Column("count", Integer, nullable=False), partition_by="id")
AUDIT = insert(audits).values(id=bindparam("id_"), count=1)
COUNT = update(audits).where(audits.c.id == bindparam("id_")).values(count=audits.c.count + 1)
"""
DEPOSIT = "    tx.execute(ADD, id_=account, amount_=amount * 1)\n"
AUDITED = f"{DEPOSIT}    if not tx.execute(COUNT, id_=account).rowcount:\n        tx.execute(AUDIT, id_=account)\n"


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node; each account has one more deposit, which was retried twice under its idempotency key."""
    folder = make_node(versions, tmp_path_factory.mktemp("shop") / "node")
    with cmdlog.open(folder, versions.load("shop_v1", SHOP), **SMALL) as opened:
        for _ in range(3):
            for account in range(ACCOUNTS):
                opened.call("deposit", account=account, amount=50, idempotency_key=f"order {account}")
    return folder


def read(out: Path, manifest: Any, kind: str, table: str) -> list[dict[str, Any]]:
    """Rows of a table of a finished back-fill."""
    return [row for file in manifest[kind][table]["files"] for row in parquet.ParquetFile(out / file["path"]).read().to_pylist()]


def deposits(node: Path) -> list[Call]:
    """Calls of `deposit`, by transaction id."""
    return [call for call in logged_calls(node) if [type(value) for value in call.params] == [int, int]]


def larger(versions: Versions, least: int) -> Database:
    """A version in which deposits from so much on count twice."""
    return versions.load("shop_v2", SHOP, factor=f"amount * (2 if amount >= {least} else 1)")


def test_rows_are_those_of_a_fork_and_name_the_first_call(
    spark: SparkSession, node: Path, versions: Versions, tmp_path: Path
) -> None:
    """From the start, and from within a batch: tables as `cmdlog fork` makes them, a diff of every row that differs, no other."""
    db, calls = larger(versions, 150), deposits(node)
    inside = next(call for call in calls[60:] if 0 < call.position < call.count - 1)
    for n, at in enumerate((START, inside.txn_id)):
        done = backfill(spark, str(node), db, to=str(tmp_path / f"out{n}"), at=at)
        fork(RealFiles(), str(node), at=at, db=db, out=str(tmp_path / f"fork{n}"))
        state = read(tmp_path / f"out{n}", done.manifest, "state", "accounts")
        assert sorted((row["id"], row["balance"], row["note"]) for row in state) == rows_of(tmp_path / f"fork{n}", "accounts")
        was, now = ({row[0]: row[1] for row in rows_of(of, "accounts")} for of in (node, tmp_path / f"fork{n}"))
        first: dict[int, int] = {}
        for call in calls:
            if call.txn_id > at and call.params[1] >= 150:
                first.setdefault(call.params[0], call.txn_id)
        diff = read(tmp_path / f"out{n}", done.manifest, "diff", "accounts")
        columns = ("id", "change", "old_balance", "new_balance", "first_txn_id", "first_procedure")
        assert {tuple(row[column] for column in columns) for row in diff} == {
            (account, "changed", was[account], now[account], txn_id, "deposit") for account, txn_id in first.items()
        }
        assert done.changes["accounts"] == {"added": 0, "removed": 0, "changed": len(first)}
        assert done.changes["rates"] == {"added": 0, "removed": 0, "changed": 0}


def test_new_procedures_fill_tables_that_history_did_not_have(
    spark: SparkSession, node: Path, versions: Versions, tmp_path: Path
) -> None:
    """A derived table is made of calls that ran before it was thought of, each once though it was retried; two versions of one
    module run in one session."""
    first = versions.load("shop_v3", SHOP)
    assert backfill(spark, str(node), first, to=str(tmp_path / "same")).changes["accounts"]["changed"] == 0
    audited = versions.load("shop_v3", SHOP.replace(DEPOSIT, AUDITED).replace("PRICE = ", AUDIT + "PRICE = "))
    done = backfill(spark, str(node), audited, to=str(tmp_path / "out"))
    rows = read(tmp_path / "out", done.manifest, "state", "audits")
    assert {row["id"]: row["count"] for row in rows} == dict.fromkeys(range(ACCOUNTS), 120 // ACCOUNTS + 1)
    diff = read(tmp_path / "out", done.manifest, "diff", "audits")
    firsts = {account: next(c.txn_id for c in deposits(node) if c.params[0] == account) for account in range(ACCOUNTS)}
    assert {(row["id"], row["change"], row["first_txn_id"]) for row in diff} == {(a, "added", txn) for a, txn in firsts.items()}


def test_call_that_does_not_fit_is_named(spark: SparkSession, node: Path, versions: Versions, tmp_path: Path) -> None:
    """A procedure that is gone stops the job; left out by wish, its calls are counted."""
    cut = versions.load("shop_v4", SHOP[: SHOP.index('\n\n@db.procedure(partition_by="item")')])
    with pytest.raises(TaskError, match=r"ran price.*the procedure is missing") as error:
        backfill(spark, str(node), cut, to=str(tmp_path / "out"))
    assert (error.value.kind, error.value.exit_code) == (CallUnfit.__name__, CallUnfit.exit_code)
    assert not (tmp_path / "out").exists()
    done = backfill(spark, str(node), cut, to=str(tmp_path / "other"), missing="skip")
    assert sum(of["calls"] for p in done.manifest["outcomes"].values() for of in p["left_out"]) == ACCOUNTS
    assert done.changes["prices"] == {"added": 0, "removed": ACCOUNTS, "changed": 0}
