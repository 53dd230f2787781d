"""The OpenAPI description: what FastAPI's own generator makes of the cold routes, and by hand the two hot ones.

One rule: nothing is written twice. Routes and roles come from the table, a call's schemas from its procedure, the problems from
the list of codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from cmdlog.api.gate.problem import codes_of
from cmdlog.api.gate.route_table import BATCH, BATCH_ENTRY, CALL_ENTRY, INVOKE, LOCAL_ROLES, PROCEDURES, TABLE, Entry
from cmdlog.api.gate.session_numbers import SESSION_UUID
from cmdlog.api.routes.response_models import AS_OF, AS_OF_TIME, TXN_ID, BatchCall, BatchRefusal, BatchResult, ProblemDetails
from cmdlog.api.routes.service import Service
from cmdlog.api.routes.strict_route import parameter_references, problem_references, router, statuses_of
from cmdlog.node.slot_map import Route

Schema = dict[str, Any]

SCHEMAS: Final = "#/components/schemas/"
MODELS: Final = (BatchCall, BatchResult, BatchRefusal, ProblemDetails)  # of what no route of FastAPI takes or answers

ABOUT: Final = """Durable stored procedures. A call is logged durably and executed before it is answered.

Requests are strict JSON in UTF-8: no repeated keys, no NaN or infinities, integers from -2^63 to 2^63-1, values of at most
64 levels, no lone surrogates, no U+0000. A number with a fraction or exponent means the nearest double. Compressed requests are
refused.
Every error is `application/problem+json` with a stable `code`; every GET route also answers HEAD, and every route OPTIONS."""

HEADERS: Final[Schema] = {
    "RequestId": {"schema": {"type": "string"}, "description": "the caller's X-Request-Id, or a new one"},
    "CmdlogTxn": {"schema": TXN_ID, "description": "transaction id; a request that sends it back is ordered after this call"},
    "PreferenceApplied": {
        "schema": {"enum": ["durability=sync", "durability=async"]},
        "description": "the preference that was applied",
    },
}
REDIRECT: Final = "`redirect=leader`: a node of a cluster that does not lead answers 307 instead of 503"


def _parameter(name: str, description: str, schema: Schema, *, where: str = "header") -> Schema:
    return {"name": name, "in": where, "required": False, "description": description, "schema": schema}


PARAMETERS: Final[Schema] = {
    "RequestId": _parameter(
        "X-Request-Id",
        "repeated in the answer and in the server's log if it has 1 to 128 visible ASCII characters",
        {"type": "string"},
    ),
    "IdempotencyKey": _parameter(
        "Idempotency-Key",
        "a retry with the same credential and key gets the first outcome and is not executed again",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
    ),
    "SessionNumber": _parameter(
        "Cmdlog-Session",
        "the session of a client (a UUID of version 7 that it made), the call's number in it, and the number up to which the"
        " client has seen all outcomes: a retry with the same number gets the first outcome; not with Idempotency-Key",
        {
            "type": "string",
            "pattern": f"^{SESSION_UUID};[ \\t]*number=[0-9]{{1,20}}(;[ \\t]*floor=[0-9]{{1,20}})?$",
            "examples": ["01998b3e-5c00-7000-8000-000000000000; number=17; floor=12"],
        },
    ),
    "SessionOfLines": _parameter(
        "Cmdlog-Session",
        "session and floor of lines that have a `number` and no `session`",
        {
            "type": "string",
            "pattern": f"^{SESSION_UUID}(;[ \\t]*floor=[0-9]{{1,20}})?$",
            "examples": ["01998b3e-5c00-7000-8000-000000000000; floor=12"],
        },
    ),
    "Txn": _parameter("Cmdlog-Txn", "transaction id that the caller has seen; this call gets a greater one", TXN_ID),
    "Prefer": _parameter(
        "Prefer",
        f"`durability=sync` or `durability=async`, for this call; {REDIRECT}; other preferences are ignored",
        {"type": "string"},
    ),
    "PreferRedirect": _parameter("Prefer", f"{REDIRECT}; other preferences are ignored", {"type": "string"}),
    "Consistency": _parameter(
        "consistency",
        "`stale`: what this node has run so far, without asking the others; the answer says as of what",
        {"enum": ["linearizable", "stale"]},
        where="query",
    ),
    "After": _parameter(
        "after",
        "omits the rows of the history up to this number",
        {"type": "string", "pattern": "^[0-9]{1,12}$"},
        where="query",
    ),
}
LINE: Final = {"procedure": "transfer", "params": {"amount": 5}, "key": "order-18"}
LINES: Final = """Answers come in the order of the lines, and while the request is still being sent: read while you write.

