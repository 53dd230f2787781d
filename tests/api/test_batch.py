"""Batches over HTTP: answers in the order of the lines, in bounded memory, whatever single lines hold."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.strict_json import DEPTH_MAX
from cmdlog.api.routes import batch
from cmdlog.node.outcome import CallRefused, CallTooLarge, LogFullRefusal, NotLeading, Overloaded, UnknownOutcome
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import make_routes
from procedures import Database, Transaction
from procedures.idempotency.known_outcome import Status, key_fingerprint
from tests.waiting import PATIENCE_S

Post = Callable[..., Any]


def line(item: object, **more: Any) -> bytes:
    """A call of `put`."""
    return orjson.dumps({"procedure": "put", "params": {"item": item}, **more}) + b"\n"


def results(answer: Any) -> list[Any]:
    """The result of each line, or its problem code."""
    return [entry["result"] if "result" in entry else entry["error"]["code"] for entry in answer.lines()]


keepers = Database("keepers")


@keepers.procedure(partition_by="item")
def keep(tx: Transaction, item: int, value: Any) -> int:
    """Takes any JSON."""
    return item


def test_line_takes_values_as_deep_as_a_single_call(node: Any, post: Post) -> None:
    """The deepest value passes either way, and either refuses one of a level more, before the log."""
    node.routes = make_routes(keepers)
    for levels in (DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1):
        params = b'{"item": 1, "value": %b%b}' % (b"[" * levels, b"]" * levels)
        single = post("/v1/procedures/keep", params)
        [answer] = post("/v1/batch", b'{"procedure": "keep", "params": %b}' % params).lines()
        assert single.status == (200 if levels <= DEPTH_MAX else 422)
        assert ("result" in answer) == (levels <= DEPTH_MAX)
    assert len(node.logged) == 4


def test_ten_thousand_lines_come_back_in_order(node: Any, post: Post) -> None:
    """Each line has its answer at its place, though the node answers in another order and chunks cut lines anywhere."""
    body = b"".join(line(number) for number in range(10_000))
    chunks = [body[start : start + 7001] for start in range(0, len(body), 7001)]
    answer = post("/v1/batch", chunks)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert results(answer) == list(range(10_000))
    assert [params[0] for _, params, _ in node.logged] == list(range(10_000))


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"procedure": "put"}{}',
        b'{"procedure": 7, "params": {}}',
        b'{"procedure": ["put"], "params": {"item": 1}}',
        b'{"params": {"item": 1}}',
        b'{"procedure": "put", "params": [1]}',
        b'{"procedure": "put", "params": "item"}',
        b'{"procedure": "put", "params": {"item": NaN}}',
        b'{"procedure": "put", "params": {"item": 1}, "kye": "a"}',
        b'{"procedure": "put", "params": {"item": 1}, "key": ""}',
        b'{"procedure": "put", "params": {"item": 1}, "key": 7}',
        b'{"procedure": "put", "params": {"item": 1}, "key": "\xc3\xa9"}',
        b'{"procedure": "put", "params": {"item": ' + b"[" * 100_000 + b"}}",
        b'{"procedure": "put"}',
    ],
)
def test_bad_line_has_an_error_in_its_place(node: Any, post: Post, bad: bytes) -> None:
    """A line that is no call is answered by a problem, and the lines around it run."""
    answer = post("/v1/batch", line(1) + bad + b"\n" + line(2))
    assert answer.status == 200
    assert results(answer) == [1, "invalid_parameters", 2]
    assert len(node.logged) == 2


def test_each_kind_of_outcome_has_its_line(node: Any, post: Post, settings: Settings) -> None:
    """Results, aborts, unknown procedures and lines over the limit stand side by side."""
    node.outcome = lambda route, params: (
        (Status.ABORTED, b'{"code":"odd","message":"is odd"}') if params[0] % 2 else (0, b"%d" % params[0])
    )
    huge = b'{"procedure": "put", "params": {"item": 6, "raw": "' + b"A" * (2 << 20) + b'"}}\n'
    answer = post("/v1/batch", [line(4), line(5), b'{"procedure": "nope"}\n', huge[:70_000], huge[70_000:], line(8)[:-1]])
    assert results(answer) == [4, "aborted", "unknown_procedure", "too_large", 8]
    large = answer.lines()[3]["error"]
    limit = settings.call_bytes_max
    assert large["limit_bytes"] == limit
    assert re.findall(r"\d+", large["detail"]) == [str(limit)], "one number: the setting's"
    assert "parameters" in large["detail"]
    aborted = answer.lines()[1]["error"]
    assert (aborted["abort_code"], aborted["detail"], aborted["status"], aborted["txn_id"]) == ("odd", "is odd", 409, "1002")


def test_keys_reads_and_calls_everywhere_keep_their_places(node: Any, post: Post) -> None:
    """Calls that the node takes one by one stand in the log and in the answer where their lines stood."""
    everywhere = b'{"procedure": "set_price", "params": {"price": 3}}\n'
    read = b'{"procedure": "get", "params": {"item": 9}}\r\n'
    answer = post("/v1/batch", line(1) + line(2, key="k") + b"\n  \n" + everywhere + line(4) + read)
    assert results(answer) == [1, 2, 3, 4, 9]
    assert [name for name, _, _ in node.logged] == ["put", "put", "set_price", "put", "get"]
    assert node.logged[1][2] == key_fingerprint("", "k")
    assert answer.lines()[2]["partition"] is None


def test_empty_stream_is_an_empty_answer(post: Post) -> None:
    """No lines, no answers, no error."""
    answer = post("/v1/batch", b"")
    assert (answer.status, answer.body) == (200, b"")


def test_refusal_of_one_call_leaves_the_others(node: Any, post: Post) -> None:
    """A multi-partition call is given to the node alone: if it is refused, its neighbours run."""
    node.refuse = lambda calls: CallTooLarge("big") if any(route.everywhere for route, *_ in calls) else None
    everywhere = b'{"procedure": "set_price", "params": {"price": 3}}\n'
    assert results(post("/v1/batch", line(0) + everywhere + line(2))) == [0, "too_large", 2]
    assert [params[0] for _, params, _ in node.logged] == [0, 2]


def test_keyed_calls_go_to_the_node_with_the_others(node: Any, post: Post) -> None:
    """A key does not cut a run of calls in two: the node places them all at once."""
    runs: list[int] = []
    node.refuse = lambda calls: runs.append(len(calls))
    assert results(post("/v1/batch", line(0) + line(1, key="k") + line(2, key="l") + line(3))) == [0, 1, 2, 3]
    assert runs == [4]


def test_key_of_a_whole_batch_is_refused(node: Any, post: Post) -> None:
    """A key names one call: sent with a batch it would protect nothing, and nobody would notice."""
    answer = post("/v1/batch", line(0), headers=[("Idempotency-Key", "k")])
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")
    assert b"each line has its own `key`" in answer.body
    assert node.logged == []


def test_full_log_is_told_at_once(node: Any, post: Post) -> None:
    """`log_full` is the caller's to wait for: it comes in the line's place."""
    node.refuse = lambda calls: LogFullRefusal("no room")
    answer = post("/v1/batch", line(1) + line(2))
    assert results(answer) == ["log_full", "log_full"]
    assert answer.lines()[0]["error"]["retry_after_s"] == 1.0


def test_lasting_overload_ends_in_an_error(node: Any, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is bounded: then the calls are refused, and nothing of them is in the log."""
    monkeypatch.setattr(batch, "OVERLOAD_WAIT_S", 0.02)
    node.refuse = lambda calls: Overloaded("busy")
    assert results(post("/v1/batch", line(1) + line(2))) == ["not_ready", "not_ready"]
    assert node.logged == []


