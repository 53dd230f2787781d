"""The routes as FastAPI describes them: the table's, and one of its own for each procedure.

One rule: what is here is for the description alone, and nobody serves it. The gate has decided about credential and headers
before a handler runs, and handlers read bodies themselves, strictly; so FastAPI never parses a request by these signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import Body, Depends, Header, Path, Query, Response, Security
from fastapi.openapi.models import Example
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import CHANGES, CLUSTER, DEPLOY, INVOKE, LEADERS, LOCAL_ROLES, PROCEDURES, TABLE, Entry
from cmdlog.api.routes.cluster.cluster_models import (
    ChangeAnswer,
    CopyCancelled,
    CopyList,
    MemberList,
    RecoveryAnswer,
    take_change,
    take_node,
    take_recovery,
)
from cmdlog.api.routes.deploy import DeployResult, take_deploy
from cmdlog.api.routes.procedure_models import answer_model, parameters_model
from cmdlog.api.routes.response_models import (
    ApiDocument,
    BatchCall,
    BatchRefusal,
    BatchResult,
    NodeServing,
    NodeStatus,
    ProcedureCatalog,
    ProcessAlive,
    QueryRequest,
    QueryRows,
    SnapshotList,
    SnapshotRequest,
    SnapshotsTaken,
    TxnIdText,
)
from cmdlog.node.slot_map import Route
from procedures.declaration.procedure import Procedure

SESSION_UUID: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
CREDENTIAL: Final = HTTPBearer(scheme_name="token", description="a token made by `cmdlog token`", auto_error=False)
ALWAYS: Final = (400, 401, 403, 408, 414, 422, 431, 500, 503)
"""Statuses that every route may answer with: the request's head, its credential, a server that is not ready."""


class LinesResponse(JSONResponse):
    """An answer of JSON lines."""

    media_type = "application/x-ndjson"


class EventsResponse(PlainTextResponse):
    """A stream of server-sent events."""

    media_type = "text/event-stream"


Missing = SkipJsonSchema[None]  # in Python alone: to send "null" is something else
RequestId = Annotated[
    str | Missing,
    Header(
        alias="X-Request-Id",
        description="repeated in the answer and in the server's log if it has 1 to 128 visible ASCII characters",
    ),
]
IdempotencyKey = Annotated[
    Annotated[str, Field(pattern="^[!-~]{1,255}$")] | Missing,
    Header(
        alias="Idempotency-Key",
        description="a retry with the same credential and key gets the first outcome and is not executed again",
    ),
]
SessionNumber = Annotated[
    Annotated[str, Field(pattern=f"^{SESSION_UUID};[ \\t]*number=[0-9]{{1,20}}(;[ \\t]*floor=[0-9]{{1,20}})?$")] | Missing,
    Header(
        alias="Cmdlog-Session",
        examples=["01998b3e-5c00-7000-8000-000000000000; number=17; floor=12"],
        description="the session of a client (a UUID of version 7 that it made), the call's number in it, and the number up to"
        " which the client has seen all outcomes: a retry with the same number gets the first outcome; not with Idempotency-Key",
    ),
]
SessionOfLines = Annotated[
    Annotated[str, Field(pattern=f"^{SESSION_UUID}(;[ \\t]*floor=[0-9]{{1,20}})?$")] | Missing,
    Header(
        alias="Cmdlog-Session",
        examples=["01998b3e-5c00-7000-8000-000000000000; floor=12"],
        description="session and floor of lines that have a `number` and no `session`",
    ),
]
TxnSeen = Annotated[
    TxnIdText | Missing,
    Header(alias="Cmdlog-Txn", description="transaction id that the caller has seen; this call gets a greater one"),
]
Prefer = Annotated[
    str | Missing,
    Header(
        alias="Prefer",
        description="`durability=sync` or `durability=async`, for this call; `redirect=leader`: a node of a cluster that does not"
        " lead answers 307 instead of 503; other preferences are ignored",
    ),
]
PreferRedirect = Annotated[
    str | Missing,
    Header(
        alias="Prefer",
        description="`redirect=leader`: a node of a cluster that does not lead answers 307 instead of 503; other preferences are"
        " ignored",
    ),
]
Consistency = Annotated[
    Literal["linearizable", "stale"] | Missing,
    Query(
        alias="consistency",
        description="`stale`: what this node has run so far, without asking the others; the answer says as of what",
    ),
]
After = Annotated[
    Annotated[str, Field(pattern="^[0-9]{1,12}$")] | Missing,
    Query(alias="after", description="omits the rows of the history up to this number"),
]


def take_request_id(request_id: RequestId = None) -> None:
    """What every route takes."""


def take_read_headers(txn: TxnSeen = None, prefer: PreferRedirect = None, consistency: Consistency = None) -> None:
    """What calls of read-only procedures take, and queries."""