A read-only call sees every write that was acknowledged before the request, and may miss those of earlier lines."""


class Description:
    """The whole description; procedures are in it once the node runs."""

    def __init__(self, service: Service, *, version: str) -> None:
        self._service = service
        self._version = version or "0"
        self._whole: Schema | None = None
        self._described: object = None  # routes of the node that `_whole` describes

    def get(self) -> Schema:
        """The document. It is made once for the code that runs."""
        node = self._service.maybe_node
        routes = None if node is None else node.routes
        if self._whole is None or self._described is not routes:
            self._whole = self._make(routes or {})
            self._described = routes
        return self._whole

    def _make(self, routes: Mapping[str, Route]) -> Schema:
        made = get_openapi(
            title="cmdlog", version=self._version, summary="Durable stored procedures", description=ABOUT, routes=router.routes
        )
        described: Schema = with_whole_limits(made)
        schemas = described["components"]["schemas"]
        models = models_json_schema([(model, "validation") for model in MODELS], ref_template=f"{SCHEMAS}{{model}}")
        schemas |= models[1]["$defs"]
        required = self._service.gatekeeper.required
        for entry in TABLE:
            if entry.kind not in ("call", "batch"):
                operation = described["paths"][entry.path][entry.method.lower()]
                operation |= _access(entry, entry.roles, required=required)
        described["paths"][BATCH] = {"post": batch_operation() | _access(BATCH_ENTRY, BATCH_ENTRY.roles, required=required)}
        for route in routes.values():
            access = _access(CALL_ENTRY, CALL_ENTRY.roles if route.read_only else frozenset((INVOKE,)), required=required)
            described["paths"][PROCEDURES + route.name] = {"post": call_operation(route, schemas) | access}
        described["components"] |= {
            "headers": HEADERS,
            "parameters": PARAMETERS,
            "responses": problem_responses(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "a token made by `cmdlog token`"}},
        }
        return described


def _access(entry: Entry, open_to: frozenset[str], *, required: bool) -> Schema:
    """Any of these roles will do. Without a token file only what is the owner's needs a token."""
    needs = [role for role in entry.needs if role in open_to]
    secured = required or entry.roles.isdisjoint(LOCAL_ROLES)
    return {"x-roles": needs, **({"security": [{"token": [role]} for role in needs]} if secured else {})}


def batch_operation() -> Schema:
    """`POST /v1/batch`."""
    answer = {"anyOf": [{"$ref": SCHEMAS + model.__name__} for model in (BatchResult, BatchRefusal)]}
    content = {"schema": {"$ref": SCHEMAS + "BatchCall"}, "examples": {"one line": {"value": LINE}}}
    return {
        **_hot_operation("batch", BATCH_ENTRY.summary, LINES, ("Prefer", "SessionOfLines")),
        "requestBody": {"required": True, "content": {"application/x-ndjson": content}},
        "responses": _responses(
            BATCH_ENTRY, "One line per call, in the same order", "application/x-ndjson", answer, {"X-Request-Id": "RequestId"}
        ),
    }


