"""The HTTP application: a gate that checks every request, two hot routes below FastAPI, and FastAPI for the rest.

FastAPI takes half as long to load as all else: it comes with the first request that is for one of the rest.

One rule: no request passes without its credential, and no answer leaves without a stable code: whatever happens inside comes out
as `application/problem+json`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cmdlog.api.connections.request_cycle import AWAITS
from cmdlog.api.gate.problem import Headers, Problem, redirected
from cmdlog.api.gate.request import (
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    FETCH_SITE,
    HOST,
    INCOMING,
    ORIGIN,
    PREFER,
    TWICE,
    Incoming,
    check_content,
    check_host,
    check_origin,
    check_twice,
    pick_headers,
    prefers_redirect,
    stated_bytes,
)
from cmdlog.api.gate.request_trace import REQUEST_ID, SCOPE_KEY, Picked, Trace
from cmdlog.api.gate.route_table import Entry, Methods, allowed, methods_of
from cmdlog.api.gate.token_file import Credential
from cmdlog.api.routes.batch import BatchStream
from cmdlog.api.routes.call import QuickCalls, call_procedure
from cmdlog.api.routes.page import send_sign_in
from cmdlog.api.routes.service import Service, send_problem
from cmdlog.garbage_collection import loading
from cmdlog.node.placing.shares import UNCOUNTED_BYTES, Shares
from cmdlog.node.settings import Settings

if TYPE_CHECKING:
    from cmdlog.node.node import Node

TRANSFER_ENCODING: Final = b"transfer-encoding"
PATH_CHARS_SHOWN: Final = 200
ADMITTED_MAX: Final = 256  # sets of headers; clients of one kind send the same ones

Admitted = tuple[bytes | frozenset[str] | None, ...]
"""Roles of a caller, and the headers that the gate looks at."""

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
        self._admitted: set[Admitted] = set()
        self.quick = QuickCalls(service, self.admit_call)  # calls below ASGI
        self._version = version
        self._cold: ASGIApp | None = None  # once a request was for it
        self._loading: asyncio.Future[ASGIApp] | None = None  # while the first requests for it wait

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets are not spoken; lifespan has nothing to start
            return
        picked = pick_headers(scope)
        trace = Trace(self.service.front, send, route=route_of(scope), given_id=picked.get(REQUEST_ID))
        scope[SCOPE_KEY] = trace
        send = trace.send
        try:
            await self._serve(scope, picked, receive, send)
        except Problem as problem:
            trace.note_problem(problem)
            if problem.status == 401 and wants_page(scope):
                await send_sign_in(send)
            else:
                await send_problem(send, problem)
        except ConnectionError:
            return  # the client is gone
        except TimeoutError:
            logger.warning("slow_reader", path=scope["path"], request_id=trace.request_id)
            # returning with the answer unfinished closes the connection
        except Exception as error:  # noqa: BLE001 - the last line of defence: a defect of ours still gets a stable code
            scope[SCOPE_KEY].log_defect(scope["path"], error)
            with contextlib.suppress(RuntimeError):  # the answer has begun: returning closes the connection
                await send_problem(
                    send, trace.note_problem(Problem("internal_error", "internal server error; see the server's log"))
                )

    async def _serve(self, scope: Scope, picked: Picked, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        caller, methods, entry = self.admit(scope["method"], path, picked)
        if entry is None:
            await self._serve_other_method(methods, scope, picked, receive, send)
            return
        incoming = Incoming(path, caller, picked, scope[SCOPE_KEY], scope.get("query_string", b""))
        size = self._counted_bytes(entry, scope)
        awaits = scope.get(AWAITS, _ignore)
        async with self.service.holding_body(caller.name, size, awaits) if size else contextlib.nullcontext():
            await self._serve_entry(entry, incoming, scope, receive, send)

    def _counted_bytes(self, entry: Entry, scope: Scope) -> int:
        """What the body of a call or query may take, 0 of a short one; a batch counts its lines."""
        if entry.kind != "call" and entry.name != "query":
            return 0
        limit = self.service.settings.call_bytes_max
        size = limit if any(name == TRANSFER_ENCODING for name, _ in scope["headers"]) else stated_bytes(scope)
        return size if UNCOUNTED_BYTES < size <= limit else 0

    async def _serve_entry(self, entry: Entry, incoming: Incoming, scope: Scope, receive: Receive, send: Send) -> None:
        if entry.kind == "call":
            await call_procedure(self.service, incoming, scope, receive, send)
        elif entry.kind == "batch":
            await BatchStream(self.service, incoming, receive, send).run()
        else:
            scope[INCOMING] = incoming
            if entry.kind != "stream":
                send = _within_share(send, self.service.unread, incoming.caller.name)
            await self._serve_cold(scope, receive, send)

    def admit(self, method: str, path: str, picked: Picked) -> tuple[Credential, Methods, Entry | None]:
        """The gate: who asks, for which route; None for one with other methods. Raises: Problem."""
        gatekeeper = self.service.gatekeeper
        caller = gatekeeper.authenticate(picked.get(AUTHORIZATION))
        if not gatekeeper.required:
            check_host(picked)
        check_origin(picked, authenticated=gatekeeper.required)
        check_twice(picked)
        methods = methods_of(path)
        if methods is None:
            raise Problem("not_found", f"{path[:PATH_CHARS_SHOWN]} is not served; GET /docs lists what is")
        entry = methods.get(method)
        if entry is not None:
            if caller.roles.isdisjoint(entry.roles):
                raise gatekeeper.refusal(entry)
            if entry.body != "none":
                check_content(picked)
            if entry.leads and prefers_redirect(picked.get(PREFER)) and (leader := self.service.leader_elsewhere()):
                raise redirected(leader, path)
        return caller, methods, entry

    def admit_call(self, path: str, picked: Picked) -> Credential:
        """`admit` for a call: what was admitted once with these headers is not judged again. Raises: Problem."""
        caller = self.service.gatekeeper.authenticate(picked.get(AUTHORIZATION))
        get = picked.get
        known = caller.roles, get(HOST), get(ORIGIN), get(FETCH_SITE), get(CONTENT_TYPE), get(CONTENT_ENCODING), get(PREFER)
        if known in self._admitted and TWICE not in picked:
            return caller
        self.admit("POST", path, picked)
        if PREFER not in picked and TWICE not in picked:  # a preference may ask for the leader, who changes
            if len(self._admitted) >= ADMITTED_MAX:
                self._admitted.clear()
            self._admitted.add(known)
        return caller

    def name_of(self, headers: Headers) -> str:
        """The name of the credential of a request. Raises: Problem (unauthenticated)."""
        given = [value for name, value in headers if name == AUTHORIZATION]
        return self.service.gatekeeper.authenticate(given[0] if len(given) == 1 else None).name

    async def _serve_cold(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            cold = self._cold or await self._loaded()
            await cold(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - FastAPI raises it again after its handler has answered
            scope[SCOPE_KEY].log_defect(scope["path"], error)

    async def _loaded(self) -> ASGIApp:
        """FastAPI with its routes, loaded in a thread: calls are served meanwhile."""
        self._loading = self._loading or asyncio.get_running_loop().run_in_executor(self.service.slow, self._load_cold)
        try:
            cold = self._cold = await asyncio.shield(self._loading)
        finally:
            self._loading = None
        return cold

    def _load_cold(self) -> ASGIApp:
        with loading():
            from cmdlog.api.routes.cold_routes import ColdRoutes  # noqa: PLC0415 - it brings FastAPI

            return ColdRoutes(self.service, version=self._version)

    async def _serve_other_method(self, methods: Methods, scope: Scope, picked: Picked, receive: Receive, send: Send) -> None:
        """HEAD comes with every GET; OPTIONS says what there is."""
        if scope["method"] == "HEAD" and "GET" in methods and methods["GET"].kind != "stream":
            await self._serve({**scope, "method": "GET"}, picked, receive, _without_body(send))
        elif scope["method"] == "OPTIONS":
            headers = [(b"allow", allowed(methods).encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            raise Problem(
                "method_not_allowed", f"{scope['method'][:PATH_CHARS_SHOWN]} is not served here", allow=allowed(methods)
            )


def _ignore(_: float) -> None:
    """The application of another server, which has no rooms."""


def _within_share(send: Send, unread: Shares, caller: str) -> Send:
    """A long answer takes of its caller's share until it is sent; without room the connection ends."""

    async def send_counted(message: Message) -> None:
        size = len(message.get("body", b""))
        if size <= UNCOUNTED_BYTES:
            await send(message)
            return
        if not unread.take_share(caller, size):
            return  # the answer is not whole, so its connection ends
        try:
            await send(message)
        finally:
            unread.give_back(caller, size)

    return send_counted


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


def route_of(scope: Scope) -> str:
    """The name of the route in the table, of HEAD that of its GET; "" for what is not served."""
    methods = methods_of(scope["path"]) or {}
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return methods[method].name if method in methods else ""


def wants_page(scope: Scope) -> bool:
    """A browser asks for a page: a person sits there, who can be asked for a token."""
    entry = (methods_of(scope["path"]) or {}).get(scope["method"])
    if entry is None or entry.kind != "page":
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
