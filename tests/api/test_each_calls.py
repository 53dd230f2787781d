"""`partition_by=EACH` from outside: over HTTP, in a batch, after a crash, in a recovery and in a fork."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from cmdlog import Call
from cmdlog.errors import Aborted
from cmdlog.node.embedded.embedded import open_embedded
from cmdlog.results import Result
from cmdlog.testing import SMALL, Server
from cmdlog.wal.files import RealFiles
from replay.fork.fork import fork
from tests.node.apps.shelves import db, put
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
PARTITIONS = 3
ITEMS = 24
NO_KEY: dict[str, str] = {}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """`cmdlog serve` of the shelves."""
    made = Server("tests.node.apps.shelves:db", tmp_path / "server", partitions=PARTITIONS)
    try:
        made.start()
        yield made
    finally:
        made.close()


def counts(data: Path) -> list[int]:
    """How many goods each partition of a directory has."""
    with open_embedded(data, db, **{**SMALL, "partitions": PARTITIONS}) as opened:
        found: list[int] = opened.call("count")
        return found


def post(url: str, procedure: str, key: str = "", **params: Any) -> httpx.Response:
    """A call as any program makes it."""
    headers = {"Idempotency-Key": key} if key else NO_KEY
    return httpx.post(f"{url}/v1/procedures/{procedure}", json=params, headers=headers)


def test_calls_on_each_partition_from_outside(server: Server, tmp_path: Path) -> None:
    """One result per partition, or the abort of the first; alone, in a batch, after a crash, and again by the log."""
    client = server.client
    for answer in client.batch(Call.of(put, item=item, due=item % 2) for item in range(ITEMS)):
        assert isinstance(answer, Result)
    client.call("set_limit", due=1)
    before = client.call("count")

    catalog = httpx.get(f"{server.url}/v1/procedures").json()["procedures"]
    assert {entry["name"]: entry["partition_by"] for entry in catalog if entry["name"] in {"put", "set_limit", "expire"}} == {
        "put": "item", "set_limit": None, "expire": "each",
    }  # fmt: skip

    alone = post(server.url, "expire", key="night-1")
    assert (alone.status_code, alone.json()["partition"]) == (200, None)
    result = alone.json()["result"]
    assert [partition for partition, _, _ in result] == list(range(PARTITIONS))
    after = client.call("count")
    assert [b - a for b, a in zip(before, after, strict=True)] == [removed for _, removed, _ in result]
    assert client.call("copy") == after

    lines = b"".join(
        orjson.dumps(line) + b"\n"
        for line in (
            {"procedure": "put", "params": {"item": 100, "due": 9}},
            {"procedure": "empty", "params": {"but": [1]}, "key": "night-2"},
            {"procedure": "expire"},
            {"procedure": "put", "params": {"item": 101, "due": 9}},
        )
    )
    told = httpx.post(f"{server.url}/v1/batch", content=lines, headers={"content-type": "application/x-ndjson"})
    first, aborted, expired, last = map(orjson.loads, told.content.splitlines())
    assert (first["result"], last["result"]) == (None, None)
    assert (aborted["error"]["code"], aborted["error"]["abort_code"]) == ("aborted", "kept")
    assert "on partition 1 of 3; the others kept their changes" in aborted["error"]["detail"]
    assert [removed for _, removed, _ in expired["result"]] == [0] * PARTITIONS
    left = client.call("count")

    server.kill()
    server.start()
    assert client.call("count") == left
    again = post(server.url, "expire", key="night-1")
    assert again.json() == alone.json()  # the same transaction, the same numbers drawn
    with pytest.raises(Aborted, match="on partition 1 of 3"):
        client.call("empty", idempotency_key="night-2", but=[1])
    server.stop()

    command = [sys.executable, "-m", "cmdlog", "recover", str(server.data), "--to", str(tmp_path / "recovered")]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    assert counts(tmp_path / "recovered") == left
    report = fork(RealFiles(), str(server.data), at=int(alone.json()["txn_id"]) - 1, db=db, out=str(tmp_path / "forked"))
    assert report.calls >= PARTITIONS
    assert counts(tmp_path / "forked") == left
