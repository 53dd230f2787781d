"""Both clients against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import cmdlog
from cmdlog import Embedded
from cmdlog.client import AsyncClient, Call, Client
from cmdlog.client.session import ClientSessions
from cmdlog.errors import (
    Aborted,
    BadAnswer,
    CallError,
    CmdlogError,
    InvalidParameters,
    KeyReused,
    ProcedureFailed,
    RequestRefused,
    UnknownProcedure,
)
from cmdlog.results import Result
from cmdlog.testing import Server
from tests.client import typed_shop
from tests.client.typed_shop import Kept, Note, labels, promise, put, rate_count, reserve, set_rate
from tests.node.apps.faulty import Mixed, db
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ids = itertools.count(1000)  # each test has counters of its own
PROMISED = {"within": "PT1H30M", "notes": [{"text": "soon", "within": "PT1H"}]}  # of `promise`, as JSON has it
AT = datetime(2024, 2, 29, 12, 30, 1, 250_000, tzinfo=UTC)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of its own."""
    with Client(server.url, token="") as made:
        yield made


def test_call_gives_the_result_and_invoke_what_belongs_to_it(client: Client) -> None:
    """The value alone, or with its transaction and partition; the highest transaction is remembered."""
    counter = next(ids)
    assert client.call("bump", id=counter, amount=2) == 2
    first = client.invoke("bump", {"id": counter, "amount": 3})
    assert (first.value, first.partition in (0, 1)) == (5, True)
    assert client.txn_id == first.txn_id
    everywhere = client.invoke("set_rate", {"name": "x", "value": 1})
    assert (everywhere.partition, len(everywhere.value)) == (None, 2)
    assert everywhere.txn_id > first.txn_id


def test_embedded_and_remote_are_called_alike(client: Client, tmp_path: Path) -> None:
    """One program runs on both: the same methods, the same errors with the same attributes, the same results."""

    def program(shop: Any) -> list[Any]:
        counter, told = 1_000_000, []
        told.append(shop.call("bump", id=counter, amount=2, idempotency_key="one-program"))
        told.append(shop.invoke("bump", {"id": counter, "amount": 2}, idempotency_key="one-program").value)
        for name, params in (
            ("abort_after_write", {"id": counter, "amount": 5}),
            ("raise_after_write", {"id": counter, "amount": 5}),
            ("bump", {"id": counter}),
            ("bump", {"id": counter, "amount": 1, "idempotency_key": "one-program"}),
            ("nothing", {}),
        ):
            with pytest.raises(CmdlogError) as refused:
                shop.call(name, **params)
            error = refused.value
            told.append(
                (error.code, isinstance(error, CallError), getattr(error, "abort_code", ""), getattr(error, "error_type", ""))
            )
        told.append(list(shop.query("select id, n from counters where id = ?", (counter,)).dicts()))
        return told

    with cmdlog.open(
        tmp_path / "data", db, segment_bytes=1 << 20, segments=8, log_reserve_bytes=65536, call_bytes_max=65536
    ) as shop:
        expected = program(shop)
    assert program(client) == expected


def test_errors_have_their_classes(client: Client) -> None:
    """Outcomes, mistakes and unknown names are told apart, with all that belongs to them."""
    counter = next(ids)
    with pytest.raises(Aborted) as aborted:
        client.call("abort_after_write", id=counter, amount=1)
    assert (aborted.value.abort_code, aborted.value.txn_id > 0) == ("no_luck", True)
    with pytest.raises(ProcedureFailed) as failed:
        client.call("raise_after_write", id=counter, amount=1)
    assert (failed.value.error_type, failed.value.procedure) == ("LookupError", "raise_after_write")
    assert "raised LookupError: it had written (tests/node/apps/faulty.py, line " in str(failed.value)
    with pytest.raises(InvalidParameters) as misfit:
        client.call("bump", id="x", amout=1)
    assert {field for field, _ in misfit.value.problems} == {"id", "amount", "amout"}
    with pytest.raises(UnknownProcedure):
        client.call("nothing")
    client.call("bump", id=counter, amount=1, idempotency_key=f"key-{counter}")
    with pytest.raises(KeyReused):
        client.call("bump", id=counter, amount=2, idempotency_key=f"key-{counter}")
    assert client.txn_id >= failed.value.txn_id


