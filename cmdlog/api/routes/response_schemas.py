"""What the routes answer with, as JSON schemas, and the problems that they may answer with instead.

One rule: data alone; `openapi` puts it together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import TABLE, Entry

Schema = dict[str, Any]

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
PROBLEM: Final = "application/problem+json"
HTML: Final = "text/html"

TXN_ID: Final[Schema] = {
    "type": "string",
    "pattern": "^(0|[1-9][0-9]{0,18})$",
    "description": "transaction id: a decimal string of 63 bits",
}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_OBJECT: Final[Schema] = {"type": "object"}


def _object(properties: dict[str, Any], *, required: tuple[str, ...] | None = None, closed: bool = True) -> Schema:
    schema = {"type": "object", "properties": properties, "required": list(properties if required is None else required)}
    return {**schema, "additionalProperties": False} if closed else schema


def result_schema(result: Schema, *, everywhere: bool) -> Schema:
    """The answer to a call."""
    return _object({"txn_id": TXN_ID, "partition": {"type": "null"} if everywhere else _COUNT, "result": result})


SCHEMAS: Final[Schema] = {
    "Problem": _object(
        {
            "type": {"type": "string", "pattern": "^urn:cmdlog:problem:[a-z_]+$"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "code": {"type": "string", "enum": list(CODES), "description": "stable; programs should decide by this field"},
            "request_id": {"type": "string", "description": "as in the header X-Request-Id and in the server's log"},
            "txn_id": {**TXN_ID, "description": "transaction that decided this outcome, if any"},
            "abort_code": {"type": ["string", "null"], "description": "the procedure's own code, with code=aborted"},
            "error": {"type": ["string", "null"], "description": "the kind of error, with code=procedure_failed"},
            "procedure": {
                "type": "string",
                "description": "that raised, with code=procedure_failed, while the server knows where",
            },
            "file": {"type": "string", "description": "of the application's code that raised"},
            "line": _COUNT,
            "hint": {"type": "string", "description": "what to do instead, where that is known"},
            "needs": {"type": "array", "items": {"type": "string"}, "description": "roles, one of which is required"},
            "allow": {"type": "string", "description": "the methods that the route supports"},
            "limit_bytes": _COUNT,
            "retry_after_s": {"type": "number", "description": "in a batch, instead of the header Retry-After"},
            "progress": {"type": "object", "description": "progress of the running recovery"},
            "problems": {
                "type": "array",
                "description": "every invalid field",
                "items": _object({"field": {"type": "string"}, "problem": {"type": "string"}}),
            },
        },
        required=("type", "title", "status", "detail", "code"),
    ),
    "Rows": _object(
        {
            "columns": {"type": "array", "items": {"type": "string"}},
            "rows": {"type": "array", "items": {"type": "array", "items": {"type": ["string", "number", "null"]}}},
            "as_of": {"type": "object", "additionalProperties": TXN_ID, "description": "per partition: the state that was read"},
        }
    ),
    "Query": _object(
        {
            "sql": {"type": "string", "minLength": 1, "description": "one SELECT; parameters as ?"},
            "params": {
                "type": ["array", "null"],
                "items": {"type": ["string", "integer", "number", "boolean", "null"]},
                "description": "a value for each ?",
            },
            "partition": {"type": ["integer", "null"], "minimum": 0, "description": "null: the rows of all partitions"},
        },
        required=("sql",),
    ),
    "Line": _object(
        {
            "procedure": {"type": "string"},
            "params": {"type": ["object", "null"]},
            "key": {"type": ["string", "null"], "description": "idempotency key"},
        },
        required=("procedure",),
    ),
}

ANSWERS: Final[Mapping[str, tuple[str, str, Schema]]] = {
    "batch": (
        "One line per call, in the same order",
        NDJSON,
        {
            "oneOf": [
                _object({"txn_id": TXN_ID, "partition": {"type": ["integer", "null"], "minimum": 0}, "result": {}}),
                _object({"error": {"$ref": "#/components/schemas/Problem"}}),
            ]
        },
    ),
    "query": ("The rows", JSON, {"$ref": "#/components/schemas/Rows"}),
    "procedures": (
        "Every procedure",
        JSON,
        _object(
            {
                "procedures": {
                    "type": "array",
                    "items": _object(
                        {
                            "name": {"type": "string"},
                            "partition_by": {"type": ["string", "null"]},
                            "read_only": {"type": "boolean"},
                            "parameters": _OBJECT,
                            "result": _OBJECT,
                            "description": {"type": "string"},
                        }
                    ),
                }
            }
        ),
    ),
    "status": ("The node", JSON, _object({"ready": {"type": "boolean"}, "partitions": _OBJECT}, closed=False)),
    "snapshots": (
        "The snapshots, by partition and age, and the recovery points, by transaction id",
        JSON,
        _object({"snapshots": {"type": "array", "items": _OBJECT}, "points": {"type": "array", "items": _OBJECT}}),
    ),
    "take_snapshot": (
        "The new snapshots; with `consistent` the recovery point as well",
        JSON,
        _object({"snapshots": {"type": "array", "items": _OBJECT}, "point": _OBJECT}, required=("snapshots",)),
    ),
    "healthz": ("The process is alive", JSON, _object({"alive": {"const": True}})),
    "readyz": ("Calls are being served", JSON, _object({"ready": {"const": True}})),
    "metrics": ("The metrics", "text/plain", {"type": "string"}),
    "openapi": ("This description", JSON, _object({"openapi": {"type": "string"}, "paths": _OBJECT}, closed=False)),
    "docs": ("A page", HTML, {"type": "string"}),
    "dashboard": ("A page", HTML, {"type": "string"}),
    "events": ("One event per second, until the viewer disconnects", "text/event-stream", {"type": "string"}),
}
"""Route -> (description, media type, schema) of its 200. Calls have one each, by their procedure."""

ALWAYS: Final = (400, 401, 403, 408, 414, 422, 431, 500, 503)
"""Statuses that every route may answer with: the request's head, its credential, a server that is not ready."""


def statuses_of(entry: Entry) -> tuple[int, ...]:
    """The statuses of problems that a route may answer with."""
    of_bodies = (413, 415) if entry.body != "none" else ()
    of_calls = (404, 409, 504) if entry.kind == "call" else ()
    return tuple(sorted((*ALWAYS, *of_bodies, *of_calls)))


def problem_responses() -> dict[str, Any]:
    """One response per status that a route may answer with, naming its codes."""
    statuses = sorted({status for entry in TABLE for status in statuses_of(entry)})
    return {f"Problem{status}": _problem_response(status) for status in statuses}


def _problem_response(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"const": "Bearer"}}
    if status == 503:
        headers["Retry-After"] = {"schema": _COUNT, "description": "seconds"}
    return {
        "description": ", ".join(code for code, (of, _) in CODES.items() if of == status),
        "headers": headers,
        "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
