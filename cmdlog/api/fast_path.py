"""Calls below ASGI: `POST /v1/procedures/{name}` whose body came with its head, which is nearly every one.

One rule: the same functions decide as under ASGI, in the same order (`Api.admit`, `find_route`, `prepare`, `place`,
`encode_reply`); only the way there is shorter. No task, no scope, no messages: the answer is written where the node gives it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from cmdlog.api.app import Api, log_defect
from cmdlog.api.connections.http_parser import Request
from cmdlog.api.connections.request_cycle import Answer
from cmdlog.api.gate.problem import Headers, Problem, body_too_large
from cmdlog.api.gate.request import Incoming, pick_headers
from cmdlog.api.gate.request_trace import REQUEST_ID, Trace
from cmdlog.api.gate.route_table import PROCEDURES
from cmdlog.api.routes.call import Prepared, encode_reply, find_route, note_reply, place, prepare
from cmdlog.node.outcome import Reply

ROUTE: Final = "call"


class QuickCalls:
    """The calls of one application, for its connections."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def takes(self, request: Request) -> bool:
        """Whether the request is a call."""
        return request.method == "POST" and request.path.startswith(PROCEDURES)

    def begin_call(self, request: Request, body: bytes, answer: Answer) -> None:
        """Serves one call: `answer` is called once, now or later, in this thread."""
        _Call(self._api, request, answer).begin_call(body)


class _Call:
    """One of them."""

    __slots__ = (
        "_answer",
        "_api",
        "_incoming",
        "_loop",
        "_partition",
        "_placed",
        "_prepared",
        "_reply",
        "_request",
        "_thread",
        "_trace",
    )

    _incoming: Incoming
    _prepared: Prepared
    _trace: Trace

    def __init__(self, api: Api, request: Request, answer: Answer) -> None:
        self._api, self._request, self._answer = api, request, answer
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._partition: int | None = None
        self._placed = False
        self._reply: Reply | None = None

    def begin_call(self, body: bytes) -> None:
        """Checks the request and gives the call to the node."""
        service, request = self._api.service, self._request
        picked = pick_headers({"headers": request.headers})
        self._trace = trace = Trace(service.front, None, route=ROUTE, given_id=picked.get(REQUEST_ID))
        try:
            caller, _, _ = self._api.admit(request.method, request.path, picked)
            self._incoming = incoming = Incoming(request.path, caller, picked, trace, request.query)
            node, route = find_route(service, incoming)
            if len(body) > service.settings.call_bytes_max:
                raise body_too_large(service.settings.call_bytes_max)
            self._prepared = prepare(service, incoming, node, route, body)
            self._partition = place(self._prepared, self._done)
        except Problem as problem:
            self._refuse(problem)
        except Exception as error:  # noqa: BLE001 - the last line of defence, as in `Api`
            self._fail(error)
        else:
            self._placed = True
            if self._reply is not None:  # the node was quicker than `place`
                self._finish(self._reply)

    def _done(self, reply: Reply) -> None:
        """Called once by the node: in the loop's own thread, except when its log fails."""
        if threading.get_ident() == self._thread:
            self._answer_call(reply)
        else:
            self._loop.call_soon_threadsafe(self._answer_call, reply)

    def _answer_call(self, reply: Reply) -> None:
        self._reply = reply
        if self._placed:
            self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        call = self._prepared
        try:
            note_reply(self._api.service, self._incoming, call, self._partition, reply)
            headers, body = encode_reply(call, reply, self._partition)
        except Problem as problem:
            self._refuse(problem)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        else:
            self._send(200, headers, body)

    def _fail(self, error: Exception) -> None:
        log_defect(self._request.path, self._trace.request_id, error)
        self._refuse(Problem("internal_error", "internal server error; see the server's log"))

    def _refuse(self, problem: Problem) -> None:
        self._trace.note_problem(problem)
        body = problem.body()
        self._send(problem.status, problem.headers(body), body)

    def _send(self, status: int, headers: Headers, body: bytes) -> None:
        headers.append(self._trace.header)
        self._api.service.front.answered(ROUTE, status)
        self._answer(status, headers, body)
