"""Turns of queries: a share per credential, in rotation, each until its answer is taken."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.problem import Problem
from cmdlog.api.routes.query import Turns
from cmdlog.node.placing.shares import Shares
from cmdlog.node.queries.pool import PIECE_BYTES, QueryAnswer
from cmdlog.node.queries.query import QueryRefused
from cmdlog.node.settings import Settings
from tests.waiting import PATIENCE_S, eventually

WHOLE = 100 * PIECE_BYTES


async def given(turns: Turns, *names: str) -> list[asyncio.Task[None]]:
    """Tasks that want a turn, after whatever can happen now has happened."""
    tasks = [asyncio.create_task(turns.take_turn(name), name=name) for name in names]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def of_done(tasks: list[asyncio.Task[None]]) -> list[str]:
    """Whose turn it is."""
    return [task.get_name() for task in tasks if task.done()]


async def test_one_credential_leaves_a_turn_to_others() -> None:
    """However many queries it sends first; and the others share the reserve in rotation, not by the order of arrival."""
    turns = Turns(Shares(WHOLE), each=2)
    greedy = await given(turns, *["greedy"] * 8)
    assert of_done(greedy) == ["greedy", "greedy"]
    others = await given(turns, "a", "a", "a", "b")
    assert of_done(others) == ["a"]
    turns.end_turn("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert of_done(others) == ["a", "b"]
    assert of_done(greedy) == ["greedy", "greedy"]
    turns.end_turn("b")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert of_done(others) == ["a", "a", "b"]
    for task in (*greedy, *others):
        task.cancel()


async def test_turn_that_nobody_waits_for_is_not_lost() -> None:
    """A caller that left before or after its turn came makes room for the next."""
    unread = Shares(WHOLE)
    turns = Turns(unread, each=1)
    first, second, third = await given(turns, "a", "a", "a")
    second.cancel()
    turns.end_turn("a")
    third.cancel()  # at the moment at which its turn comes
    (fourth,) = await given(turns, "a")
    assert (first.done(), second.cancelled(), third.cancelled(), fourth.done()) == (True, True, True, True)
    turns.end_turn("a")
    assert unread.total == 0


async def test_query_waits_while_its_credential_holds_all_that_it_may() -> None:
    """Unread answers of its batches count, too; those of others do not keep it waiting."""
    unread = Shares(WHOLE)
    turns = Turns(unread, each=2)
    assert unread.take_share("a", WHOLE // 2)
    of_a, of_b = await given(turns, "a", "b")
    assert (of_a.done(), of_b.done()) == (False, True)
    unread.give_back("a", WHOLE // 2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert of_a.done()


async def test_large_bodies_are_read_in_rotation() -> None:
    """One at a time; who sends many gets every second turn while somebody else waits."""
    turns = Turns(Shares(1))
    order: list[str] = []

    async def read_body(name: str) -> None:
        await turns.take_turn(name, 1)
        order.append(name)
        await asyncio.sleep(0)
        turns.end_turn(name, 1)

    await asyncio.gather(*map(read_body, ("greedy", "greedy", "greedy", "other")))
    assert order == ["greedy", "other", "greedy", "greedy"]


ERRORS = (Problem, ConnectionError, QueryRefused)
BODIES: dict[str, tuple[str, Any]] = {
    "a query that is refused": ("/v1/query", b'{"sql": "SELECT 1", "params": [2]}'),
    "a long body that is no JSON": ("/v1/query", b'{"sql": "' + b"x" * (32 << 10)),
    "a batch whose client leaves": ("/v1/batch", []),
}


@pytest.mark.parametrize("kind", BODIES)
def test_an_error_leaves_nothing_for_the_collector(app: Api, ask_app: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It would keep all that the request holds, and the collector comes seldom."""

    def refuse(*_: object) -> QueryAnswer:
        raise QueryRefused("no such table")

    monkeypatch.setattr(app.service.node(), "query_by", refuse, raising=False)
    path, body = BODIES[kind]
    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask_app(app, "POST", path, body))
        assert eventually(lambda: not any(isinstance(one, ERRORS) for one in gc.get_objects()))
    finally:
        gc.enable()


class UnreadAnswer:
    """The body of an answer of three pieces, as its process has it."""

    def __init__(self) -> None:
        self.body = io.BytesIO(b'"' + b"x" * (3 * PIECE_BYTES - 2) + b'"')
        self.ended: list[bool] = []

    def open(self, *_: object) -> QueryAnswer:
        return QueryAnswer(3 * PIECE_BYTES, self.read, self.ended.append)

    def read(self, size: int) -> bytes:
        """Raises: EOFError, when the process has ended."""
        if self.body.closed:
            raise EOFError
        return self.body.read(size)


async def all_given_back(unread: Shares) -> None:
    """Returns when nothing is held."""
    empty = asyncio.Event()
    unread.on_room[lambda: empty.set() if not unread.total else None] = None
    if unread.total:
        await empty.wait()


def asked(app: Any, send: Callable[[Any], Any]) -> asyncio.Task[None]:
    """A query whose client takes the answer as `send` does."""
    sent = [{"type": "http.request", "body": b'{"sql": "select 1"}', "more_body": False}]

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Event().wait()

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/query", "raw_path": b"/v1/query",
        "root_path": "", "scheme": "http", "query_string": b"", "headers": [(b"host", b"localhost")], "client": None,
    }  # fmt: skip
    return asyncio.create_task(app(scope, receive, send))


async def test_turn_lasts_until_the_answer_is_taken(node: Any) -> None:
    """Of an answer that nobody takes the node holds a piece, and the rest stays in the query's process."""
    app = create_app(node, Settings(queries_max=1))
    unread = app.service.unread
    answer = UnreadAnswer()
    node.query_by = answer.open
    reads, sent = asyncio.Event(), asyncio.Event()
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))
        if message["type"] == "http.response.body":
            sent.set()
            await reads.wait()

    task = asked(app, send)
    async with asyncio.timeout(PATIENCE_S):
        await sent.wait()
        assert (unread.total, answer.body.tell(), answer.ended) == (PIECE_BYTES, PIECE_BYTES, [])
        reads.set()
        await task
        await all_given_back(unread)
    assert (sum(map(len, parts)), answer.ended) == (3 * PIECE_BYTES, [True])
    app.service.close()


@pytest.mark.parametrize("fails", ["process", "client"])
async def test_answer_that_breaks_off_gives_its_turn_back(node: Any, fails: str) -> None:
    """Its process is gone, or its client: nothing is held, and what nobody takes is read for nobody."""
    app = create_app(node, Settings(queries_max=1))
    answer = UnreadAnswer()
    node.query_by = answer.open

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if fails == "client":
                raise ConnectionError
            answer.body.close()

    async with asyncio.timeout(PATIENCE_S):
        await asked(app, send)
        await all_given_back(app.service.unread)
    assert answer.ended == [fails == "client"]
    app.service.close()