def test_values_go_there_and_come_back_typed(server: Server) -> None:
    """Parameters as Python values; results as the Database or the given type says, or as the wire has them."""
    params: dict[str, Any] = {"id": 1, "amount": Decimal("1.50"), "at": AT, "raw": b"\0\xff"}
    expected = Mixed(Decimal("1.50"), AT, b"\0\xff", [Decimal("1.50")] * 2)
    with Client(server.url, token="", db=db) as typed:
        assert typed.call("mixed", **params) == expected
        assert typed.call("peek", id=1) == 0
        assert typed.call("look_everywhere", name="none") == [
            [0, typed.call("look_everywhere", name="none")[n][1]] for n in (0, 1)
        ]
        assert [answer.value for answer in typed.batch([("mixed", params)]) if isinstance(answer, Result)] == [expected]
    with Client(server.url, token="") as plain:
        assert plain.call("mixed", **params)["amount"] == "1.50"
        assert plain.invoke("mixed", params, returns=Mixed).value == expected
        done = plain.txn_id
        with pytest.raises(BadAnswer, match="was executed") as told:
            plain.invoke("mixed", params, returns=int)
        assert told.value.txn_id > done


def test_batch_holds_little_and_reads_as_it_is_read(client: Client) -> None:
    """An endless source is read no further than the window; whoever stops early leaves the client fit for more."""
    counter, given = next(ids), 0

    def endless() -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal given
        while True:
            given += 1
            yield "bump", {"id": counter, "amount": 1}

    answers = client.batch(endless())
    seen = [next(answers) for _ in range(5000)]
    assert [answer.value for answer in seen if isinstance(answer, Result)] == list(range(1, 5001))
    assert given <= 5000 + 4096
    answers.close()  # type: ignore[attr-defined]  # it is a generator
    assert client.call("bump", id=counter, amount=0) >= 5000


async def test_batch_is_slowed_by_its_reader_and_by_its_source(server: Server) -> None:
    """An asynchronous source that pauses, and a reader that pauses: everything arrives, in order."""
    counter = next(ids)

    async def source() -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for n in range(60):
            if n % 20 == 0:
                await asyncio.sleep(0.03)
            yield "bump", {"id": counter, "amount": 1}

    async with AsyncClient(server.url, token="") as client:
        seen = []
        async for answer in client.batch(source()):
            assert isinstance(answer, Result)
            seen.append(answer.value)
            if answer.value % 25 == 0:
                await asyncio.sleep(0.03)
        assert seen == list(range(1, 61))


def test_stale_read_says_as_of_what(client: Client) -> None:
    """It holds what this client has seen; a call that writes cannot be one."""
    counter = next(ids)
    done = client.invoke("bump", {"id": counter, "amount": 7})
    found = client.invoke("peek", {"id": counter}, consistency="stale")
    assert found.value == 7
    assert found.as_of is not None
    assert found.as_of[done.partition or 0] >= done.txn_id
    assert client.invoke("peek", {"id": counter}).as_of is None
    assert (counter, 7) in list(client.query("select id, n from counters", consistency="stale"))
    with pytest.raises(RequestRefused, match="only for read-only"):
        client.invoke("bump", {"id": counter, "amount": 7}, consistency="stale")


def test_query_and_the_rest(client: Client) -> None:
    """Rows as tuples and dicts with the state that they were read from; catalog, status, snapshots."""
    counter = next(ids)
    done = client.invoke("bump", {"id": counter, "amount": 7})
    found = client.query("select id, n from counters where id = ?", [counter])
    assert (list(found), list(found.dicts()), len(found)) == ([(counter, 7)], [{"id": counter, "n": 7}], 1)
    assert found.as_of[done.partition or 0] >= done.txn_id
    assert len(client.query("select 1", partition=0).as_of) == 1
    assert list(client.query("select x'00ff', 1 < 2", partition=0)) == [("AP8=", 1)]  # columns have no types
    with pytest.raises(RequestRefused):
        client.query("delete from counters")
    assert {"bump", "peek"} <= {entry["name"] for entry in client.procedures()}
    assert len(client.status()["partitions"]) == 2
    assert client.ready()
    taken = client.take_snapshot()
    assert len(taken) == 2
    assert len(client.snapshots()) >= 2


OLD_KEY = "01890a5d-ac96-774b-bcce-b302099a8057"  # of June 2023


