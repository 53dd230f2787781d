"""The gate: no route opens without the right credential, and every route stands in the table that these tests walk over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from cmdlog.api.app import Api, create_app
from cmdlog.api.gate.route_table import ADMIN, CHANGES, CLUSTER, INVOKE, LOCAL, READ, ROLES, TABLE, Entry, allowed, methods_of
from cmdlog.api.gate.token_file import Credential, digest_of
from cmdlog.node.settings import Settings
from procedures.idempotency.known_outcome import key_fingerprint
from tests.api.conftest import local_token
from tests.api.fake_desk import clustered
from tests.api.running import EXPIRED, TOKENS, write_tokens

GOOD = TOKENS[ADMIN]
BODIES = {
    "call": b'{"item": 1}',
    "batch": b'{"procedure": "put", "params": {"item": 1}}\n',
    "query": b'{"sql": "select 1"}',
    "unsafe_recover": b'{"yes_lose": true}',
    "deploy": b'{"rollback": true}',
}
BAD_HEADERS = {
    "none": [],
    "wrong": [("Authorization", "Bearer wrong-token-of-some-length")],
    "truncated": [("Authorization", f"Bearer {GOOD[:-1]}")],
    "expired": [("Authorization", f"Bearer {EXPIRED}")],
    "wrong scheme": [("Authorization", f"Basic {GOOD}")],
    "not ASCII": [("Authorization", "Bearer \xff\xfe")],
    "two": [("Authorization", f"Bearer {GOOD}"), ("Authorization", f"Bearer {GOOD}")],
    "two, the first wrong": [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {GOOD}")],
    "other header": [
        ("X-Authorization", f"Bearer {GOOD}"),
        ("Cookie", f"token={GOOD}"),
        ("Proxy-Authorization", f"Bearer {GOOD}"),
    ],
}


class Tripwire:
    """A node that nobody may touch; it knows its procedures, which 404 and the roles of calls need, and its place."""

    directory = "/srv/shop/node-1"

    def __init__(self, routes: Any) -> None:
        self.routes = routes
        self.touched: list[str] = []

    def listen_to(self, front: Any) -> None:
        """Before any request: the application shows the node its counters."""

    def __getattr__(self, name: str) -> Any:
        self.touched.append(name)
        raise AssertionError(f"node.{name} was reached")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Credentials of each role, and one of all roles that has expired."""
    return write_tokens(tmp_path)


@pytest.fixture
def locked(token_file: Path, node: Any) -> Api:
    """The application behind credentials, over the fake node."""
    return create_app(node, Settings(token_file=token_file))


@pytest.fixture
def wired(token_file: Path, node: Any) -> Api:
    """The same over a node that must not be touched."""
    return create_app(Tripwire(node.routes), Settings(token_file=token_file))  # type: ignore[arg-type]  # stands in for the node


SESSION = "01890a5d-ac96-774b-bcce-b302099a8057"


def path_of(entry: Entry) -> str:
    """A path that the entry serves."""
    return entry.path.replace("{name}", "put").replace("{node}", "4").replace("{session}", SESSION)


def bearer(role: str) -> list[tuple[str, str]]:
    """The header of a role's credential."""
    return [("Authorization", f"Bearer {TOKENS[role]}")]


