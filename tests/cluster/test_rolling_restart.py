"""New code comes to a cluster of real processes node by node, under load: no call fails, none is lost or doubled."""

from __future__ import annotations

import itertools
import signal
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import ask_for, wait_for

pytestmark = pytest.mark.slow

OLD: Final = """
from sqlalchemy import Column, Integer, bindparam, select
from sqlalchemy.dialects.sqlite import insert

from procedures import Database, Transaction

db = Database("tally")
tally = db.table("tally", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
ADD = insert(tally).values(id=bindparam("id_"), n=1).on_conflict_do_update(index_elements=["id"], set_={"n": tally.c.n + 1})
READ = select(tally.c.n).where(tally.c.id == bindparam("id_"))


def count(tx, id):
    tx.execute(ADD, id_=id)
    return tx.execute(READ, id_=id).scalar()


@db.procedure(partition_by="id")
def add(tx: Transaction, id: int) -> int:
    return count(tx, id)
"""
MORE: Final = """

marks = db.table("marks", Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False), partition_by="id")
MARK = insert(marks).values(id=bindparam("id_"), n=1).on_conflict_do_update(index_elements=["id"], set_={"n": marks.c.n + 1})


@db.procedure(partition_by="id")
def add(tx: Transaction, id: int) -> int:
    tx.execute(MARK, id_=id)
    return count(tx, id)
"""
NEW: Final = OLD.replace("def add", "def count_up") + MORE


def test_rolling_restart_with_new_code_under_load(tmp_path: Path) -> None:
    """Procedures have other numbers and there is a table more; the sum of both codes' calls is what was answered."""
    (tmp_path / "tally.py").write_text(OLD)
    cluster = ServedCluster(tmp_path, app="tally:db")
    cluster.start()
    try:
        cluster.leader()
        stopped, answered = threading.Event(), list[int]()

        def load() -> None:
            for number in itertools.count():
                if stopped.wait(0.02):
                    return
                answer = cluster.call("add", {"id": 1}, f"add-{number}")
                assert answer["status"] == 200, answer
                answered.append(answer["result"])

        client = threading.Thread(target=load)
        client.start()
        (tmp_path / "tally.py").write_text(NEW)
        for node in cluster.nodes:
            before = len(answered)
            cluster.kill(node, signal.SIGTERM)
            cluster.start(node)
            wait_for(lambda before=before: len(answered) > before + 5, why=cluster.logs)  # type: ignore[misc]
        ask_for(lambda: all(cluster.status(node).get("catalog_version") == 2 for node in cluster.nodes), why=cluster.logs)
        after = len(answered)
        wait_for(lambda: len(answered) > after + 5, why=cluster.logs)
        stopped.set()
        client.join()
        assert answered == list(range(1, len(answered) + 1)), "each call once, in order"
        assert cluster.call("count_up", {"id": 1}, "up")["result"] == len(answered) + 1
        ask_for(lambda: len(set(cluster.positions().values())) == 1, why=cluster.logs)
    finally:
        cluster.close()
