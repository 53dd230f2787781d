"""How the handler of a route is declared: one decorator adds it to FastAPI and to the description.

One rule: FastAPI gets values that were read strictly. The gate has decided about credential and headers before a request gets
here, and bodies are parsed by `strict_json` and validated by their models, the large ones in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar, get_args

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError

from cmdlog.api.gate.problem import codes_of, invalid
from cmdlog.api.gate.request import INCOMING, Incoming, json_object, read_body
from cmdlog.api.gate.route_table import CLUSTER, DEPLOY, Entry, entry_of
from cmdlog.api.routes.service import Service

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Response]])

LIMIT: Final = "cmdlog_body_bytes_max"  # attribute of a handler whose bodies have a limit of their own
ALWAYS: Final = (400, 401, 403, 408, 414, 422, 431, 500, 503)
"""Statuses that every route may answer with: the request's head, its credential, a server that is not ready."""
TEXTS: Final = {"extra_forbidden": "unknown field", "missing": "is missing", "bool_type": "must be true or false"}
"""What is wrong with a field, by pydantic's type of the error; pydantic's own words for all others."""


class StrictRequest(Request):
    """A request whose body was read and validated. FastAPI asks for both again."""

    def __init__(self, request: Request, value: Any) -> None:
        headers = [(name, held) for name, held in request.scope["headers"] if name != b"content-type"]  # the gate has checked it
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Whether there is one."""
        return b"" if self._value is None else b"{}"

    async def json(self) -> Any:
        """An instance of the model, which FastAPI takes as it is."""
        return self._value


class StrictRoute(APIRoute):
    """A route of FastAPI whose body is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI documents it for routes of one's own."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            try:
                return await handle(request if self.body_field is None else StrictRequest(request, await self._read(request)))
            except RequestValidationError as error:
                raise invalid(_problems(error.errors())) from None

        return handle_strictly

    async def _read(self, request: Request) -> Any:
        """The body as its model; None when there is none. Raises: Problem."""
        service, limit = _held_service(request), getattr(self.endpoint, LIMIT, 0)
        service.node()  # every route with a body needs it
        body = await read_body(request.scope, request.receive, limit_bytes=limit or service.settings.call_bytes_max)
        return await service.read_aside(body, self._validated, request.scope[INCOMING].caller.name) if body.strip() else None

    def _validated(self, body: bytes) -> Any:
        assert self.body_field is not None
        annotation = self.body_field.field_info.annotation
        model, *_none = get_args(annotation) or (annotation,)
        try:
            return model.model_validate(json_object(body))
        except ValidationError as error:
            problems = _problems(error.errors(include_url=False, include_input=False), outside=0)
        raise invalid(problems)


router: Final = APIRouter(route_class=StrictRoute, strict_content_type=False)


def route(
    name: str,
    answer: str,
    model: Any = None,
    *,
    takes: Iterable[str] = (),
    response: type[Response] = JSONResponse,
    body_bytes_max: int = 0,
) -> Callable[[F], F]:
    """Declares the handler of the table's route: what its success is, and which parameters of `openapi.py` it takes.

    `body_bytes_max`: 0 is the limit of calls.
    """
    entry = entry_of(name)
    responses = problem_references(entry)
    responses[entry.status] = {"headers": {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}}

    def declare(handler: F) -> F:
        setattr(handler, LIMIT, body_bytes_max)
        router.add_api_route(
            entry.path,
            handler,
            methods=[entry.method],
            name=entry.name,
            operation_id=entry.name,
            summary=entry.summary,
            status_code=entry.status,
            response_class=response,
            response_model=model,
            response_description=answer,
            responses=responses,
            tags=["node"],
            openapi_extra={"parameters": parameter_references(takes)},
        )
        return handler

    return declare


def json_answer(value: Any) -> Response:
    """An answer of JSON."""
    return Response(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")


def parameter_references(names: Iterable[str]) -> list[dict[str, str]]:
    """The parameters of an operation; every route takes an id."""
    return [{"$ref": f"#/components/parameters/{name}"} for name in ("RequestId", *names)]


def problem_references(entry: Entry) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with."""
    return {
        status: {"$ref": f"#/components/responses/Problem{status}", "description": codes_of(status)}
        for status in statuses_of(entry)
    }


def statuses_of(entry: Entry) -> tuple[int, ...]:
    """The statuses of problems that a route may answer with."""
    of_bodies = (413, 415) if entry.body != "none" else ()
    of_calls = (404, 409, 504) if entry.kind == "call" else ()
    of_clusters = (404, 409, 504) if entry.path.startswith((CLUSTER, DEPLOY)) else ()
    of_leaders = (307,) if entry.leads else ()
    return tuple(sorted((*ALWAYS, *of_bodies, *of_calls, *of_clusters, *of_leaders)))


def _problems(errors: Iterable[Mapping[str, Any]], *, outside: int = 1) -> list[tuple[str, str]]:
    """Fields at fault, the first problem of each. `outside`: so many parts of an error's place say where the field is."""
    found: dict[str, str] = {}
    for error in errors:
        field = ".".join(map(str, error["loc"][outside:])) or "body"
        text = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "must")
        found.setdefault(field, TEXTS.get(error["type"], text))
    return list(found.items())


def _held_service(request: Request) -> Service:
    service: Service = request.app.service
    return service


async def _service(request: Request) -> Service:
    return _held_service(request)


async def _incoming(request: Request) -> Incoming:
    incoming: Incoming = request.scope[INCOMING]
    return incoming


ServiceOf = Annotated[Service, Depends(_service)]
"""A handler's parameter with what all routes share."""
IncomingOf = Annotated[Incoming, Depends(_incoming)]
"""A handler's parameter with what the gate knows of the request: caller, headers, query."""
