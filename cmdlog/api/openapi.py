"""The OpenAPI description: what FastAPI knows, and one typed operation per procedure, from the codecs that check requests.

One rule: the schema of a request is the one that its procedure's codecs state; nothing is written twice.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from cmdlog.api.problem import CODES
from cmdlog.api.service import Service
from cmdlog.node.routes import Route

PROBLEM_TYPE: Final = "application/problem+json"
PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": list(CODES)},
        "txn_id": {"type": "string", "description": "transaction that decided this outcome, where one did"},
        "abort_code": {"type": "string", "description": "the procedure's own code, with code=aborted"},
        "problems": {
            "type": "array",
            "items": {"type": "object", "properties": {"field": {"type": "string"}, "problem": {"type": "string"}}},
        },
    },
}
TXN_ID: Final = {"type": "string", "pattern": "^[0-9]+$", "description": "transaction id, a decimal string of 63 bits"}
CALL_STATUSES: Final = (404, 409, 413, 422, 503, 504)
CALL_HEADERS: Final = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "description": "a repetition under the same key gets the first outcome and is not executed again",
    },
    {
        "name": "Cmdlog-Txn",
        "in": "header",
        "schema": TXN_ID,
        "description": "transaction id that the caller has seen; this call gets a greater one",
    },
]
QUERY_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["sql"],
                    "additionalProperties": False,
                    "properties": {
                        "sql": {"type": "string"},
                        "params": {"type": "array", "items": {}},
                        "partition": {
                            "type": ["integer", "null"],
                            "minimum": 0,
                            "description": "none: the rows of all partitions",
                        },
                    },
                }
            }
        },
    }
}


def describe_api(app: FastAPI, service: Service) -> dict[str, Any]:
    """The whole description; procedures are in it once the node runs."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    described = get_openapi(title=app.title, version=app.version, routes=app.routes, summary="Durable stored procedures")
    described.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    paths = described["paths"]
    paths["/v1/batch"] = {"post": _batch_operation()}
    paths["/v1/query"]["post"] |= QUERY_BODY
    node = service.maybe_node
    if node is not None:
        paths |= {f"/v1/procedures/{route.name}": {"post": _operation(route)} for route in node.routes.values()}
    if service.gatekeeper.required:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    if node is not None:
        app.openapi_schema = described
    return described


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of an operation for these statuses, each naming its codes."""
    return {
        status: {
            "description": ", ".join(code for code, (of, _) in CODES.items() if of == status),
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def _operation(route: Route) -> dict[str, Any]:
    procedure = route.procedure
    result = procedure.result_schema()
    if route.everywhere:
        result = {"type": "array", "items": result, "description": "in partition order"}
    doc = (procedure.function.__doc__ or "").strip()
    where = "on all partitions" if route.everywhere else f"on the partition of `{procedure.partition_by}`"
    return {
        "operationId": f"call_{route.name}",
        "tags": ["procedures"],
        "summary": doc.splitlines()[0] if doc else f"Calls {route.name}",
        "description": f"Runs {where}" + ("; reads only, not logged." if route.read_only else "."),
        "parameters": [header for header in CALL_HEADERS if not (route.read_only and header["name"] == "Idempotency-Key")],
        "requestBody": {"required": True, "content": {"application/json": {"schema": procedure.json_schema()}}},
        "responses": {
            "200": {
                "description": "Durable and executed" if not route.read_only else "As of `txn_id`",
                "headers": {"Cmdlog-Txn": {"schema": TXN_ID}},
                "content": {"application/json": {"schema": _answer(result, everywhere=route.everywhere)}},
            },
            **{str(status): response for status, response in problem_responses(*CALL_STATUSES).items()},
        },
    }


def _answer(result: dict[str, Any], *, everywhere: bool) -> dict[str, Any]:
    partition = {"type": "null"} if everywhere else {"type": "integer", "minimum": 0}
    return {
        "type": "object",
        "required": ["txn_id", "partition", "result"],
        "properties": {"txn_id": TXN_ID, "partition": partition, "result": result},
    }


def _batch_operation() -> dict[str, Any]:
    line = {
        "type": "object",
        "required": ["procedure"],
        "additionalProperties": False,
        "properties": {"procedure": {"type": "string"}, "params": {"type": "object"}, "key": {"type": "string"}},
    }
    answer = {
        "oneOf": [
            _answer({}, everywhere=False),
            {"type": "object", "properties": {"error": {"$ref": "#/components/schemas/Problem"}}, "required": ["error"]},
        ]
    }
    return {
        "operationId": "batch",
        "tags": ["procedures"],
        "summary": "Many calls as lines of JSON, streamed both ways",
        "description": "Answers come in the order of the lines while the request is still being sent: read while you write.",
        "requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": line}}},
        "responses": {
            "200": {"description": "One line per line", "content": {"application/x-ndjson": {"schema": answer}}},
            **{str(status): response for status, response in problem_responses(401, 503).items()},
        },
    }