async def test_reader_stops_at_the_window(app: Api, node: Any, ask_app: Any) -> None:
    """While the node answers nothing, no more than stream_calls_max calls are taken from a stream that never ends."""
    node.hold = True
    app.service.settings = settings = type(node.settings)(stream_calls_max=64)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for number in range(100_000):
            sent += 1
            yield line(number)

    request = asyncio.create_task(ask_app(app, "POST", "/v1/batch", endless()))
    seen = -1
    while seen != sent or sent == 0:  # until the reader makes no progress any more
        seen = sent
        for _ in range(50):
            await asyncio.sleep(0)
    assert len(node.logged) == settings.stream_calls_max
    assert sent <= settings.stream_calls_max + 1
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_answers_flow_while_the_request_does(app: Api, ask_app: Any) -> None:
    """A client may wait for the answer to a line before it sends the next one."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def conversation() -> AsyncIterator[bytes]:
        for number in range(5):
            yield line(number)
            while not (data := await arrived.get()):
                pass
            assert orjson.loads(data)["result"] == number

    answer = await ask_app(app, "POST", "/v1/batch", conversation(), on_data=arrived.put_nowait)
    assert len(list(answer.body.splitlines())) == 5


async def test_client_that_leaves_midway_ends_the_stream(app: Api, node: Any, ask_app: Any) -> None:
    """Calls that arrived are called once; the rest of the line that never ended is not."""

    async def leaving() -> AsyncIterator[bytes]:
        yield line(1) + line(2)
        yield line(3)[:20]
        raise ConnectionResetError("gone")

    await asyncio.wait_for(ask_app(app, "POST", "/v1/batch", leaving()), PATIENCE_S)
    assert [params[0] for _, params, _ in node.logged] == [1, 2]


@pytest.mark.parametrize("held", [False, True])
def test_stream_that_outlives_an_orderly_stop_is_answered_whole(app: Api, node: Any, ask_app: Any, held: bool) -> None:
    """Every line that was read has its answer, and the answer ends in order; half a line was not read."""
    app.service.settings = type(node.settings)(drain_timeout_s=0)
    node.hold = held

    async def run() -> Any:
        async def body() -> AsyncIterator[bytes]:
            yield line(1) + line(2) + line(3)[:5]
            app.service.begin_stop()
            asyncio.get_running_loop().call_later(0.01, node.release)
            await asyncio.Event().wait()

        async with asyncio.timeout(120):
            return await ask_app(app, "POST", "/v1/batch", body())

    assert results(asyncio.run(run())) == [1, 2]
    assert app.service.streams == set()


async def test_stream_that_is_shorter_than_an_orderly_stop_is_served(app: Api, node: Any, ask_app: Any) -> None:
    """Its lines are read to their end."""
    app.service.settings = type(node.settings)(drain_timeout_s=PATIENCE_S)

    async def body() -> AsyncIterator[bytes]:
        yield line(1)
        app.service.begin_stop()
        await asyncio.sleep(0)
        yield line(2)

    assert results(await ask_app(app, "POST", "/v1/batch", body())) == [1, 2]


async def test_silent_stream_is_ended(app: Api, node: Any, ask_app: Any) -> None:
    """A client that sends nothing for body_timeout_s is answered and let go; what it sent before has run."""
    app.service.settings = type(node.settings)(body_timeout_s=0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield line(1)
        await asyncio.Event().wait()

    assert results(await asyncio.wait_for(ask_app(app, "POST", "/v1/batch", stuck()), PATIENCE_S)) == [1, "body_timeout"]


async def test_reader_of_nothing_is_let_go(app: Api, node: Any, ask_app: Any) -> None:
    """A client that does not read its answers for body_timeout_s loses its connection, and nothing stays behind."""
    app.service.settings = type(node.settings)(body_timeout_s=0.05, stream_calls_max=1)

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": line(1) + line(2), "more_body": True}

    scope = {"type": "http", "method": "POST", "path": "/v1/batch", "headers": [(b"host", b"localhost")]}
    await asyncio.wait_for(app(scope, receive, never), PATIENCE_S)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - {asyncio.current_task()} == set()


async def test_nothing_is_placed_for_a_reader_of_nothing(app: Api, node: Any) -> None:
    """Once an answer is not taken, no further line becomes a call: what a client does not read it does not get."""
    placed = []

    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": line(1) * 10, "more_body": True}

    scope = {"type": "http", "method": "POST", "path": "/v1/batch", "headers": [(b"host", b"localhost")]}
    serving = asyncio.create_task(app(scope, receive, never))
    for _ in range(2000):
        await asyncio.sleep(0)
    placed.append(len(node.logged))
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert 10 <= placed[0] <= 100


async def test_answers_from_another_thread_arrive(app: Api, node: Any, ask_app: Any) -> None:
    """When the log fails, its own thread answers; the waiting streams hear of it."""
    node.hold = True
    request = asyncio.create_task(ask_app(app, "POST", "/v1/batch", line(1) + line(2)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(node.waiting) == 2
    await asyncio.get_running_loop().run_in_executor(None, node.release)
    assert results(await asyncio.wait_for(request, PATIENCE_S)) == [1, 2]


async def test_results_that_nobody_reads_are_bounded_in_bytes(app: Api, node: Any, ask_app: Any) -> None:
    """Calls are placed as far as there is room for results like the last ones; all others wait, and none is lost."""
    unread = app.service.unread
    node.outcome = lambda route, params: (0, b'"%b"' % (b"x" * (64 << 10)))
    most = 0

    def refuse(calls: Sequence[Any]) -> None:
        nonlocal most
        most = max(most, len(calls))

    node.refuse = refuse
    reads = asyncio.Event()
    answers = 0

    async def lines() -> AsyncIterator[bytes]:
        yield b"".join(line(number) for number in range(4000))

    async def send(message: Any) -> None:
        nonlocal answers
        answers += message.get("body", b"").count(b"\n")
        await reads.wait()

    request = asyncio.create_task(asked_slowly(app, lines(), send))
    seen = -1
    while seen != len(node.logged) or not seen:  # until no more calls are placed
        seen = len(node.logged)
        for _ in range(50):
            await asyncio.sleep(0)
    assert 0 < len(node.logged) < 600
    assert unread.total <= unread.whole // 2
    assert unread.take_share("another", unread.whole // 4)
    reads.set()
    await request
    assert (answers, len(node.logged)) == (4000, 4000)
    assert unread.held == {"another": unread.whole // 4}
    assert most < 600


async def asked_slowly(app: Api, body: AsyncIterator[bytes], send: Callable[[Any], Any]) -> None:
    """A batch whose client takes the answer as `send` does."""

    async def receive() -> Any:
        chunk = await anext(body, None)
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/batch", "raw_path": b"/v1/batch",
        "root_path": "", "scheme": "http", "query_string": b"", "headers": [(b"host", b"localhost")], "client": None,
    }  # fmt: skip
    await app(scope, receive, send)


def test_result_without_room_is_dropped_and_its_call_is_not(app: Api, node: Any, post: Post) -> None:
    """Results longer than all before take what is left; then a write says that it was executed, a read is to be repeated."""
    assert results(post("/v1/batch", line(1) + b'{"procedure": "get", "params": {"item": 9}}\n')) == [1, 9]
    huge = b'"%b"' % (b"x" * (10 << 20))
    node.outcome = lambda route, params: (0, huge)
    reads = b'{"procedure": "get", "params": {"item": 9}}\n'
    errors = [entry.get("error", {"code": "a result"}) for entry in post("/v1/batch", (line(1) + reads) * 8).lines()]
    assert {error["code"] for error in errors[::2]} == {"a result", "outcome_unknown"}
    assert {error["code"] for error in errors[1::2]} == {"a result", "not_ready"}
    (dropped,) = {re.sub(r"\d+", "N", error["detail"]) for error in errors[::2] if error["code"] == "outcome_unknown"}
    assert "was executed as transaction N" in dropped
    assert app.service.unread.total == 0


async def test_stream_that_ends_early_gives_its_room_back_when_its_calls_are_answered(app: Api, node: Any) -> None:
    """What is on its way counts for as long, and is not kept for a client that has left."""
    unread = app.service.unread
    node.hold = True

    async def lines() -> AsyncIterator[bytes]:
        yield b"".join(line(number) for number in range(50))
        raise ConnectionError

    async def send(message: Any) -> None: ...

    await asked_slowly(app, lines(), send)
    assert unread.total > 0
    node.outcome = lambda route, params: (0, b'"%b"' % (b"x" * (10 << 20)))
    node.release()
    await asyncio.sleep(0)
    assert unread.total == 0


def test_overload_is_waited_for(node: Any, post: Post) -> None:
    """Calls beyond what the node takes wait inside the stream instead of failing, and stay in order."""
    turn = itertools.count()

    def refuse(calls: Sequence[Any]) -> CallRefused | None:
        return Overloaded("busy") if len(calls) > 3 or next(turn) % 2 else None

    node.refuse = refuse
    assert results(post("/v1/batch", b"".join(line(number) for number in range(10)))) == list(range(10))


def test_stream_survives_changes_of_leader(node: Any, app: Api, ask_app: Any) -> None:
    """The node loses its lead under a stream and gets it back: calls in doubt are `outcome_unknown`, those after them `not_ready`
    with the leader's name, and later ones are executed. Every line has one answer, at its place."""
    away = NotLeading("node 2 leads the cluster", "http://10.0.0.2:8642")

    async def run() -> Any:
        async def body() -> AsyncIterator[bytes]:
            yield line(0) + line(1)
            node.hold = True
            yield line(2) + line(3)
            await asyncio.sleep(0)  # they are placed
            node.refuse = lambda _calls: away.again()
            doubtful, node.waiting, node.hold = node.waiting, [], False
            for done, _ in doubtful:
                done(UnknownOutcome("the node led no more before a majority had the call"))
            yield line(4) + line(5)
            node.refuse = lambda _calls: None
            yield line(6)

        async with asyncio.timeout(120):
            return await ask_app(app, "POST", "/v1/batch", body())

    answer = asyncio.run(run())
    assert results(answer) == [0, 1, "outcome_unknown", "outcome_unknown", "not_ready", "not_ready", 6]
    assert {entry["error"]["leader"] for entry in answer.lines()[4:6]} == {away.leader}
    assert [params[0] for _, params, _ in node.logged] == [0, 1, 2, 3, 6]
