"""Bodies that take long to read: they are read aside, and the event loop answers others meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import httpx
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate import request
from cmdlog.api.gate.route_table import TABLE, Entry
from cmdlog.api.gate.strict_json import loads_strict
from cmdlog.api.routes import batch
from cmdlog.api.routes.query import Turns
from cmdlog.api.routes.service import LARGE_BODY_BYTES
from cmdlog.node.placing.shares import Shares
from tests.api.conftest import local_token
from tests.api.served import served
from tests.waiting import PATIENCE_S, wait_for

WITH_BODIES = [entry for entry in TABLE if entry.body != "none"]


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have read JSON, by name."""
    names: list[str] = []

    def read(text: bytes, *, around: int = 0) -> Any:
        names.append(threading.current_thread().name)
        return {"procedure": "put", "params": {"item": 7}}

    for module in (request, batch):
        monkeypatch.setattr(module, "loads_strict", read)
    monkeypatch.setattr(batch, "steps", None)
    return names


@pytest.mark.parametrize("entry", WITH_BODIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("more", [0, LARGE_BODY_BYTES], ids=["small", "large"])
def test_large_body_of_every_route_is_read_aside(readers: list[str], app: Api, ask_app: Any, entry: Entry, more: int) -> None:
    """No route parses one in the event loop's thread, and none sends a small one to another."""
    path = entry.path.format(name="put", node=1)
    owner = [("Authorization", f"Bearer {local_token(app)}")]
    asyncio.run(ask_app(app, entry.method, path, b'{"item": 7}' + b" " * more, headers=owner))
    assert [name.startswith("cmdlog-bodies") for name in readers] == [more > 0]


def test_call_is_answered_while_a_large_body_is_read(app: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends it waits; nobody else does."""
    reading, answered = threading.Event(), threading.Event()

    def read(text: bytes, *, around: int = 0) -> Any:
        if len(text) > LARGE_BODY_BYTES:
            reading.set()
            assert answered.wait(PATIENCE_S)
        return loads_strict(text, around=around)

    monkeypatch.setattr(request, "loads_strict", read)
    statuses: list[int] = []
    with served(app, quick=app.quick) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:

        def send_large() -> None:
            body = b'{"item": 7}' + b" " * LARGE_BODY_BYTES
            answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/procedures/put", content=body, timeout=PATIENCE_S)
            statuses.append(answer.status_code)

        sender = threading.Thread(target=send_large)
        sender.start()
        assert reading.wait(PATIENCE_S)
        assert client.post("/v1/procedures/put", content=b'{"item": 8}', timeout=PATIENCE_S).status_code == 200
        assert statuses == []
        answered.set()
        sender.join(PATIENCE_S)
    assert statuses == [200]


@pytest.mark.slow
def test_connection_that_waits_for_room_makes_room(app: Api) -> None:
    """For another client: of its body nothing is held, and it may never come."""
    app.service.body_room = Turns(Shares(1))
    head = b"POST /v1/procedures/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{"
    with served(app, connections_max=2) as server, contextlib.ExitStack() as opened:
        for _ in range(2):
            client = opened.enter_context(server.connect())
            client.sendall(head)
        wait_for(lambda: len(server.registry.open) == 2, PATIENCE_S)
        answer = httpx.post(f"http://127.0.0.1:{server.port}/v1/procedures/put", content=b'{"item": 8}', timeout=PATIENCE_S)
        assert answer.status_code == 200
