"""A node that answers at once or on demand, a client that speaks ASGI without a socket, and a server of small routes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from sqlalchemy import Column, Integer, String

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.auth import LocalCallers
from cmdlog.node.deploying.deployer import DeployAnswer
from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Durability
from cmdlog.node.placing.router import Placed
from cmdlog.node.queries.pool import QueryAnswer
from cmdlog.node.queries.query import QueryResult
from cmdlog.node.queries.worker import EncodedRows, encode_result
from cmdlog.node.settings import Settings
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.slot_map import Route, SlotMap, make_routes
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.wal.ids import MILLIS_SHIFT
from procedures import Database, Transaction
from procedures.execution.failure_trace import FailureTrace
from tests.api.echo import Application
from tests.api.served import Served, served

db = Database("shop")
items = db.table("items", Column("id", Integer, primary_key=True), Column("name", String), partition_by="id")


@db.procedure(partition_by="item")
def put(tx: Transaction, item: int, amount: float = 1.0, tags: list[str] | None = None, raw: bytes = b"") -> int:
    """Puts an item on the shelf."""
    return item


@db.procedure(partition_by="item", read_only=True)
def get(tx: Transaction, item: int) -> int:
    """Looks at an item."""
    return item


@db.procedure(partition_by=None)
def set_price(tx: Transaction, price: int) -> int:
    """Sets the price everywhere."""
    return price


def answer_of(result: QueryResult, *, dated: bool = False) -> QueryAnswer:
    """The answer of a query, as a query process would have made it."""
    rows = EncodedRows()
    for row in result.rows:
        assert rows.add_row(row, 1 << 30)
    assert rows.end_rows(1 << 30)
    body = b"".join(encode_result(result.columns, rows, result.as_of, dated=dated))
    return QueryAnswer(len(body), io.BytesIO(body).read, lambda whole: None)


OLD_TXN = 1_700_000_000_250 << MILLIS_SHIFT  # of 2023-11-14T22:13:20.250Z


@dataclass
class FakeStaleReads:
    """Stands in for `cmdlog.node.placing.local_calls.StaleReads`: every state is an old one."""

    node: FakeNode

    def call(self, route: Route, params: list[Any], *, done: Done, txn: int | None = None) -> int | None:
        self.node.seen_txn = txn
        if (refused := self.node.refuse([(route, params, b"", done, None)])) is not None:
            raise refused
        done(CallOutcome(0, OLD_TXN, b"7", as_of={0: OLD_TXN + 1024, 1: OLD_TXN}))
        return 0

    def query(
        self, run: Callable[..., Any], sql: str, params: Sequence[Any], partition: int | None, *, txn: int | None = None
    ) -> QueryAnswer:
        self.node.seen_txn = txn
        return answer_of(QueryResult(["id"], [(7,)], {1: OLD_TXN}), dated=bool(run.keywords["dated"]))  # type: ignore[attr-defined]


class FakeDeployer:
    """Goes back to the former code at once."""

    def roll_back(self, version: int | None, *, migrate: bool, plan: bool) -> dict[str, Any]:
        return DeployAnswer(version or 1, changed=not plan, pauses="migration" if migrate else "").to_json()


@dataclass
class FakeNode:
    """Stands in for `cmdlog.node.node.Node`: outcomes are what a test says, `logged` is what would be in the log."""

    settings: Settings
    directory: str = "/srv/shop/node-1"
    routes: dict[str, Route] = field(default_factory=lambda: make_routes(db))
    logged: list[tuple[str, list[Any], bytes]] = field(default_factory=list)
    waiting: list[tuple[Done, CallOutcome]] = field(default_factory=list)
    durabilities: list[Durability | None] = field(default_factory=list)  # that calls were promised
    durabilities_offered: Sequence[Durability] = ("sync", "async")
    front: RequestStats = field(default_factory=RequestStats)
    overview: Any = None  # of its parts, which it does not have: metrics then show the front and the process
    hold: bool = False  # answers wait for `release`
    refuse: Callable[[Sequence[Placed]], CallRefused | None] = lambda calls: None
    outcome: Callable[[Route, list[Any]], tuple[int, bytes]] = lambda route, params: (0, orjson.dumps(params[0]))
    ready: bool = True
    troubles: PartitionHealth = field(default_factory=lambda: PartitionHealth("/tmp"))
    error: BaseException | None = None
    txn: int = 1000
    seen_txn: int | None = None
    in_flight_max: int = 0
    stalled: list[dict[str, Any]] = field(default_factory=list)
    trace: FailureTrace | None = None  # of every call that failed
    ended: list[bytes] = field(default_factory=list)  # sessions
    sequencer: Any = field(default_factory=lambda: SimpleNamespace(admission=SimpleNamespace(refusal=None)))

    def end_session(self, session: bytes) -> None:
        self.ended.append(session)

    def stalls(self) -> list[dict[str, Any]]:
        return self.stalled

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        return self.trace

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        self.seen_txn = txn
        return self.call_many([(route, params, key, done, durability)])[0]

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        refused = self.refuse(calls)
        if refused is not None:
            raise refused
        slots = SlotMap(self.settings.partitions)
        partitions: list[int | None] = []
        for route, params, key, done, durability in calls:
            self.logged.append((route.name, params, key))
            self.durabilities.append(durability)
            self.txn += 1
            self.waiting.append((done, CallOutcome(self.outcome(route, params)[0], self.txn, self.outcome(route, params)[1])))
            partitions.append(None if route.everywhere else slots.partition_of(route.procedure, params))
        self.in_flight_max = max(self.in_flight_max, len(self.waiting))
        if not self.hold:
            self.release()
        return partitions

    def release(self) -> None:
        """Answers everything that waits, the last call first: order is the caller's business."""
        waiting, self.waiting = self.waiting, []
        for done, outcome in reversed(waiting):
            done(outcome)

    @property
    def stale(self) -> FakeStaleReads:
        return FakeStaleReads(self)

    def query_by(self, run: Callable[..., Any], sql: str, params: Sequence[Any], partition: int | None) -> QueryAnswer:
        return answer_of(self.query(sql, params, partition))

    def query(self, sql: str, params: Sequence[Any] = (), partition: int | None = None) -> QueryResult:
        return QueryResult(["id", "raw"], [(1, b"\0\xff")], {0: 1 << 60})

    def catalog(self) -> list[dict[str, Any]]:
        return [{"name": name} for name in self.routes]

    def listen_to(self, front: RequestStats) -> None:
        self.front = front

    def stages_of(self, txn_id: int) -> dict[str, float]:
        return {"queue_ms": 1.0}

    def telemetry(self, after: int = 0) -> dict[str, Any]:
        return {"history": {"next": after + 1}, "errors": ["one\ntwo"]}

    def snapshots(self) -> list[dict[str, Any]]:
        return [{"name": "0-1"}]

    def take_snapshot(self) -> list[dict[str, Any]]:
        return self.snapshots()

    def points(self) -> list[dict[str, Any]]:
        return [{"txn_id": "77", "snapshots": ["0-1"]}]

    @property
    def deployer(self) -> FakeDeployer:
        return FakeDeployer()

    def take_point(self) -> dict[str, Any]:
        return {"snapshots": self.snapshots(), "point": self.points()[0]}

    def status(self) -> dict[str, Any]:
        return {"ready": self.ready, "partitions": {0: {}}}


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    def lines(self) -> list[Any]:
        return [orjson.loads(line) for line in self.body.splitlines()]


