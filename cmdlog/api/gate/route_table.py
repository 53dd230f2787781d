"""The route table: every route there is, who may use it, and what its body must be.

One rule: what is not in this table is not served. The gate dispatches by it, FastAPI is filled from it, OpenAPI states its roles,
and the test that tries every bad credential walks over it: so a new route cannot escape its credential.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

READ: Final = "read"
INVOKE: Final = "invoke"
ADMIN: Final = "admin"
ROLES: Final = (READ, INVOKE, ADMIN)
"""`read` looks at data and at the node; `invoke` calls procedures; `admin` may do everything."""
LOCAL: Final = "local"
"""No role of a token file: the part of `admin` that any user of the machine has where there is none."""
LOCAL_ROLES: Final = frozenset((READ, INVOKE, LOCAL))
"""Of any user of the machine, where there is no token file. Not `admin`: a deploy runs code as the server's user."""

PROCEDURES: Final = "/v1/procedures/"
SESSIONS: Final = "/v1/sessions/"
CLUSTER: Final = "/v1/cluster/"
DEPLOY: Final = "/v1/deploy"
MEMBERS: Final = CLUSTER + "members"
COPIES: Final = CLUSTER + "copies"

Kind = Literal["call", "batch", "events", "cold", "page"]
"""Who answers: calls and streams have handlers of their own, FastAPI has the rest; a browser asks for pages."""

Body = Literal["none", "json", "ndjson"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One route. `path` is exact, except that `{name}` stands for the rest of it, `{node}` and `{session}` for one part of it."""

    name: str  # also its operation in OpenAPI
    method: str
    path: str
    roles: frozenset[str]  # any one of them will do
    summary: str
    kind: Kind = "cold"
    body: Body = "none"

    @property
    def needs(self) -> tuple[str, ...]:
        """The roles that suffice, the least powerful first."""
        return tuple(role for role in ROLES if role in self.roles)


def _roles(*roles: str) -> frozenset[str]:
    return frozenset((*roles, ADMIN))


TABLE: Final[tuple[Entry, ...]] = (
    Entry(
        "call",
        "POST",
        PROCEDURES + "{name}",
        _roles(READ, INVOKE),  # `read` calls read-only procedures: `single` looks at the procedure
        "Call a procedure",
        kind="call",
        body="json",
    ),
    Entry("batch", "POST", "/v1/batch", _roles(INVOKE), "Many calls as JSON lines", kind="batch", body="ndjson"),
    Entry("end_session", "DELETE", SESSIONS + "{session}", _roles(INVOKE), "End a client's session: it makes no more calls"),
    Entry("query", "POST", "/v1/query", _roles(READ), "Read-only SQL on a frozen state", body="json"),
    Entry("procedures", "GET", "/v1/procedures", _roles(READ, INVOKE), "Catalog of procedures with their schemas"),
    Entry("status", "GET", "/v1/status", _roles(READ), "Node, partitions, watermarks, log fill, predicted recovery time"),
    Entry("snapshots", "GET", "/v1/snapshots", _roles(READ), "Snapshots of this node"),
    Entry("take_snapshot", "POST", "/v1/snapshots", _roles(LOCAL), "Take a snapshot of every partition now"),
    Entry("deploy", "POST", DEPLOY, _roles(), "Put other code into the running server", body="json"),
    Entry("members", "GET", MEMBERS, _roles(READ), "Members of the cluster, failure set, copies under way"),
    Entry("add", "POST", MEMBERS + "/{node}/add", _roles(), "Add a node to the cluster", body="json"),
    Entry("remove", "POST", MEMBERS + "/{node}/remove", _roles(), "Remove a node that is gone", body="json"),
    Entry("replace", "POST", MEMBERS + "/{node}/replace", _roles(), "Give a node that lost its disk a new one", body="json"),
    Entry("retire", "POST", MEMBERS + "/{node}/retire", _roles(), "Remove a node that runs", body="json"),
    Entry("transfer", "POST", MEMBERS + "/{node}/transfer", _roles(), "Hand leadership over to a node", body="json"),
    Entry(
        "unsafe_recover",
        "POST",
        CLUSTER + "unsafe-recover",
        _roles(),
        "Continue without the majority, from what this node has; calls may be lost",
        body="json",
    ),
    Entry("copies", "GET", COPIES, _roles(READ), "Copies of this node's data under way to other nodes"),
    Entry("cancel_copy", "DELETE", COPIES + "/{node}", _roles(), "Cancel the copy to a node"),
    Entry("healthz", "GET", "/healthz", _roles(READ, INVOKE), "The process is alive"),
    Entry("readyz", "GET", "/readyz", _roles(READ, INVOKE), "Calls are being served"),
    Entry("metrics", "GET", "/metrics", _roles(READ), "Metrics for Prometheus"),
    Entry("openapi", "GET", "/openapi.json", _roles(READ, INVOKE), "This description, for tools"),
    Entry("dashboard", "GET", "/", _roles(READ), "Status page", kind="page"),
    Entry("events", "GET", "/v1/events", _roles(READ), "What the status page shows, as server-sent events", kind="events"),
    Entry("docs", "GET", "/docs", _roles(READ, INVOKE), "This description, for people", kind="page"),
)

Methods = Mapping[str, Entry]


def _by_path(entries: Iterable[Entry]) -> dict[str, dict[str, Entry]]:
    found: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        methods = found.setdefault(entry.path, {})
        assert entry.method not in methods, f"{entry.method} {entry.path} is in the table twice"
        methods[entry.method] = entry
    return found


CHANGES: Final = frozenset(("add", "remove", "replace", "retire", "transfer"))
"""Names of the routes that change the members of a cluster."""

LEADERS: Final = frozenset(("call", "batch", "end_session", "query", "deploy")) | CHANGES
"""Names of the routes that, of a cluster, the leader serves."""

PATHS: Final[Mapping[str, Methods]] = _by_path(TABLE)
STREAMS: Final = frozenset(entry.path for entry in TABLE if entry.kind == "batch")
"""Paths whose bodies have no end."""
CALLS: Final[Methods] = PATHS[PROCEDURES + "{name}"]
NAMED: Final = ("{node}", "{session}")
OF_NAMED: Final = tuple((path.partition(part), methods) for path, methods in PATHS.items() for part in NAMED if part in path)
"""Of each path that names a node or a session: what comes before and after the name, and its methods."""


def methods_of(path: str) -> Methods | None:
    """Method -> entry of a path; None for one that is not served."""
    if path.startswith(PROCEDURES):
        return CALLS
    return PATHS.get(path) or next((methods for parts, methods in OF_NAMED if _has_name(path, parts)), None)


def _has_name(path: str, parts: tuple[str, str, str]) -> bool:
    before, _, after = parts
    name = path[len(before) : len(path) - len(after)]
    return path.startswith(before) and path.endswith(after) and name != "" and "/" not in name


def allowed(methods: Methods) -> str:
    """The value of an `Allow` header. HEAD comes with every GET that ends, OPTIONS with everything."""
    head = ("HEAD",) if "GET" in methods and methods["GET"].kind != "events" else ()
    return ", ".join(sorted({*methods, *head, "OPTIONS"}))
