"""The route table: every route there is, who may use it, and what its body must be.

One rule: what is not in this table is not served. The gate dispatches by it, OpenAPI states its roles, and the test that tries
every bad credential walks over it: so a new route cannot escape its credential. The handlers in `cmdlog.api.routes` name their
routes: they are loaded, with FastAPI, when one of them is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
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
BATCH: Final = "/v1/batch"
CLUSTER: Final = "/v1/cluster/"
MEMBERS: Final = CLUSTER + "members"
COPIES: Final = CLUSTER + "copies"
DEPLOY: Final = "/v1/deploy"

Kind = Literal["call", "batch", "stream", "cold", "page"]
"""Calls and batches have handlers of their own, FastAPI has the rest. A stream takes room for its answer itself; a browser asks
for pages."""

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
    leads: bool = False  # of a cluster, the leader serves it
    status: int = 200  # of a success

    @property
    def needs(self) -> tuple[str, ...]:
        """The roles that suffice, the least powerful first."""
        return tuple(role for role in ROLES if role in self.roles)


Methods = Mapping[str, Entry]

TABLE: Final[list[Entry]] = []
_PATHS: Final[dict[str, dict[str, Entry]]] = {}
_NAMED: Final[list[tuple[tuple[str, str, str], Methods]]] = []  # what comes before and after the name in a path, and its methods


def roles(*names: str) -> frozenset[str]:
    """The roles that open a route; `admin` opens all."""
    return frozenset((*names, ADMIN))


def add_entry(entry: Entry) -> Entry:
    """Adds a route to the table."""
    methods = _PATHS.setdefault(entry.path, {})
    assert entry.method not in methods, f"{entry.method} {entry.path} is in the table twice"
    if not methods:
        _NAMED.extend((entry.path.partition(part), methods) for part in ("{node}", "{session}") if part in entry.path)
    methods[entry.method] = entry
    TABLE.append(entry)
    return entry


def entry_of(name: str) -> Entry:
    """The route with this name. Raises: StopIteration."""
    return next(entry for entry in TABLE if entry.name == name)


def methods_of(path: str) -> Methods | None:
    """Method -> entry of a path; None for one that is not served."""
    if path.startswith(PROCEDURES):
        return _PATHS[PROCEDURES + "{name}"]
    return _PATHS.get(path) or next((methods for parts, methods in _NAMED if _has_name(path, parts)), None)


def _has_name(path: str, parts: tuple[str, str, str]) -> bool:
    before, _, after = parts
    name = path[len(before) : len(path) - len(after)]
    return path.startswith(before) and path.endswith(after) and name != "" and "/" not in name


def allowed(methods: Methods) -> str:
    """The value of an `Allow` header. HEAD comes with every GET that ends, OPTIONS with everything."""
    head = ("HEAD",) if "GET" in methods and methods["GET"].kind != "stream" else ()
    return ", ".join(sorted({*methods, *head, "OPTIONS"}))


CALL_ENTRY: Final = add_entry(
    Entry("call", "POST", PROCEDURES + "{name}", roles(READ, INVOKE), "Call a procedure", kind="call", body="json", leads=True)
)
"""`read` calls read-only procedures: the call looks at its procedure."""
BATCH_ENTRY: Final = add_entry(
    Entry("batch", "POST", BATCH, roles(INVOKE), "Many calls as JSON lines", kind="batch", body="ndjson", leads=True)
)

CHANGES: Final = {
    "add": "Add a node to the cluster",
    "remove": "Remove a node that is gone",
    "replace": "Give a node that lost its disk a new one",
    "retire": "Remove a node that runs",
    "transfer": "Hand leadership over to a node",
}
"""Routes that change the members of a cluster, and what each does."""

for _entry in (
    Entry("members", "GET", MEMBERS, roles(READ), "Members of the cluster, failure set, copies under way"),
    Entry("copies", "GET", COPIES, roles(READ), "Copies of this node's data under way to other nodes"),
    Entry("cancel_copy", "DELETE", COPIES + "/{node}", roles(), "Cancel the copy to a node"),
    Entry(
        "unsafe_recover", "POST", CLUSTER + "unsafe-recover", roles(),
        "Continue without the majority, from what this node has; calls may be lost", body="json",
    ),
    *(
        Entry(kind, "POST", f"{MEMBERS}/{{node}}/{kind}", roles(), summary, body="json", leads=True)
        for kind, summary in CHANGES.items()
    ),
    Entry("deploy", "POST", DEPLOY, roles(), "Put other code into the running server", body="json", leads=True),
    Entry("events", "GET", "/v1/events", roles(READ), "What the status page shows, as server-sent events", kind="stream"),
    Entry("query", "POST", "/v1/query", roles(READ), "Read-only SQL on a frozen state", kind="stream", body="json", leads=True),
    Entry("procedures", "GET", "/v1/procedures", roles(READ, INVOKE), "Catalog of procedures with their schemas"),
    Entry(
        "end_session", "DELETE", "/v1/sessions/{session}", roles(INVOKE), "End a client's session: it makes no more calls",
        leads=True, status=204,
    ),
    Entry("snapshots", "GET", "/v1/snapshots", roles(READ), "Snapshots of this node"),
    Entry("take_snapshot", "POST", "/v1/snapshots", roles(LOCAL), "Take a snapshot of every partition now"),
    Entry("status", "GET", "/v1/status", roles(READ), "Node, partitions, watermarks, log fill, predicted recovery time"),
    Entry("healthz", "GET", "/healthz", roles(READ, INVOKE), "The process is alive"),
    Entry("readyz", "GET", "/readyz", roles(READ, INVOKE), "Calls are being served"),
    Entry("metrics", "GET", "/metrics", roles(READ), "Metrics for Prometheus"),
    Entry("openapi", "GET", "/openapi.json", roles(READ, INVOKE), "This description, for tools"),
    Entry("docs", "GET", "/docs", roles(READ, INVOKE), "This description, for people", kind="page"),
    Entry("dashboard", "GET", "/", roles(READ), "Status page", kind="page"),
):  # fmt: skip
    add_entry(_entry)