def test_every_route_of_fastapi_stands_in_the_table(locked: Api) -> None:
    """FastAPI holds the cold entries of the table and not one route more."""
    cold: Any = locked._load_cold()
    routes = [route for route in cold.routes if isinstance(route, Route)]
    held = {(method, route.path) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    assert len(cold.routes) == len(held)  # no mounts, no websockets
    assert held == {(entry.method, entry.path) for entry in TABLE if entry.kind not in ("call", "batch")}


def test_table_names_every_route_of_the_contract() -> None:
    """The routes that clients rely on, with the least role that opens each."""
    promised = {
        "POST /v1/procedures/{name}": READ,
        "POST /v1/batch": INVOKE,
        "POST /v1/query": READ,
        "GET /v1/procedures": READ,
        "GET /v1/status": READ,
        "GET /v1/snapshots": READ,
        "POST /v1/snapshots": ADMIN,
        "GET /v1/cluster/members": READ,
        "GET /v1/cluster/copies": READ,
        "DELETE /v1/cluster/copies/{node}": ADMIN,
        "POST /v1/cluster/unsafe-recover": ADMIN,
        **{f"POST /v1/cluster/members/{{node}}/{change}": ADMIN for change in CHANGES},
        "GET /healthz": READ,
        "GET /readyz": READ,
        "GET /docs": READ,
        "GET /openapi.json": READ,
        "GET /": READ,
    }
    table = {f"{entry.method} {entry.path}": entry for entry in TABLE}
    assert {route: table[route].needs[0] for route in promised} == promised
    assert all(ADMIN in entry.roles and entry.roles <= {*ROLES, LOCAL} for entry in TABLE)


@pytest.mark.parametrize("bad", BAD_HEADERS)
@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry.method} {entry.path}")
def test_no_route_opens_to_a_bad_credential(wired: Api, ask_app: Any, entry: Entry, bad: str) -> None:
    """No, wrong, cut, expired or misplaced: 401 as a problem, with the scheme to use, and nothing is touched."""
    answer = asyncio.run(ask_app(wired, entry.method, path_of(entry), BODIES.get(entry.name, b""), headers=BAD_HEADERS[bad]))
    assert (answer.status, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert wired.service.maybe_node.touched == []  # type: ignore[union-attr]


WRONG_ROLES = [(entry, role) for entry in TABLE for role in ROLES if role not in entry.roles]


@pytest.mark.parametrize(("entry", "role"), WRONG_ROLES, ids=lambda value: getattr(value, "name", value))
def test_no_route_opens_to_a_wrong_role(wired: Api, ask_app: Any, entry: Entry, role: str) -> None:
    """403 names the role that is needed, and nothing is touched."""
    answer = asyncio.run(ask_app(wired, entry.method, path_of(entry), BODIES.get(entry.name, b""), headers=bearer(role)))
    told = answer.json()
    assert (answer.status, told["code"], told["needs"]) == (403, "forbidden", list(entry.needs))
    assert all(needed in told["detail"] for needed in entry.needs)
    assert wired.service.maybe_node.touched == []  # type: ignore[union-attr]


RIGHT_ROLES = [(entry, role) for entry in TABLE for role in entry.needs if entry.name != "events"]


@pytest.mark.parametrize(("entry", "role"), RIGHT_ROLES, ids=lambda value: getattr(value, "name", value))
def test_every_role_of_an_entry_opens_it(locked: Api, node: Any, ask_app: Any, entry: Entry, role: str) -> None:
    """Whoever should get in does; a call with `read` is of a read-only procedure."""
    if entry.path.startswith(CLUSTER):
        clustered(node)
    path = path_of(entry).replace("put", "get" if role == READ else "put")
    answer = asyncio.run(ask_app(locked, entry.method, path, BODIES.get(entry.name, b""), headers=bearer(role)))
    assert answer.status == entry.status, answer.body


def test_reader_calls_what_only_reads(locked: Api, node: Any, ask_app: Any) -> None:
    """`read` opens read-only procedures; one that writes needs `invoke`, and is not called."""
    assert asyncio.run(ask_app(locked, "POST", "/v1/procedures/get", b'{"item": 1}', headers=bearer(READ))).status == 200
    node.logged.clear()
    answer = asyncio.run(ask_app(locked, "POST", "/v1/procedures/put", b'{"item": 1}', headers=bearer(READ)))
    assert (answer.status, answer.json()["needs"]) == (403, [INVOKE])
    assert node.logged == []


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/batch/", "//v1/batch", "/v1/../v1/batch", "/v1%2fbatch", "/V1/BATCH", "*", ""]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "PUT"])
def test_what_is_not_served_needs_a_credential_to_be_told_so(locked: Api, ask_app: Any, method: str, path: str) -> None:
    """Without one it is 401 like anything else, with one 404."""
    assert asyncio.run(ask_app(locked, method, path)).status == 401
    assert asyncio.run(ask_app(locked, method, path, headers=bearer(READ))).status == 404


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry.method} {entry.path}")
def test_other_methods_are_told_what_is_allowed(locked: Api, node: Any, ask_app: Any, entry: Entry) -> None:
    """405 with an `Allow` header that is right: every method in it works, every other one is refused."""
    path = path_of(entry)
    methods = methods_of(path)
    assert methods is not None
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "get", "X" * 500):
        if method in allowed(methods).split(", "):
            continue
        assert asyncio.run(ask_app(locked, method, path)).status == 401
        answer = asyncio.run(ask_app(locked, method, path, BODIES.get(entry.name, b""), headers=bearer(ADMIN)))
        assert (answer.status, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed(methods)
    options = asyncio.run(ask_app(locked, "OPTIONS", path, headers=bearer(READ)))
    assert (options.status, options.headers["allow"], options.body) == (200, allowed(methods), b"")
    assert node.logged == []


@pytest.mark.parametrize(
    "entry", [entry for entry in TABLE if entry.method == "GET" and entry.name != "events"], ids=lambda e: e.path
)
def test_head_is_get_without_the_body(locked: Api, node: Any, ask_app: Any, entry: Entry) -> None:
    """Same status, same length in the header, no body; and the same credential."""
    if entry.path.startswith(CLUSTER):
        clustered(node)
    got = asyncio.run(ask_app(locked, "GET", entry.path, headers=bearer(ADMIN)))
    head = asyncio.run(ask_app(locked, "HEAD", entry.path, headers=bearer(ADMIN)))
    assert (head.status, head.body, head.headers["content-type"]) == (got.status, b"", got.headers["content-type"])
    assert int(head.headers["content-length"]) >= 0
    assert asyncio.run(ask_app(locked, "HEAD", entry.path)).status == 401


@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.kind == "page"], ids=lambda entry: entry.path)
def test_browser_without_a_credential_is_asked_for_a_token(wired: Api, ask_app: Any, entry: Entry) -> None:
    """A page is 401 with a form for people and a problem for programs; the form needs nothing from elsewhere."""
    headers = [("Accept", "text/html,application/xhtml+xml")]
    answer = asyncio.run(ask_app(wired, "GET", entry.path, headers=headers))
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.headers["content-type"].startswith("text/html")
    assert b"<form" in answer.body
    assert not any(outside in answer.body for outside in (b"http:", b"https:", b"src=", b"url("))
    assert asyncio.run(ask_app(wired, "GET", "/v1/status", headers=headers)).json()["code"] == "unauthenticated"