def take_call_headers(
    key: IdempotencyKey = None, session: SessionNumber = None, txn: TxnSeen = None, prefer: Prefer = None
) -> None:
    """What other calls take."""


def take_batch_headers(prefer: Prefer = None, session: SessionOfLines = None) -> None:
    """What a batch takes."""


def take_redirect(prefer: PreferRedirect = None) -> None:
    """What a change of the members takes, and a deploy."""


def take_after(after: After = None) -> None:
    """What the stream of events takes."""


def _take_nothing() -> None: ...


def take_session(session: Annotated[str, Path(pattern=f"^{SESSION_UUID}$", description="the client's UUID")]) -> None:
    """Later calls of the session are refused with `session_expired`, and what is kept of it may go. Repeating it is harmless.

    The end counts at once, and is in the log with a partition's next batch. A restart before that forgets it.
    """


def take_query(
    body: Annotated[QueryRequest, Body(openapi_examples={"one row": {"value": {"sql": "SELECT ? AS answer", "params": [42]}}})],
) -> None:
    """One SELECT, answered from states that no call changes meanwhile."""


def take_snapshot_request(
    body: Annotated[SnapshotRequest | Missing, Body(openapi_examples={"with a point": {"value": {"consistent": True}}})] = None,
) -> None:
    """With `consistent`: one transaction id at which all partitions can be restored together."""


LINE: Final = {"procedure": "transfer", "params": {"amount": 5}, "key": "order-18"}


def take_lines(
    body: Annotated[BatchCall, Body(media_type=LinesResponse.media_type, openapi_examples={"one line": {"value": LINE}})],
) -> None:
    """Answers come in the order of the lines, and while the request is still being sent: read while you write.

    A read-only call sees every write that was acknowledged before the request, and may miss those of earlier lines.
    """


BODIES: Final[Mapping[str, Callable[..., None]]] = {
    "query": take_query,
    "take_snapshot": take_snapshot_request,
    "batch": take_lines,
    "end_session": take_session,
    "deploy": take_deploy,
    "unsafe_recover": take_recovery,
    "cancel_copy": take_node,
    **dict.fromkeys(CHANGES, take_change),
}
HEADERS_OF: Final[Mapping[str, Callable[..., None]]] = {
    "batch": take_batch_headers,
    "events": take_after,
    "query": take_read_headers,
    "deploy": take_redirect,
    **dict.fromkeys(CHANGES, take_redirect),
}
ANSWERS: Final[Mapping[str, tuple[str, type[Response], Any]]] = {
    "batch": ("One line per call, in the same order", LinesResponse, BatchResult | BatchRefusal),
    "end_session": ("The session has ended, or was unknown", Response, None),
    "query": ("The rows", JSONResponse, QueryRows),
    "procedures": ("Every procedure", JSONResponse, ProcedureCatalog),
    "status": ("The node", JSONResponse, NodeStatus),
    "snapshots": ("The snapshots, by partition and age, and the recovery points, by transaction id", JSONResponse, SnapshotList),
    "take_snapshot": ("The new snapshots; with `consistent` the recovery point as well", JSONResponse, SnapshotsTaken),
    "deploy": ("What runs now, or would", JSONResponse, DeployResult),
    "members": ("The members, and what happens to them", JSONResponse, MemberList),
    **dict.fromkeys(CHANGES, ("What was begun, or is done already", JSONResponse, ChangeAnswer)),
    "unsafe_recover": ("What was done", JSONResponse, RecoveryAnswer),
    "copies": ("The copies under way", JSONResponse, CopyList),
    "cancel_copy": ("How many were ended", JSONResponse, CopyCancelled),
    "healthz": ("The process is alive", JSONResponse, ProcessAlive),
    "readyz": ("Calls are being served", JSONResponse, NodeServing),
    "metrics": ("The metrics", PlainTextResponse, None),
    "openapi": ("This description", JSONResponse, ApiDocument),
    "docs": ("A page", HTMLResponse, None),
    "dashboard": ("A page", HTMLResponse, None),
    "events": ("One event per second, until the viewer disconnects", EventsResponse, None),
}
"""Route -> description, kind and model of its success. Calls have models of their own."""
EMPTY: Final = frozenset(("end_session",))
"""Routes that answer 204 instead of 200."""


def table_routes(*, required: bool) -> list[APIRoute]:
    """Every route of the table except calls. `required`: all of them need a credential."""
    return [_table_route(entry, required=required) for entry in TABLE if entry.kind != "call"]


def _table_route(entry: Entry, *, required: bool) -> APIRoute:
    description, kind, model = ANSWERS[entry.name]
    return APIRoute(
        entry.path,
        BODIES.get(entry.name, _take_nothing),
        status_code=success_of(entry),
        operation_id=entry.name,
        summary=entry.summary,
        response_description=description,
        response_class=kind,
        response_model=model,
        responses=_responses(entry, ("RequestId",)),
        **_common(entry, entry.needs, HEADERS_OF.get(entry.name), required=required),
    )


