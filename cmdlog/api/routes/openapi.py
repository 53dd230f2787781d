"""The OpenAPI description: the route table, and one typed operation per procedure, from the codecs that check requests.

One rule: nothing is written twice. Routes and roles come from the table, the schema of a call from its procedure's codecs, the
problems from the list of codes.
"""

from __future__ import annotations

from typing import Any, Final

from cmdlog.api.gate.route_table import INVOKE, PROCEDURES, TABLE, Entry
from cmdlog.api.routes.app_state import Service
from cmdlog.api.routes.named_models import NamedModels
from cmdlog.api.routes.response_schemas import (
    ANSWERS,
    JSON,
    NDJSON,
    SCHEMAS,
    TXN_ID,
    problem_responses,
    result_schema,
    statuses_of,
)
from cmdlog.node.slot_map import Route

VERSION: Final = "3.1.0"
ABOUT: Final = """Durable stored procedures. A call is logged durably and executed before it is answered.

Requests are strict JSON in UTF-8: no repeated keys, no NaN or infinities, integers of 64 bits, at most 64 levels, no lone
surrogates, no U+0000. A number with a fraction or exponent means the nearest double. Compressed requests are refused.
Every error is `application/problem+json` with a stable `code`; every GET route also answers HEAD, and every route OPTIONS."""

PARAMETERS: Final[dict[str, Any]] = {
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
        "description": "a retry with the same credential and key gets the first outcome and is not executed again",
    },
    "CmdlogTxn": {
        "name": "Cmdlog-Txn",
        "in": "header",
        "schema": TXN_ID,
        "description": "transaction id that the caller has seen; this call gets a greater one",
    },
    "Prefer": {
        "name": "Prefer",
        "in": "header",
        "schema": {"type": "string"},
        "description": "`durability=sync` or `durability=async`, for this call; other preferences are ignored",
    },
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "schema": {"type": "string"},
        "description": "repeated in the answer and in the server's log if it has 1 to 128 visible ASCII characters",
    },
    "After": {
        "name": "after",
        "in": "query",
        "schema": {"type": "string", "pattern": "^[0-9]{1,12}$"},
        "description": "omits the rows of the history up to this number",
    },
}
HEADERS: Final[dict[str, Any]] = {
    "RequestId": {"schema": {"type": "string"}, "description": "the caller's X-Request-Id, or a new one"},
    "CmdlogTxn": {"schema": TXN_ID, "description": "transaction id; a request that sends it back is ordered after this call"},
    "PreferenceApplied": {
        "schema": {"enum": ["durability=sync", "durability=async"]},
        "description": "the preference that was applied",
    },
}
ROUTE_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {"batch": ("Prefer",), "events": ("After",)}


class Description:
    """The whole description; procedures are in it once the node runs."""

    def __init__(self, service: Service, *, version: str) -> None:
        self._service = service
        self._version = version or "0"
        self._whole: dict[str, Any] | None = None

    def get(self) -> dict[str, Any]:
        """The document."""
        if self._whole is not None:
            return self._whole
        node = self._service.maybe_node
        described = self._describe(node.routes.values() if node is not None else ())
        if node is not None:
            self._whole = described
        return described

    def _describe(self, routes: Any) -> dict[str, Any]:
        required = self._service.gatekeeper.required
        paths: dict[str, dict[str, Any]] = {}
        for entry in TABLE:
            if entry.kind != "call":
                paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry, required=required)
        (call,) = (entry for entry in TABLE if entry.kind == "call")
        models = NamedModels(SCHEMAS)
        for route in routes:
            paths[PROCEDURES + route.name] = {call.method.lower(): _call(call, route, models, required=required)}
        components: dict[str, Any] = {
            "schemas": models.schemas,
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": problem_responses(),
        }
        if required:
            components["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "a token made by `cmdlog token`"}
            }
        info = {"title": "cmdlog", "version": self._version, "summary": "Durable stored procedures", "description": ABOUT}
        return {"openapi": VERSION, "info": info, "paths": paths, "components": components}


