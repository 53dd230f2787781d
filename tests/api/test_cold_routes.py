"""The other routes: query, catalog, health, description."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import TABLE, Entry
from cmdlog.api.routes import cold_routes
from cmdlog.node.queries.query import QueryLimit, QueryRefused, QueryResult
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.cluster_metrics import MemberReadiness
from snapshot.errors import PointRefused, SnapshotFailed
from tests.api.conftest import OLD_TXN
from tests.waiting import PATIENCE_S

Post = Callable[..., Any]


def test_query_answers_with_its_wire_forms(post: Post) -> None:
    """Rows hold bytes as base64, and `as_of` the transaction of each partition as text."""
    assert post("/v1/query", b'{"sql": "select :a", "params": {"a": 1}, "partition": 0}').status == 200
    answer = post("/v1/query", b'{"sql": "select 1", "params": [1, null, "x", 1.5], "partition": 0}')
    assert answer.json() == {"columns": ["id", "raw"], "rows": [[1, "AP8="]], "as_of": {"0": str(1 << 60)}}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"sql": 7}',
        b'{"sql": " "}',
        b'{"sql": "select 1", "params": "a"}',
        b'{"sql": "select :a", "params": {"a": [1]}}',
        b'{"sql": "select 1", "params": [[1]]}',
        b'{"sql": "select 1", "params": [18446744073709551615]}',
        b'{"sql": "select 1", "partition": 4}',
        b'{"sql": "select 1", "partition": -1}',
        b'{"sql": "select 1", "partition": true}',
        b'{"sql": "select 1", "partitions": 1}',
        b'{"sql": "select \\ud800"}',
    ],
)
def test_bad_query_is_refused(post: Post, body: bytes) -> None:
    """A query that does not fit gets 422, like a call."""
    answer = post("/v1/query", body)
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")


def test_stale_query_says_as_of_what_it_read(node: Any, post: Post) -> None:
    """With the time, which other queries do not have; the transaction that the caller has seen reaches the node."""
    answer = post("/v1/query?consistency=stale", b'{"sql": "select 7 as id"}', headers=[("Cmdlog-Txn", "12345")])
    assert answer.json() == {
        "columns": ["id"],
        "rows": [[7]],
        "as_of": {"1": str(OLD_TXN)},
        "as_of_time": "2023-11-14T22:13:20.250Z",
    }
    assert node.seen_txn == 12345
    assert set(post("/v1/query", b'{"sql": "select 7 as id"}').json()) == {"columns", "rows", "as_of"}
    assert post("/v1/query?consistency=old", b'{"sql": "select 7 as id"}').status == 422


def test_query_has_the_limit_of_calls(post: Post, settings: Settings) -> None:
    """A body over call_bytes_max is refused here too."""
    answer = post("/v1/query", b'{"sql": "' + b" " * settings.call_bytes_max + b'"}')
    assert (answer.status, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.body == "json"], ids=lambda entry: entry.name)
def test_no_route_waits_for_a_body_that_is_stated_to_be_too_large(node: Any, post: Post, entry: Entry) -> None:
    """413 after the head, at every route that takes a body and is no stream."""

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body is read")
        yield b""

    path = entry.path.replace("{name}", "put").replace("{node}", "2")
    answer = post(path, body(), headers=[("Content-Length", "40000000")])
    assert (answer.status, answer.json()["code"], answer.headers["connection"]) == (413, "too_large", "close")
    assert node.logged == []


def test_refused_statement_is_the_callers_fault(node: Any, post: Post) -> None:
    """What SQLite or the limits say about the statement comes back as 422."""

    def refuse(*_: object) -> None:
        raise QueryRefused("no such table: shelves")

    node.query = refuse
    answer = post("/v1/query", b'{"sql": "select * from shelves"}')
    assert (answer.status, answer.json()["detail"]) == (422, "sql: no such table: shelves")


def test_defect_has_a_code_and_no_details(
    node: Any,
    post: Post,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception that nobody expected is a 500 with a stable code; its text, which may hold parameters, goes nowhere."""

    # a handler of an earlier test whose stream is closed would print its own failure, with the exception at hand
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret 12345")

    node.query = node.call = fail
    for path, body in (("/v1/query", b'{"sql": "select 1"}'), ("/v1/procedures/put", b'{"item": 1}')):
        answer = post(path, body)
        assert (answer.status, answer.json()["code"]) == (500, "internal_error")
        assert b"secret" not in answer.body
    logged = "".join(capsys.readouterr()) + caplog.text  # wherever an earlier test of this process has sent lines to
    assert "ZeroDivisionError" in logged
    assert "secret" not in logged