def test_keys_belong_to_the_name_of_the_credential(locked: Api, node: Any, ask_app: Any, token_file: Path) -> None:
    """Another caller's same key is another key, for single calls and in batches; a new token of a name keeps its keys."""
    line = b'{"procedure": "put", "params": {"item": 1}, "key": "order-1"}\n'
    for role in (INVOKE, ADMIN):
        headers = [*bearer(role), ("Idempotency-Key", "order-1")]
        assert asyncio.run(ask_app(locked, "POST", "/v1/procedures/put", b'{"item": 1}', headers=headers)).status == 200
        assert asyncio.run(ask_app(locked, "POST", "/v1/batch", line, headers=bearer(role))).status == 200
    invoke, admin = key_fingerprint("invoke", "order-1"), key_fingerprint("admin", "order-1")
    assert [key for _, _, key in node.logged] == [invoke, invoke, admin, admin]
    assert len({invoke, admin, key_fingerprint("", "order-1")}) == 3
    write_tokens(token_file.parent, Credential("invoke", frozenset((INVOKE,)), digest_of(b"new-token")))
    rotated = create_app(node, Settings(token_file=token_file))
    headers = [("Authorization", "Bearer new-token"), ("Idempotency-Key", "order-1")]
    assert asyncio.run(ask_app(rotated, "POST", "/v1/procedures/put", b'{"item": 1}', headers=headers)).status == 200
    assert node.logged[-1][2] == invoke


def test_stream_ends_when_its_credential_does(locked: Api, node: Any, ask_app: Any, token_file: Path) -> None:
    """A batch that outlives its credential gets an error in the place of its next lines, which are not called."""
    line = b'{"procedure": "put", "params": {"item": 1}}\n'

    def withdraw() -> None:
        token_file.write_text("# nobody\n")
        locked.service.gatekeeper._looked = -1e9  # type: ignore[union-attr]  # the next look at the file is due

    async def chunks() -> Any:
        yield line
        withdraw()
        yield line * 3
        yield line

    answer = asyncio.run(ask_app(locked, "POST", "/v1/batch", chunks(), headers=bearer(INVOKE)))
    assert [sorted(told) for told in answer.lines()] == [["partition", "result", "txn_id"], ["error"]]
    assert answer.lines()[-1]["error"]["code"] == "unauthenticated"
    assert len(node.logged) == 1