Chunks = Iterable[bytes] | AsyncIterator[bytes]
Ask = Callable[..., Awaitable[Answer]]


async def ask(
    app: Api,
    method: str,
    path: str,
    body: bytes | Chunks = b"",
    *,
    headers: Sequence[tuple[str, str]] = (),
    on_data: Callable[[bytes], None] = lambda data: None,
    host: str | None = "localhost:8642",
) -> Answer:
    """One request, as a server would hand it over; a body that ends early means that the client has left."""
    named = [(b"host", host.encode())] if host is not None else []
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [*named, *((name.lower().encode(), value.encode("latin-1")) for name, value in headers)],
        "server": ("here", 80),
        "client": ("there", 1),
    }
    chunks = _chunks([body] if isinstance(body, bytes) else body)
    sent: list[dict[str, Any]] = []
    whole = False

    async def receive() -> dict[str, Any]:
        nonlocal whole
        if whole and not isinstance(body, AsyncIterator):  # the client waits for the answer; an iterator says when it leaves
            await asyncio.Event().wait()
        message = await anext(chunks, {"type": "http.disconnect"})
        whole = not message.get("more_body", True)
        return message

    async def send(message: Any) -> None:
        sent.append(message)
        on_data(message.get("body", b""))

    await app(scope, receive, send)
    start: dict[str, Any] = sent[0] if sent else {"status": 0, "headers": []}
    answer_headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], answer_headers, b"".join(part.get("body", b"") for part in sent[1:]))


async def _chunks(body: Chunks) -> AsyncIterator[dict[str, Any]]:
    if isinstance(body, AsyncIterator):
        async for chunk in body:
            yield {"type": "http.request", "body": chunk, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}
        return
    held = list(body)
    for number, chunk in enumerate(held, 1):
        yield {"type": "http.request", "body": chunk, "more_body": number < len(held)}


@pytest.fixture
def settings() -> Settings:
    """Small limits."""
    return Settings(body_timeout_s=5.0, stream_calls_max=2048)


@pytest.fixture
def node(settings: Settings) -> FakeNode:
    """The node behind `app`."""
    return FakeNode(settings)


@pytest.fixture
def app(node: FakeNode, settings: Settings) -> Api:
    """The application over the fake node."""
    return create_app(node, settings)  # type: ignore[arg-type]  # the fake has what the routes use


def local_token(app: Api) -> str:
    """Of an application without a token file."""
    gatekeeper = app.service.gatekeeper
    assert isinstance(gatekeeper, LocalCallers)
    return gatekeeper.token


def _ask_as_owner(app: Api, method: str, path: str, body: bytes | Chunks = b"", *, headers: Any = (), **more: Any) -> Answer:
    named = any(name.lower() == "authorization" for name, _ in headers)
    own = [] if named else [("Authorization", f"Bearer {local_token(app)}")]
    return asyncio.run(ask(app, method, path, body, headers=[*headers, *own], **more))


@pytest.fixture
def post(app: Api) -> Callable[..., Answer]:
    """`post(path, body, headers=...)` of the server's owner, in a loop of its own."""
    return partial(_ask_as_owner, app, "POST")


@pytest.fixture
def fetch(app: Api) -> Callable[..., Answer]:
    """`fetch(path)` of the same."""
    return partial(_ask_as_owner, app, "GET")


@pytest.fixture
def ask_app() -> Ask:
    """The client itself, for tests that run their own loop."""
    return ask


@pytest.fixture
def application() -> Application:
    """A new one."""
    return Application()


@pytest.fixture
def server(application: Application) -> Iterator[Served]:
    """Limits as in service, except the shortest."""
    with served(application) as server:
        yield server