def call_operation(route: Route, schemas: Schema) -> Schema:
    """The call of one procedure, whose parameters and answer become schemas of their own."""
    procedure, name = route.procedure, "".join(part.title() for part in route.name.split("_"))
    given = procedure.json_schema()
    example = {"an example": {"value": example_of(given)}}
    body = add_schema(schemas, f"{name}Parameters", given)
    answer = add_schema(schemas, f"{name}Answer", answer_schema(route))
    doc = (procedure.function.__doc__ or "").strip()
    takes = ("Txn", "PreferRedirect", "Consistency") if route.read_only else ("IdempotencyKey", "SessionNumber", "Txn", "Prefer")
    headers = {"X-Request-Id": "RequestId", "Cmdlog-Txn": "CmdlogTxn"}
    headers |= {} if route.read_only else {"Preference-Applied": "PreferenceApplied"}
    about = f"Runs {_place_of(route)}" + ("; reads only, not logged." if route.read_only else ".")
    return {
        **_hot_operation(f"call_{route.name}", doc.splitlines()[0] if doc else f"Call {route.name}", about, takes),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body, "examples": example}}},
        "responses": _responses(
            CALL_ENTRY, "As of `txn_id`" if route.read_only else "Durable and executed", "application/json", answer, headers
        ),
    }


def _hot_operation(name: str, summary: str, about: str, takes: Iterable[str]) -> Schema:
    return {
        "tags": ["procedures"],
        "summary": summary,
        "description": about,
        "operationId": name,
        "parameters": parameter_references(takes),
    }


def _responses(entry: Entry, success: str, kind: str, schema: Schema, headers: Mapping[str, str]) -> Schema:
    named = {name: {"$ref": f"#/components/headers/{header}"} for name, header in headers.items()}
    found: Schema = {"200": {"description": success, "headers": named, "content": {kind: {"schema": schema}}}}
    return found | {str(status): problem for status, problem in problem_references(entry).items()}


def _place_of(route: Route) -> str:
    if route.procedure.each:
        return "once on each partition"
    return "on all partitions" if route.everywhere else f"on the partition of `{route.procedure.partition_by}`"


def answer_schema(route: Route) -> Schema:
    """The object that answers a call."""
    result = route.procedure.result_schema()
    members: Schema = {"txn_id": TXN_ID, "partition": {"type": "integer", "minimum": 0}, "result": result}
    if route.everywhere:
        every = {"type": "array", "items": result, "description": "in partition order"}
        members |= {"partition": {"type": "null"}, "result": every}
    if route.read_only:
        as_of = {"type": "object", "additionalProperties": TXN_ID, "description": AS_OF}
        members |= {"as_of": as_of, "as_of_time": {"type": "string", "description": AS_OF_TIME}}
    required = ["txn_id", "partition", "result"]
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def add_schema(schemas: Schema, name: str, schema: Schema) -> Schema:
    """A reference to the schema, which is added under its name, as are the objects with a title within it.

    Of two different ones with the same name the second stays where it is used.
    """

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(part) for part in value]
        if not isinstance(value, dict):
            return value
        made = {key: part if key in ("default", "enum", "examples") else named(part) for key, part in value.items()}
        title = made.get("title")
        if made.get("type") != "object" or not isinstance(title, str) or schemas.setdefault(title, made) != made:
            return made
        return {"$ref": SCHEMAS + title}

    found: Schema = named(schema | {"title": name})
    return found


def with_whole_limits(value: Any) -> Any:
    """The document with whole numbers as integers: FastAPI makes floats of all limits, and 2^63 is not 9.223372036854776e+18."""
    if isinstance(value, dict):
        return {name: with_whole_limits(part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_whole_limits(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def problem_responses() -> dict[str, Any]:
    """One response per status that a route may answer with. FastAPI gives errors the media type of the 200, which they lack."""
    statuses = sorted({status for entry in TABLE for status in statuses_of(entry)})
    return {f"Problem{status}": _problem_response(status) for status in statuses}


def _problem_response(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"const": "Bearer"}}
    if status == 307:
        headers["Location"] = {"schema": {"type": "string", "format": "uri"}, "description": "the same route of the leader"}
        headers["Preference-Applied"] = {"schema": {"const": "redirect=leader"}}
    if status == 503:
        headers["Retry-After"] = {"schema": {"type": "integer", "minimum": 0}, "description": "seconds"}
    return {
        "description": codes_of(status),
        "headers": headers,
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
    }


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