def test_credential_comes_before_everything_else(wired: Api, ask_app: Any) -> None:
    """Whatever else is wrong with a request, without a credential the answer is 401 and says nothing more."""
    wrong = [
        ("Origin", "http://evil.example"),
        ("Content-Encoding", "gzip"),
        ("Content-Type", "x/y"),
        ("Idempotency-Key", "a"),
        ("Idempotency-Key", "b"),
    ]
    answer = asyncio.run(ask_app(wired, "POST", "/v1/procedures/nothing", b"{", headers=wrong))
    assert (answer.status, answer.json()["code"]) == (401, "unauthenticated")


OWNERS = frozenset(("deploy", "unsafe_recover", "cancel_copy", *CHANGES))  # what runs code or changes members
WHO = {"nobody": [], "stranger": [("Authorization", f"Bearer {GOOD}")], "owner": []}
"""Of a server without a token file: without a token, with the token of another server, and with the local one."""


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.name != "events"], ids=lambda entry: entry.name)
def test_without_a_token_file_only_the_owner_changes_code_and_members(node: Any, ask_app: Any, entry: Entry, who: str) -> None:
    """Any user of the machine reads, calls and takes snapshots. What runs code or changes members asks for the local token."""
    if entry.path.startswith(CLUSTER):
        clustered(node)
    allows = who == "owner" or entry.name not in OWNERS
    app = create_app(node if allows else Tripwire(node.routes), Settings())  # type: ignore[arg-type]  # stands in for the node
    headers = [("Authorization", f"Bearer {local_token(app)}")] if who == "owner" else WHO[who]
    plan = b'{"rollback": true, "plan": true}' if entry.name == "deploy" else BODIES.get(entry.name, b"")
    for body in dict.fromkeys((BODIES.get(entry.name, b""), plan)):
        answer = asyncio.run(ask_app(app, entry.method, path_of(entry), body, headers=headers))
        if allows:
            assert answer.status == entry.status, answer.body
            continue
        assert (answer.status, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert app.service.maybe_node.touched == []  # type: ignore[union-attr]


def test_origin_is_checked_without_a_token_file(app: Api, ask_app: Any) -> None:
    """Nothing is open to other sites' pages, not even to one that has the local token."""
    for entry in TABLE:
        for more in ([], [("Authorization", f"Bearer {local_token(app)}")]):
            for foreign in (("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")):
                answer = asyncio.run(ask_app(app, entry.method, path_of(entry), headers=[foreign, *more]))
                assert (answer.status, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("site", ["none", "same-origin", "same-site"])
def test_pages_of_this_machine_are_served_without_a_token_file(fetch: Any, site: str) -> None:
    """The status page asks its own server, and its address may be opened from anywhere on the machine."""
    assert fetch("/", headers=[("Sec-Fetch-Site", site)]).status == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LocalHost:8642", True),
        ("127.0.0.1:8642", True),
        ("127.8.9.1", True),
        ("[::1]:8642", True),
        ("", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:8642", False),
        ("10.0.0.1", False),
        ("0.0.0.0:8642", False),
        ("localhost:8642 evil.example", False),
        ("127.0.0.1\n", False),
    ],
)
def test_foreign_names_are_served_to_nobody_without_a_token(host: str, local: bool, node: Any, ask_app: Any) -> None:
    """A page whose name was made to resolve to loopback gets nothing on any route, though its GET bears no Origin."""
    app = create_app(node, node.settings)
    for entry in TABLE:
        if entry.name == "events":
            continue  # it does not end; the gate is the same function
        headers = [("Host", host), ("Authorization", f"Bearer {local_token(app)}")]
        answer = asyncio.run(ask_app(app, entry.method, path_of(entry), headers=headers, host=None))
        refused = (answer.status, answer.headers.get("content-type")) == (403, "application/problem+json")
        assert refused is not local, entry
        if not local:
            assert answer.json()["code"] == "forbidden"
    if not local:
        assert node.logged == []


def test_foreign_names_are_served_with_a_token(locked: Api, ask_app: Any) -> None:
    """A credential that no page has is worth more than a name: servers with a token file have names of their own."""
    headers = [("Host", "books.example"), *bearer(ADMIN)]
    assert asyncio.run(ask_app(locked, "GET", "/v1/status", headers=headers, host=None)).status == 200
