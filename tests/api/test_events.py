"""Server-sent events: what a viewer of the status page gets, and when it is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.route_table import READ
from cmdlog.api.routes import cold_routes
from cmdlog.api.routes.service import VIEWERS_MAX
from cmdlog.node.settings import Settings
from tests.api.running import token_of, write_tokens
from tests.waiting import PATIENCE_S

WAIT_S = PATIENCE_S


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events follow each other at once."""
    monkeypatch.setattr(cold_routes, "EVERY_S", 0.001)


class Viewer:
    """A request on /v1/events that counts events, and leaves when it is told to."""

    def __init__(self, app: Api, ask_app: Any, path: str = "/v1/events", *, query: bytes = b"", headers: Any = ()) -> None:
        self.events: list[Any] = []
        self.came = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(
            ask_app(self._with_query(app, query), "GET", path, self._stay(), headers=headers, on_data=self._note)
        )

    @staticmethod
    def _with_query(app: Api, query: bytes) -> Any:
        return lambda scope, receive, send: app({**scope, "query_string": query}, receive, send)

    async def _stay(self) -> AsyncIterator[bytes]:
        await self.leave.wait()
        yield b""

    def _note(self, data: bytes) -> None:
        if data.startswith(b"data: "):
            self.events.append(orjson.loads(data.removeprefix(b"data: ")))
            self.came.set()

    async def seen(self, count: int) -> None:
        """Waits until so many events came."""
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < count:
                self.came.clear()
                await self.came.wait()

    async def end(self) -> Any:
        """The whole answer."""
        async with asyncio.timeout(WAIT_S):
            return await self.task


async def test_events_go_on_where_the_last_one_ended(app: Api, ask_app: Any) -> None:
    """Each event is one line of JSON, and asks the node for the rows after those of the event before."""
    viewer = Viewer(app, ask_app, query=b"after=41")
    await viewer.seen(3)
    app.service.stopping = True
    answer = await viewer.end()
    assert answer.headers["content-type"] == "text/event-stream"
    assert [event["telemetry"]["history"]["next"] for event in viewer.events[:3]] == [42, 43, 44]
    assert viewer.events[0]["telemetry"]["errors"] == ["one\ntwo"]
    assert viewer.events[0]["status"]["ready"] is True


async def test_viewer_that_leaves_makes_room(app: Api, ask_app: Any) -> None:
    """No more than the share of a credential are served; the next is asked to come back, and served once another has left."""
    app.service.viewers.whole = 2
    first = Viewer(app, ask_app)
    await first.seen(1)
    refused = await Viewer(app, ask_app).end()
    assert (refused.status, refused.json()["code"], refused.headers["retry-after"]) == (503, "not_ready", "1")
    first.leave.set()
    await first.end()
    assert app.service.viewers.total == 0
    again = Viewer(app, ask_app)
    await again.seen(1)
    again.leave.set()
    await again.end()


async def test_viewers_of_one_credential_leave_room_for_others(tmp_path: Path, node: Any, ask_app: Any) -> None:
    """However many it opens: half of all viewers at most are its own."""
    app = create_app(node, Settings(token_file=write_tokens(tmp_path, token_of("one", READ), token_of("two", READ))))
    own = [Viewer(app, ask_app, headers=[("Authorization", "Bearer one")]) for _ in range(VIEWERS_MAX)]
    other = Viewer(app, ask_app, headers=[("Authorization", "Bearer two")])
    await other.seen(1)
    app.service.stopping = True
    statuses = [(await viewer.end()).status for viewer in (*own, other)]
    assert statuses == [200] * (VIEWERS_MAX // 2) + [503] * (VIEWERS_MAX // 2) + [200]


async def test_stream_ends_with_its_credential(tmp_path: Path, node: Any, ask_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer whose credential is taken away gets no further event."""
    app = create_app(node, Settings(token_file=write_tokens(tmp_path, token_of("one", READ))))
    viewer = Viewer(app, ask_app, headers=[("Authorization", "Bearer one")])
    await viewer.seen(1)
    write_tokens(tmp_path, token_of("other", READ))
    answer = await viewer.end()
    assert answer.status == 200


@pytest.mark.parametrize(
    "after", [b"after=", b"after=-1", b"after=x", b"after=1&after=2", b"after=" + 13 * b"1", b"after=%C2%B2"]
)
def test_row_number_that_is_none_is_refused(app: Api, ask_app: Any, after: bytes) -> None:
    """What stands behind `after=` is a decimal number or an error of the caller."""
    answer = asyncio.run(_answer(app, ask_app, after))
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")


async def _answer(app: Api, ask_app: Any, query: bytes) -> Any:
    return await Viewer(app, ask_app, query=query).end()


def test_head_of_an_endless_answer_is_refused(app: Api, ask_app: Any) -> None:
    """HEAD on the stream would never end: it is not served, and Allow says so."""
    answer = asyncio.run(ask_app(app, "HEAD", "/v1/events"))
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")


def test_page_may_load_nothing_from_elsewhere(fetch: Callable[..., Any]) -> None:
    """The page's policy allows its own script and its own server, and no address of another stands in it."""
    answer = fetch("/")
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = answer.body.decode()
    assert [part for part in page.split("//") if part.startswith(("cdn", "fonts", "unpkg"))] == []
    assert page.count("http") == page.count("http://www.w3.org/2000/svg") == 2  # names, of the charts and of the icon
