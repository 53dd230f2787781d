"""Real processes on volumes of their own, of which a majority is full: logged calls are answered, and commit with room."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.served import ServedCluster
from tests.small_volume import small_volume
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

VOLUME_BYTES = 24 << 20
CALL_BYTES = 100_000
APP = """
from sqlalchemy import Column, Integer, bindparam, insert, select

from procedures import Database, Transaction

db = Database("boxes")
boxes = db.table("boxes", Column("id", Integer, primary_key=True), Column("size", Integer, nullable=False), partition_by="id")
PUT = insert(boxes).values(id=bindparam("id_"), size=bindparam("size_"))
SIZE = select(boxes.c.size).where(boxes.c.id == bindparam("id_"))


@db.procedure(partition_by="id")
def put(tx: Transaction, id: int, text: str) -> int:
    tx.execute(PUT, id_=id, size_=len(text))
    return len(text)


@db.procedure(partition_by="id", read_only=True)
def size(tx: Transaction, id: int) -> int:
    return int(tx.execute(SIZE, id_=id).scalar() or 0)
"""


def params_of(number: int) -> dict[str, Any]:
    """Of the large call with this number."""
    return {"id": number, "text": "x" * CALL_BYTES}


class Volumes(ServedCluster):
    """Each node's directory is a small file system of its own, and its log takes space as it needs it."""

    def join_options(self, node: int) -> list[str]:
        return [*super().join_options(node), "--preallocate", "ahead"]

    def put(self, node: int, number: int) -> httpx.Response:
        """A large call under its own key."""
        return httpx.post(
            f"{self.urls[node]}/v1/procedures/put", json=params_of(number),
            headers={"Idempotency-Key": f"put{number}"}, timeout=PATIENCE_S,
        )  # fmt: skip

    def takes(self, node: int, number: int) -> bool:
        """Whether a large call is done; else that is not known. A moment's pause of the followers may refuse it before."""
        answers: list[httpx.Response] = []

        def is_answered() -> bool:
            answers.append(self.put(node, number))
            return answers[-1].status_code != 503

        wait_for(is_answered, why=self.logs)
        assert answers[-1].status_code == 200 or answers[-1].json()["code"] == "outcome_unknown", answers[-1].text
        return answers[-1].status_code == 200

    def kept(self, node: int) -> list[int]:
        """What the calls left, as a query reads it."""
        answer = httpx.post(f"{self.urls[node]}/v1/query", json={"sql": "SELECT id FROM boxes"}, timeout=PATIENCE_S)
        return [row[0] for row in answer.json()["rows"]]

    def ballast(self, node: int) -> Path:
        return self.folder / f"n{node}" / "ballast"

    def fill(self, node: int) -> None:
        """Leaves nothing on its volume."""
        with self.ballast(node).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(64 << 10)):
                pass


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Volumes]:
    """Three nodes that run."""
    (tmp_path / "boxes.py").write_text(APP)
    served = Volumes(tmp_path, app="boxes:db")
    with contextlib.ExitStack() as stack:
        for node in served.nodes:
            stack.enter_context(small_volume(tmp_path / f"n{node}", VOLUME_BYTES))
        stack.callback(served.close)
        served.start()
        yield served


def test_a_majority_on_full_volumes(cluster: Volumes) -> None:
    """What was logged is in doubt, then done; new calls are refused and say which nodes are full; reads go on."""
    leader = cluster.leader()
    followers = [node for node in cluster.nodes if node != leader]
    for node in followers:
        cluster.fill(node)
    last = next(number for number in itertools.count() if not cluster.takes(leader, number))
    in_doubt = cluster.put(leader, last)
    assert (in_doubt.status_code, in_doubt.json()["code"]) == (503, "no_quorum")
    for node in cluster.nodes:
        refused = cluster.put(node, 10_000).json()
        assert refused["code"] == "no_quorum"
        assert f"volume of node {followers[0]} and node {followers[1]}: make room there" in refused["detail"]
    ready = httpx.get(f"{cluster.urls[leader]}/readyz", timeout=PATIENCE_S)
    assert (ready.status_code, "no room" in ready.json()["detail"]) == (503, True)
    assert cluster.call("size", {"id": 0}, "", only=[leader])["result"] == CALL_BYTES
    for node in followers:
        cluster.ballast(node).unlink()
    assert cluster.call("put", params_of(last), f"put{last}")["result"] == CALL_BYTES
    assert cluster.call("put", params_of(last + 1), "after")["result"] == CALL_BYTES
    assert len(cluster.kept(leader)) == last + 2
    wait_for(lambda: len(set(cluster.positions().values())) == 1 and len(cluster.positions()) == 3, why=cluster.logs)