def procedure_route(route: Route, *, required: bool) -> APIRoute:
    """The call of one procedure, as a route of its own."""
    procedure = route.procedure
    (call,) = (entry for entry in TABLE if entry.kind == "call")
    doc = (procedure.function.__doc__ or "").strip()
    headers = ("RequestId", "CmdlogTxn") if route.read_only else ("RequestId", "CmdlogTxn", "PreferenceApplied")
    return APIRoute(
        PROCEDURES + route.name,
        _endpoint_of(procedure),
        operation_id=f"call_{route.name}",
        summary=doc.splitlines()[0] if doc else f"Call {route.name}",
        description=f"Runs {_place_of(route)}" + ("; reads only, not logged." if route.read_only else "."),
        response_description="As of `txn_id`" if route.read_only else "Durable and executed",
        response_model=answer_model(route),
        responses=_responses(call, headers),
        **_common(
            call,
            call.needs if route.read_only else (INVOKE,),
            take_read_headers if route.read_only else take_call_headers,
            required=required,
        ),
    )


def _place_of(route: Route) -> str:
    if route.procedure.each:
        return "once on each partition"
    return "on all partitions" if route.everywhere else f"on the partition of `{route.procedure.partition_by}`"


def _endpoint_of(procedure: Procedure) -> Callable[..., None]:
    """A function whose signature is the body of a call."""

    def take_parameters(body: Any) -> None: ...

    example: dict[str, Example] = {"an example": {"value": example_of(procedure.json_schema())}}
    take_parameters.__annotations__["body"] = Annotated[parameters_model(procedure), Body(openapi_examples=example)]
    return take_parameters


def _common(entry: Entry, needs: tuple[str, ...], headers: Callable[..., None] | None, *, required: bool) -> dict[str, Any]:
    """What every route has. FastAPI has no word for "any of these roles": it states the first, the others are added."""
    first, *others = needs
    extra: dict[str, Any] = {"x-roles": list(needs)}
    dependencies = [Depends(take_request_id), *([] if headers is None else [Depends(headers)])]
    if required or entry.roles.isdisjoint(LOCAL_ROLES):
        dependencies.append(Security(CREDENTIAL, scopes=[first]))
        if others:
            extra["security"] = [{CREDENTIAL.scheme_name: [role]} for role in others]
    return {
        "methods": [entry.method],
        "name": entry.name,
        "tags": ["procedures" if entry.kind in ("call", "batch") else "node"],
        "dependencies": dependencies,
        "openapi_extra": extra,
    }


def _responses(entry: Entry, headers: Sequence[str]) -> dict[int | str, dict[str, Any]]:
    """The headers of a success, and the problems that a route may answer with."""
    names = {"RequestId": "X-Request-Id", "CmdlogTxn": "Cmdlog-Txn", "PreferenceApplied": "Preference-Applied"}
    found: dict[int | str, dict[str, Any]] = {
        success_of(entry): {"headers": {names[header]: {"$ref": f"#/components/headers/{header}"} for header in headers}}
    }
    for status in statuses_of(entry):
        found[status] = {"$ref": f"#/components/responses/Problem{status}", "description": codes_of(status)}
    return found


def success_of(entry: Entry) -> int:
    """The status of a success."""
    return 204 if entry.name in EMPTY else 200


def statuses_of(entry: Entry) -> tuple[int, ...]:
    """The statuses of problems that a route may answer with."""
    of_bodies = (413, 415) if entry.body != "none" else ()
    of_calls = (404, 409, 504) if entry.kind == "call" else ()
    of_clusters = (404, 409, 504) if entry.path.startswith((CLUSTER, DEPLOY)) else ()
    of_leaders = (307,) if entry.name in LEADERS else ()
    return tuple(sorted((*ALWAYS, *of_bodies, *of_calls, *of_clusters, *of_leaders)))


def codes_of(status: int) -> str:
    """The codes of problems with this status."""
    return ", ".join(code for code, (of, _) in CODES.items() if of == status)


EXAMPLES: Final = {
    "decimal": "12.50",
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "uuid": "018f4e2a-7c1b-7000-8000-000000000000",
}


def example_of(schema: dict[str, Any]) -> Any:
    """A value that fits a schema of `procedures.wire.type_codecs`."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0])
    kind = schema.get("type")
    if kind == "object":
        members = schema.get("properties", {})
        return {name: inner["default"] if "default" in inner else example_of(inner) for name, inner in members.items()}
    if kind == "array":
        return [example_of(item) for item in schema["prefixItems"]] if "prefixItems" in schema else [example_of(schema["items"])]
    if kind == "string":
        return "AP8=" if "contentEncoding" in schema else EXAMPLES.get(schema.get("format", ""), "text")
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(kind))