SNAPSHOT_BODIES = [
    (b"", 200), (b" ", 200), (b"{}", 200), (b'{"consistent": false}', 200), (b'{"partition": 0}', 422), (b"[]", 422),
    (b'{"consistent": 1}', 422), (b'{"consistent": null}', 422), (b'{"consistent": true, "x": 1}', 422),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), SNAPSHOT_BODIES)
def test_snapshot_reads_every_member_or_refuses_it(post: Post, body: bytes, status: int) -> None:
    """A member that nobody reads is refused, not missed."""
    assert post("/v1/snapshots", body).status == status


def test_consistent_snapshot_is_a_recovery_point(fetch: Post, post: Post) -> None:
    """It names a transaction for all partitions, and is listed from then on."""
    made = post("/v1/snapshots", b'{"consistent": true}').json()
    listed = fetch("/v1/snapshots").json()
    assert made["point"] in listed["points"]
    assert made["point"]["snapshots"] == [snapshot["name"] for snapshot in made["snapshots"]]
    assert made["point"]["txn_id"].isdecimal()


def test_recovery_point_of_a_node_that_takes_none_is_a_problem_of_the_request(
    node: Any, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller learns the reason; nothing is wrong with the server."""

    def refuse() -> None:
        raise PointRefused("recovery points are taken on a node alone")

    monkeypatch.setattr(node, "take_point", refuse)
    problem = post("/v1/snapshots", b'{"consistent": true}').json()
    assert problem["code"] == "invalid_parameters"
    assert problem["detail"] == "consistent: recovery points are taken on a node alone"


def test_snapshot_that_fails_says_why(node: Any, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full volume is no defect of the server, whose log the caller may not read."""

    def fail(*_: object) -> None:
        raise SnapshotFailed("[Errno 28] No space left on device: '/data/snapshots'")

    monkeypatch.setattr(node, "take_snapshot", fail)
    problem = post("/v1/snapshots", b"").json()
    assert (problem["code"], problem["status"]) == ("snapshot_failed", 500)
    assert "No space left on device" in problem["detail"]


def test_query_that_breaks_a_limit_has_its_own_code(node: Any, post: Post) -> None:
    """Programs tell a query that is too much from one that is wrong."""

    def refuse(*_: object) -> None:
        raise QueryLimit("the query ran longer than query_timeout_s=5")

    node.query = refuse
    answer = post("/v1/query", b'{"sql": "select 1"}')
    assert (answer.status, answer.json()["code"]) == (422, "query_limit")


async def test_queries_wait_for_their_turn_and_not_for_ever(node: Any, ask_app: Any) -> None:
    """Beyond `queries_max` they wait; those whose turn does not come within the time of a query are told to come back."""
    app = create_app(node, Settings(queries_max=1, query_timeout_s=0.05))
    hold = threading.Event()

    def query(*_: object) -> QueryResult:
        hold.wait(PATIENCE_S)
        return QueryResult(["x"], [(1,)], {})

    node.query = query
    asked = [asyncio.create_task(ask_app(app, "POST", "/v1/query", b'{"sql": "select 1"}')) for _ in range(2)]
    (refused,), (running,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    hold.set()
    waited, served = [refused.result(), await running]
    assert (waited.status, waited.json()["code"], waited.headers["retry-after"]) == (503, "not_ready", "1")
    assert served.status == 200


def test_health_and_readiness_are_two_things(app: Api, node: Any, fetch: Post) -> None:
    """A process that recovers or stops is alive and not ready, and says how far it is."""
    assert fetch("/readyz").status == 200
    node.ready = False
    assert (fetch("/healthz").status, fetch("/readyz").status) == (200, 503)
    node.ready, app.service.stopping = True, True
    assert fetch("/readyz").json()["detail"] == "the node is stopping"


def member(**changed: Any) -> Any:
    """What a node of a cluster says of itself, beside its parts."""
    told: dict[str, Any] = {"serves": True, "state": "running", "role": "follower", "leader": "http://one", **changed}
    return SimpleNamespace(cluster=SimpleNamespace(readiness=lambda: MemberReadiness(**told)))


def test_readiness_of_a_member_names_state_role_and_leader(node: Any, fetch: Post) -> None:
    """A follower that knows its leader serves; without one, or during a take-over, it is not ready and says why. It is alive."""
    node.overview = member()
    assert fetch("/readyz").json() == {"ready": True, "state": "running", "role": "follower", "leader": "http://one"}
    node.overview = member(serves=False, state="configuring", leader="", why="it knows no leader")
    answer = fetch("/readyz")
    told = answer.json()
    assert (answer.status, told["code"], told["state"], told["role"]) == (503, "not_ready", "configuring", "follower")
    assert told["detail"] == "the node is configuring: it knows no leader"
    node.overview = member(serves=False, role="leader", why="it was elected, and is taking over")
    assert fetch("/readyz").json()["detail"] == "the node is running: it was elected, and is taking over"
    assert fetch("/healthz").status == 200
    node.ready, node.overview = False, member(serves=False, role="leader", why="node 2 has no room")
    assert fetch("/readyz").json()["detail"] == "the node is running: node 2 has no room"
    node.overview = member()
    assert fetch("/readyz").json()["detail"] == "the node is not serving"


def test_readiness_names_a_full_volume(node: Any, fetch: Post) -> None:
    """The code says it, and path and free bytes stand beside it; other troubles are `not_ready`."""
    node.ready = False
    node.troubles.begin_trouble([1], "io", "broken")
    assert fetch("/readyz").json()["code"] == "not_ready"
    node.troubles.begin_trouble([0], "disk_full", "no room")
    answer = fetch("/readyz")
    assert (answer.status, answer.json()["code"], answer.headers["retry-after"]) == (503, "disk_full", "5")
    told = answer.json()["disk_full"]
    assert (told["path"], told["partitions"], told["free_bytes"] > 0) == ("/tmp", [0], True)


def test_server_without_a_node_refuses_and_tells_progress(settings: Settings, ask_app: Any) -> None:
    """Until recovery is done every route that needs the node answers `not_ready` with a Retry-After."""
    app = create_app(None, settings)
    app.service.progress = {"percent": 40}
    requests = [("POST", "/v1/procedures/put"), ("POST", "/v1/batch"), ("POST", "/v1/query"), ("GET", "/v1/status")]
    for method, path in requests:
        answer = asyncio.run(ask_app(app, method, path, b"{}"))
        assert (answer.status, answer.json()["code"], answer.headers["retry-after"]) == (503, "not_ready", "1")
    recovering = asyncio.run(ask_app(app, "GET", "/readyz")).json()
    assert (recovering["progress"], recovering["state"]) == ({"percent": 40}, "bootstrapping")
    (error,) = app.service.front.errors()
    assert error["count"] == len(requests)  # a probe that is answered is none
    assert asyncio.run(ask_app(app, "GET", "/healthz")).status == 200


def test_routes_are_loaded_once_and_beside_the_loop(settings: Settings, ask_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first requests for one of them, which may come together; calls have the loop meanwhile."""
    made: list[threading.Thread] = []
    make = cold_routes.ColdRoutes.__init__

    def note(*given: Any, **named: Any) -> None:
        made.append(threading.current_thread())
        make(*given, **named)

    monkeypatch.setattr(cold_routes.ColdRoutes, "__init__", note)
    app = create_app(None, settings)

    async def ask_thrice() -> list[int]:
        return [answer.status for answer in await asyncio.gather(*(ask_app(app, "GET", "/healthz") for _ in range(3)))]

    assert (asyncio.run(ask_thrice()), len(made)) == ([200, 200, 200], 1)
    assert made[0] is not threading.main_thread()


def test_description_has_one_typed_operation_per_procedure(fetch: Post) -> None:
    """OpenAPI states each procedure's own request and result schema, and the problems it may answer with."""
    described = fetch("/openapi.json").json()
    paths, models = described["paths"], described["components"]["schemas"]
    assert {path for path in paths if path.startswith("/v1/procedures/")} == {
        "/v1/procedures/get",
        "/v1/procedures/put",
        "/v1/procedures/set_price",
    }
    put = paths["/v1/procedures/put"]["post"]
    assert put["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/PutParameters"}
    body = models["PutParameters"]
    assert body["required"] == ["item"]
    assert body["properties"]["raw"]["contentEncoding"] == "base64"
    assert put["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/PutAnswer"}
    assert models["PutAnswer"]["properties"]["result"]["type"] == "integer"
    assert put["summary"] == "Puts an item on the shelf."
    assert {"404", "409", "413", "422", "503", "504"} <= put["responses"].keys()
    assert models["SetPriceAnswer"]["properties"]["result"]["type"] == "array"
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_description_resolves_in_itself(fetch: Post) -> None:
    """Every `$ref` leads to something, so that generators of clients work."""
    described, followed = fetch("/openapi.json").json(), 0

    def walk(value: Any) -> None:
        nonlocal followed
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)
        if isinstance(value, dict) and "$ref" in value:
            target = described
            for part in value["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            followed += 1

    walk(described)
    assert followed > 100


def test_docs_need_nothing_from_elsewhere(fetch: Post) -> None:
    """The page for people lists every operation and loads nothing from any address."""
    page = fetch("/docs").body.decode()
    assert "/v1/procedures/put" in page
    assert re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page[:2000] + page[-4000:]) is None
    assert "connect-src 'self'" in fetch("/docs").headers["content-security-policy"]


def test_readyz_names_calls_that_hang(node: Any, fetch: Post) -> None:
    """While some partitions work the server is ready, and says which do not; when none does it is not."""
    stall = {"partitions": [1], "procedure": "put", "message": "partition 1: put has been running for 2.0 s"}
    node.stalled = [stall]
    assert fetch("/readyz").json() == {"ready": True, "stalled": [stall]}
    node.stalled = [{**stall, "partitions": [0, 2]}, {**stall, "partitions": [1, 3]}]
    answer = fetch("/readyz")
    assert (answer.status, answer.json()["stalled"]) == (503, node.stalled)
    assert "put has been running for 2.0 s" in answer.json()["detail"]


def test_codes_of_the_contract_keep_their_status() -> None:
    """The codes that clients switch on, as the interface promises them."""
    promised = {
        401: ["unauthenticated"],
        403: ["forbidden"],
        404: ["unknown_procedure"],
        409: ["aborted", "key_reused", "session_expired"],
        413: ["too_large"],
        500: ["procedure_failed", "internal_error"],
        422: ["invalid_parameters"],
        503: ["log_full", "disk_full", "not_ready", "sessions_full"],
        504: ["outcome_unknown"],
    }
    assert all(CODES[code][0] == status for status, codes in promised.items() for code in codes)


def test_long_answer_takes_of_its_callers_share_until_it_is_sent(app: Api, node: Any, ask_app: Any) -> None:
    """Of any route; when that share is full the connection ends without an answer."""
    unread = app.service.unread
    node.status = lambda: {"ready": True, "text": "x" * (1 << 20)}
    held: list[int] = []
    asked = partial(ask_app, app, "GET", "/v1/status", on_data=lambda data: held.append(unread.total))
    assert asyncio.run(asked()).status == 200
    assert (max(held) > 1 << 20, unread.total) == (True, 0)
    assert unread.take_share("default", unread.whole // 2)
    assert asyncio.run(asked()).body == b""
    assert unread.total == unread.whole // 2


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/nothing", "/v1/query/", "/V1/QUERY", "/v1/batch/", "/\ufffd", "/../etc/passwd"]
)
def test_unknown_route_is_a_problem(fetch: Post, path: str) -> None:
    """Whatever is not served is 404 `not_found`."""
    answer = fetch(path)
    assert (answer.status, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/v1/query", "/v1/batch"])
def test_wrong_method_is_a_problem(fetch: Post, path: str) -> None:
    """A known route under another method is 405."""
    assert fetch(path).json()["code"] == "method_not_allowed"


def test_description_promises_no_replication(fetch: Post) -> None:
    """A call is durable on one node; nothing in the description says that others have it."""
    assert "replicat" not in str(fetch("/openapi.json").json()).lower()