CONSISTENT: Final = {"type": "object", "properties": {"consistent": {"type": "boolean"}}, "additionalProperties": False}


def _operation(entry: Entry, *, required: bool) -> dict[str, Any]:
    description, kind, schema = ANSWERS[entry.name]
    operation = _common(entry, entry.needs, required=required)
    operation["summary"] = entry.summary
    operation["parameters"] += [_ref("parameters", name) for name in ROUTE_PARAMETERS.get(entry.name, ())]
    if entry.name == "query":
        operation["requestBody"] = _body(JSON, _ref("schemas", "Query"), {"sql": "SELECT ? AS answer", "params": [42]})
    elif entry.name == "take_snapshot":
        operation["requestBody"] = {**_body(JSON, CONSISTENT, {"consistent": True}), "required": False}
        operation["description"] = "With `consistent`: one transaction id at which all partitions can be restored together."
    elif entry.name == "batch":
        line = {"procedure": "transfer", "params": {"amount": 5}, "key": "order-18"}
        operation["requestBody"] = _body(NDJSON, _ref("schemas", "Line"), line)
        operation["description"] = "Answers arrive while the request is still being sent: read while you write."
    operation["responses"]["200"] = _answer(description, kind, schema)
    return operation


def _call(entry: Entry, route: Route, models: NamedModels, *, required: bool) -> dict[str, Any]:
    procedure = route.procedure
    title = "".join(part.title() for part in route.name.split("_"))
    result = procedure.result_schema()
    if route.everywhere:
        result = {"type": "array", "items": result, "description": "in partition order"}
    doc = (procedure.function.__doc__ or "").strip()
    where = (
        "once on each partition"
        if procedure.each
        else "on all partitions"
        if route.everywhere
        else f"on the partition of `{procedure.partition_by}`"
    )
    operation = _common(entry, entry.needs if route.read_only else (INVOKE,), required=required)
    names = ("CmdlogTxn",) if route.read_only else ("IdempotencyKey", "CmdlogTxn", "Prefer")
    schema = procedure.json_schema()
    operation |= {
        "operationId": f"call_{route.name}",
        "tags": ["procedures"],
        "summary": doc.splitlines()[0] if doc else f"Call {route.name}",
        "description": f"Runs {where}" + ("; reads only, not logged." if route.read_only else "."),
        "parameters": [*operation["parameters"], *(_ref("parameters", name) for name in names)],
        "requestBody": _body(JSON, models.named({**schema, "title": f"{title}Parameters"}), example_of(schema)),
    }
    description = "As of `txn_id`" if route.read_only else "Durable and executed"
    answered = {**result_schema(result, everywhere=route.everywhere), "title": f"{title}Answer"}
    answer = _answer(description, JSON, models.named(answered))
    answer["headers"]["Cmdlog-Txn"] = _ref("headers", "CmdlogTxn")
    if not route.read_only:
        answer["headers"]["Preference-Applied"] = _ref("headers", "PreferenceApplied")
    operation["responses"]["200"] = answer
    return operation


def _common(entry: Entry, needs: tuple[str, ...], *, required: bool) -> dict[str, Any]:
    """What every operation has."""
    operation: dict[str, Any] = {
        "operationId": entry.name,
        "tags": ["procedures" if entry.kind in ("call", "batch") else "node"],
        "x-roles": list(needs),
        "parameters": [_ref("parameters", "RequestId")],
        "responses": {str(status): _ref("responses", f"Problem{status}") for status in statuses_of(entry)},
    }
    if required:
        operation["security"] = [{"token": [role]} for role in needs]
    return operation


def _answer(told: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    headers = {"X-Request-Id": _ref("headers", "RequestId")}
    return {"description": told, "headers": headers, "content": {kind: {"schema": schema}}}


def _body(kind: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema, "example": example}}}


def _ref(kind: str, name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/{kind}/{name}"}


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
