"""The HTTP application: a gate that checks every request, two hot routes below FastAPI, and FastAPI for the rest.

One rule: no request passes without its credential, and no answer leaves without a stable code: whatever happens inside comes out
as `application/problem+json`.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from cmdlog.api.problem import Problem
from cmdlog.api.request import Picked, check_origin, check_token, pick_headers
from cmdlog.api.routes import make_routes_app
from cmdlog.api.service import Service, send_problem
from cmdlog.api.single import call_procedure
from cmdlog.api.stream import BatchStream
from cmdlog.node.settings import Settings

if TYPE_CHECKING:
    from cmdlog.node.node import Node

PROCEDURES: Final = "/v1/procedures/"
BATCH: Final = "/v1/batch"
FRAMES_LOGGED: Final = 8  # the innermost ones

logger = structlog.get_logger("cmdlog.api")


def create_app(node: Node | None, settings: Settings, *, version: str = "") -> Api:
    """The ASGI application. Without a node it answers `not_ready` until `service.attach` brings one.

    Raises: BadSetting, when the token file cannot serve.
    """
    return Api(Service(settings, node), version=version)


class Api:
    """The gate, as an ASGI application."""

    def __init__(self, service: Service, *, version: str = "") -> None:
        self.service = service
        self._cold: ASGIApp = make_routes_app(service, version=version)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets are not spoken; lifespan has nothing to start
            return
        try:
            await self._serve(scope, receive, send)
        except Problem as problem:
            await send_problem(send, problem)
        except ConnectionError:
            return  # nobody is there to be answered
        except TimeoutError:
            logger.warning("slow_reader", path=scope["path"])  # returning with the answer unfinished closes the connection
        except Exception as error:  # noqa: BLE001 - the last line of defence: a defect of ours still gets a stable code
            _log_defect(scope, error)
            with contextlib.suppress(RuntimeError):  # the answer has begun: returning closes the connection
                await send_problem(send, Problem("internal_error", "a defect of the server; its log says where"))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        picked = self._check(scope)
        path: str = scope["path"]
        if path.startswith(PROCEDURES):
            _only_post(scope)
            await call_procedure(self.service, path[len(PROCEDURES) :], picked, receive, send)
        elif path == BATCH:
            _only_post(scope)
            await BatchStream(self.service, receive, send).run()
        else:
            try:
                await self._cold(scope, receive, send)
            except Exception as error:  # noqa: BLE001 - FastAPI raises it again after its handler has answered
                _log_defect(scope, error)

    def _check(self, scope: Scope) -> Picked:
        picked = pick_headers(scope)
        if self.service.token:
            check_token(picked, self.service.token)
        check_origin(picked, token=self.service.token)
        return picked


def _log_defect(scope: Scope, error: Exception) -> None:
    """The kind of error and the way to it, without its message, which may hold parameters."""
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    logger.error("request_failed", path=scope["path"], error=type(error).__name__, where=where[-FRAMES_LOGGED:])


def _only_post(scope: Scope) -> None:
    if scope["method"] != "POST":
        raise Problem("method_not_allowed", f"{scope['method']} is not served here, POST is", allow="POST")
