"""Calls below ASGI: `POST /v1/procedures/{name}` whose body is small and came with its head, which is nearly every one.

One rule: the same functions decide as under ASGI, in the same order (`Api.admit_call`, `find_route`, `prepare`, `place`,
`encode_reply`); only the way there is shorter. No task, no scope, no messages: the answer is written where the node gives it.
"""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Final

from cmdlog.api.app import Api, log_defect
from cmdlog.api.connections.http_parser import CallRequest, Request
from cmdlog.api.connections.request_cycle import OK, QuickExchange
from cmdlog.api.gate.problem import Headers, Problem, body_too_large
from cmdlog.api.gate.request import READ, Incoming, pick_headers
from cmdlog.api.gate.request_trace import REQUEST_ID, Trace
from cmdlog.api.gate.route_table import PROCEDURES
from cmdlog.api.routes.app_state import LARGE_BODY_BYTES
from cmdlog.api.routes.call import Prepared, encode_reply, find_route, note_reply, place, prepare, result_body, take_room
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.placing.shares import UNCOUNTED_BYTES

ROUTE: Final = "call"


class QuickCalls:
    """The calls of one application, for its connections."""

    reads = READ

    def __init__(self, api: Api) -> None:
        self._api = api

    def takes(self, request: Request, body_bytes: int) -> bool:
        """Whether the request is a call whose body is read at once."""
        return body_bytes <= LARGE_BODY_BYTES and request.method == "POST" and request.path.startswith(PROCEDURES)

    def begin_call(self, request: Request, body: bytes, exchange: QuickExchange) -> None:
        """Serves one call: the exchange is answered once, now or later, in this thread."""
        _Call(self._api, request, exchange).begin_call(body)


class _Call:
    """One of them."""

    __slots__ = (
        "_api",
        "_exchange",
        "_incoming",
        "_partition",
        "_placed",
        "_prepared",
        "_reply",
        "_request",
        "_thread",
        "_trace",
    )

    _incoming: Incoming
    _partition: int | None
    _prepared: Prepared
    _trace: Trace

    def __init__(self, api: Api, request: Request, exchange: QuickExchange) -> None:
        self._api, self._request, self._exchange = api, request, exchange
        self._thread = get_ident()
        self._placed = False
        self._reply: Reply | None = None

    def begin_call(self, body: bytes) -> None:
        """Checks the request and gives the call to the node."""
        service, request = self._api.service, self._request
        picked = request.picked if type(request) is CallRequest else pick_headers({"headers": request.headers})
        self._trace = trace = Trace(service.front, None, route=ROUTE, given_id=picked.get(REQUEST_ID))
        try:
            caller = self._api.admit_call(request.path, picked)
            self._exchange.attribute(caller.name)
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
        if get_ident() != self._thread:
            self._exchange.loop.call_soon_threadsafe(self._answer_call, reply)
        elif self._placed:
            self._finish(reply)
        else:
            self._reply = reply

    def _answer_call(self, reply: Reply) -> None:
        self._reply = reply
        if self._placed:
            self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        call, partition, service = self._prepared, self._partition, self._api.service
        room_bytes = 0
        if type(reply) is CallOutcome and len(reply.body) > UNCOUNTED_BYTES:
            reply, room_bytes = take_room(service, self._incoming, call, reply)
        try:
            note_reply(service, self._incoming, call, partition, reply)
            if type(reply) is CallOutcome and not reply.status and call.durability is None:
                service.front.answered(ROUTE, OK)
                self._exchange.answer_result(reply.txn_id, result_body(reply, partition), self._trace.request_id)
                return
            headers, body = encode_reply(call, reply, partition)
        except Problem as problem:
            self._refuse(problem)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        else:
            self._send(OK, headers, body)
        finally:
            if room_bytes:
                self._exchange.when_taken(partial(service.unread.give_back, self._incoming.caller.name, room_bytes))

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
        self._exchange.answer(status, headers, body)
