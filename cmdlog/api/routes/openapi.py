"""The OpenAPI description: what FastAPI's own generator makes of the routes, and what its routes cannot say.

One rule: nothing is written twice. Routes and roles come from the table, the models of a call from its procedure's signature, the
problems from the list of codes.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from cmdlog.api.gate.route_table import TABLE
from cmdlog.api.routes.app_state import Service
from cmdlog.api.routes.fastapi_routes import codes_of, procedure_route, statuses_of, table_routes

ABOUT: Final = """Durable stored procedures. A call is logged durably and executed before it is answered.

Requests are strict JSON in UTF-8: no repeated keys, no NaN or infinities, integers from -2^63 to 2^63-1, values of at most
64 levels, no lone surrogates, no U+0000. A number with a fraction or exponent means the nearest double. Compressed requests are
refused.
Every error is `application/problem+json` with a stable `code`; every GET route also answers HEAD, and every route OPTIONS."""

TXN_ID: Final = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
HEADERS: Final[dict[str, Any]] = {
    "RequestId": {"schema": {"type": "string"}, "description": "the caller's X-Request-Id, or a new one"},
    "CmdlogTxn": {"schema": TXN_ID, "description": "transaction id; a request that sends it back is ordered after this call"},
    "PreferenceApplied": {
        "schema": {"enum": ["durability=sync", "durability=async"]},
        "description": "the preference that was applied",
    },
}


class Description:
    """The whole description; procedures are in it once the node runs."""

    def __init__(self, service: Service, *, version: str) -> None:
        self._service = service
        self._table_routes: list[APIRoute] = []  # made when they are first asked for: they take a tenth of a start
        self._version = version or "0"
        self._whole: dict[str, Any] | None = None
        self._described: object = None  # routes of the node that `_whole` describes

    def get(self) -> dict[str, Any]:
        """The document. It is made once for the code that runs, which takes milliseconds per procedure."""
        node = self._service.maybe_node
        routes = None if node is None else node.routes
        if self._whole is not None and self._described is routes:
            return self._whole
        described: dict[str, Any] = with_whole_limits(self.generated())
        described["components"] |= {"headers": HEADERS, "responses": problem_responses()}
        if routes is not None:
            self._whole, self._described = described, routes
        return described

    def generated(self) -> dict[str, Any]:
        """What FastAPI makes of the routes: paths, models and the way to sign in."""
        required = self._service.gatekeeper.required
        self._table_routes = self._table_routes or table_routes(required=required)
        return get_openapi(
            title="cmdlog",
            version=self._version,
            summary="Durable stored procedures",
            description=ABOUT,
            routes=[*self._table_routes, *self._procedure_routes(required=required)],
        )

    def _procedure_routes(self, *, required: bool) -> list[APIRoute]:
        node = self._service.maybe_node
        return [] if node is None else [procedure_route(route, required=required) for route in node.routes.values()]


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