def test_client_whose_clock_is_behind_is_served(client: Client) -> None:
    """With a clock two hours back every call is executed once, alone and in a batch: an old key is no reason to refuse a call."""
    counter = next(ids)
    client._sessions = ClientSessions(wall=lambda: time.time() - 7200)
    client._retries = replace(client._retries, names=client._sessions)
    assert client.call("bump", id=counter, amount=1) == 1
    assert client.call("bump", id=counter, amount=1) == 2
    client._sessions = ClientSessions(wall=lambda: time.time() - 7200)
    client._retries = replace(client._retries, names=client._sessions)
    answers = list(client.batch([("bump", {"id": counter, "amount": 1})] * 5))
    assert [answer.value for answer in answers if isinstance(answer, Result)] == [3, 4, 5, 6, 7]
    assert client.call("bump", id=counter, amount=1, idempotency_key=OLD_KEY) == 8


def test_fork_has_connections_of_its_own(client: Client) -> None:
    """A child that goes on with its parent's client gets its own answers, and leaves the parent's connection alone."""
    counter = next(ids)
    assert client.call("bump", id=counter, amount=1) == 1
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str([client.call("bump", id=counter, amount=1) for _ in range(20)][-1] > 0)
        except BaseException as error:  # noqa: BLE001 - it is told to the parent
            told = repr(error)
        os.write(write_end, told.encode())
        os._exit(0)
    mine = [client.call("bump", id=counter, amount=1) for _ in range(20)]
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as told_by_child:
        assert told_by_child.read() == b"True"
    assert mine == sorted(mine)
    assert client.call("peek", id=counter) == 41


def test_batch_in_a_fork_has_a_connection_of_its_own() -> None:
    """The calls of a child's batch do not come over its parent's connection, in the middle of the parent's requests."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S) as parent:
            own = _answer_one_call(listener, parent)
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    list(parent.batch([("bump", {"id": 1})]))
                os._exit(0)
            try:
                with listener.accept()[0] as others:
                    assert others.recv(1 << 16).startswith(b"POST /v1/batch")
                own.setblocking(False)
                with pytest.raises(BlockingIOError):
                    own.recv(1)
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                own.close()


def _answer_one_call(listener: socket.socket, client: Client) -> socket.socket:
    """Over a connection that stays open."""
    accepted: list[socket.socket] = []

    def answer() -> None:
        accepted.append(listener.accept()[0])
        sent = b""
        while not sent.endswith(b"}"):
            sent += accepted[0].recv(1 << 16)
        body = b'{"txn_id": "1", "partition": 0, "result": 1}'
        accepted[0].sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    answering = threading.Thread(target=answer)
    answering.start()
    assert client.call("bump", id=1) == 1
    answering.join()
    return accepted[0]


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Server]:
    """A server of the application that is called by its functions."""
    running = Server("tests.client.typed_shop:db", tmp_path / "typed", partitions=2)
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_results_are_the_same_values_over_http_as_embedded(typed: Server, tmp_path: Path) -> None:
    """A function, a name with `db=`, a batch and an asynchronous client give what the embedded database gives."""
    note = Note(text="soon", within=timedelta(minutes=90))
    url = typed.url
    with cmdlog.open(tmp_path / "embedded", typed_shop.db, partitions=2) as embedded, Client(url) as remote:
        database: Embedded | Client
        for database in (embedded, remote):
            assert database.call(put, item=1000, count=10) == 10
            assert database.call(reserve, item=1000, count=3, note=note) == Kept(7, note)
            assert database.call(set_rate, 1) is None
            assert database.call(rate_count) == [1, 1]
            assert database.call(promise, item=1) == PROMISED
            assert database.call(labels, item=1, more={"b": [1.5], "a": None}) == {"a": None, "b": [1.5]}
    assert httpx.post(f"{url}/v1/procedures/promise", json={"item": 1}).json()["result"] == PROMISED
    with Client(url, db=typed_shop.db) as client:
        client.call(put, item=1, count=10)
        assert client.call("reserve", item=1, count=3, note=note) == Kept(7, note)
        (answer,) = client.batch([Call.of(reserve, 1, 3, note=note)])
        assert isinstance(answer, Result)
        assert answer.value == Kept(7, note)
        first = client.invoke(Call.of(put, item=2, count=1).under("order-1"))
        assert client.invoke(Call.of(put, item=2, count=1).under("order-1")) == first

    async def later() -> Kept:
        async with AsyncClient(url) as client:
            return await client.call(reserve, item=1, count=3, note=note)

    assert asyncio.run(later()) == Kept(7, note)
