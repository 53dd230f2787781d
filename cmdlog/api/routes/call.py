"""`POST /v1/procedures/{name}`: one call. The hot route: no request object, the answer composed as bytes.

One rule: whatever is wrong with a request is found before `Node.call`, so nothing of it reaches the log.

Nearly every call is small, and complete when its head is. It is answered below ASGI (`QuickCalls`): no task, no scope, no
messages; the answer is written where the node gives it. The same functions decide under ASGI (`call_procedure`), in the same
order: `find_route`, `prepare`, `place`, `encode_reply`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from cmdlog.api.connections.http_parser import CallRequest, Request
from cmdlog.api.connections.request_cycle import OK, CallCycle
from cmdlog.api.gate.auth import scope_of
from cmdlog.api.gate.problem import (
    Headers,
    Problem,
    body_too_large,
    forbidden,
    invalid,
    of_outcome,
    of_refused,
    preference_applied,
    unknown_procedure,
)
from cmdlog.api.gate.request import (
    IDEMPOTENCY_KEY,
    PREFER,
    READ,
    SESSION,
    TXN,
    Incoming,
    echoed_txn,
    idempotency_key,
    json_object,
    pick_headers,
    preferred_durability,
    read_body,
    wants_stale,
)
from cmdlog.api.gate.request_trace import REQUEST_ID, Picked, Trace
from cmdlog.api.gate.route_table import INVOKE, PROCEDURES
from cmdlog.api.gate.session_numbers import check_one_name, named_call
from cmdlog.api.gate.token_file import Credential
from cmdlog.api.routes.service import LARGE_BODY_BYTES, Service
from cmdlog.node.clock import ClockAhead
from cmdlog.node.outcome import CallOutcome, CallRefused, Done, Durability, NotReady, Reply, UnknownOutcome
from cmdlog.node.placing.shares import UNCOUNTED_BYTES, Shares
from cmdlog.node.queries.worker import state_dates
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import WalError
from procedures import InvalidParameters
from procedures.idempotency.known_outcome import key_fingerprint

if TYPE_CHECKING:
    from cmdlog.node.node import Node
    from cmdlog.node.slot_map import Route

JSON_TYPE: Final = (b"content-type", b"application/json")
ROUTE: Final = "call"

AdmitCall = Callable[[str, Picked], Credential]
"""The gate for a call, by its path and headers. Raises: Problem."""


@dataclass(slots=True)  # not frozen: one is made per call, and freezing costs 0.5 us
class Prepared:
    """A call that has been checked. `began` is when its request was complete."""

    node: Node
    route: Route
    params: list[Any]
    key: bytes  # fingerprint of the idempotency key, or what a call of a session brings; b"": no name
    txn: int | None
    durability: Durability | None
    began: float
    stale: bool = False  # whatever this node has will do


async def call_procedure(service: Service, incoming: Incoming, scope: Scope, receive: Receive, send: Send) -> None:
    """Serves one call. Raises: Problem."""
    node, route = find_route(service, incoming)
    body = await read_body(scope, receive, limit_bytes=service.settings.call_bytes_max)
    call = await service.read_aside(body, partial(prepare, service, incoming, node, route), incoming.caller.name)
    waiter = Waiter()
    partition = place(call, waiter.done)
    reply, room_bytes = take_room(service, incoming, call, await waiter.future)
    try:
        note_reply(service, incoming, call, partition, reply)
        headers, body = encode_reply(call, reply, partition)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
    finally:
        service.unread.give_back(incoming.caller.name, room_bytes)


def find_route(service: Service, incoming: Incoming) -> tuple[Node, Route]:
    """The procedure of the path, if the caller may call it: known before the body is read. Raises: Problem."""
    node = service.node()
    name = incoming.path[len(PROCEDURES) :]
    route = node.routes.get(name)
    if route is None:
        raise unknown_procedure(name)
    if not route.read_only and INVOKE not in incoming.caller.roles:
        raise forbidden(INVOKE)
    incoming.trace.note_procedure(name)
    if (size := service.traffic.result_bytes.get(name, 0)) > UNCOUNTED_BYTES and not service.unread.allows(
        incoming.caller.name, size
    ):
        raise Problem("not_ready", no_room(service.unread, incoming.caller.name, size), retry_after_s=1)
    return node, route


def prepare(service: Service, incoming: Incoming, node: Node, route: Route, body: bytes) -> Prepared:
    """Checks everything that the request says. Raises: Problem."""
    began = service.front.now()
    headers = incoming.headers
    try:
        params = route.procedure.bind(json_object(body))
    except InvalidParameters as error:
        raise invalid(error.problems) from None
    # Most calls say nothing beside their parameters.
    key = _name_of(incoming, service.settings.session_window) if SESSION in headers or IDEMPOTENCY_KEY in headers else b""
    txn = echoed_txn(headers[TXN]) if TXN in headers else None
    stale = bool(incoming.query) and wants_stale(incoming.query)
    if stale and not route.read_only:
        raise invalid([("consistency", "`stale` is only for read-only procedures")])
    durability = preferred_durability(headers[PREFER], node.durabilities_offered) if PREFER in headers else None
    return Prepared(node, route, params, key, txn, durability, began, stale)


def _name_of(incoming: Incoming, session_window: int) -> bytes:
    """What a retry of the call is known by. Raises: Problem."""
    headers, caller = incoming.headers, incoming.caller
    session = headers.get(SESSION)
    if session is not None:
        check_one_name(headers.get(IDEMPOTENCY_KEY))
        return named_call(scope_of(caller), session, session_window)
    key = idempotency_key(headers.get(IDEMPOTENCY_KEY))
    return key_fingerprint(scope_of(caller), key) if key else b""


def place(call: Prepared, done: Done) -> int | None:
    """Gives the call to the node, which calls `done` once, maybe before this returns. Its partition. Raises: Problem."""
    try:
        if call.stale:
            return call.node.stale.call(call.route, call.params, done=done, txn=call.txn)
        return call.node.call(call.route, call.params, key=call.key, done=done, txn=call.txn, durability=call.durability)
    except CallRefused as refused:
        raise of_refused(refused) from None
    except WalError as error:
        raise of_refused(UnknownOutcome(f"the log failed while the call was under way: {full_text(error)}")) from None
    except ClockAhead as error:
        raise invalid([("Cmdlog-Txn", str(error))]) from None


def note_reply(service: Service, incoming: Incoming, call: Prepared, partition: int | None, reply: Reply) -> None:
    """Counts how long the call took, logs a slow one, and traces it where that was asked for."""
    trace = incoming.trace
    if trace.took(elapsed := service.front.now() - call.began):
        trace.slow(call.node, elapsed, call.route.name, partition, reply)
    if service.spans is not None:
        service.spans.add_call(
            incoming.headers, procedure=call.route.name, partition=partition, request_id=trace.request_id, elapsed_s=elapsed,
            reply=reply, node=call.node,
        )  # fmt: skip


def encode_reply(call: Prepared, reply: Reply, partition: int | None) -> tuple[Headers, bytes]:
    """Headers and body of the answer to a call. Raises: Problem, when it is not a result."""
    durability = call.durability
    if not isinstance(reply, CallOutcome):
        raise of_refused(reply)
    if reply.status != 0:
        raise of_outcome(reply, call.node.trace_of(reply)).answered_by(durability)
    body = result_body(reply, partition)
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), (b"cmdlog-txn", b"%d" % reply.txn_id)]
    if durability is not None:
        headers.append(preference_applied(durability))
    return headers, body


def result_body(outcome: CallOutcome, partition: int | None) -> bytes:
    """The JSON object of a result; its body is JSON already."""
    if outcome.as_of is not None:
        plain = result_body(outcome._replace(as_of=None), partition)
        return plain[:-1] + b"," + orjson.dumps(state_dates(outcome.as_of))[1:]
    if partition is None:
        return b'{"txn_id":"%d","partition":null,"result":%b}' % (outcome.txn_id, outcome.body)
    return b'{"txn_id":"%d","partition":%d,"result":%b}' % (outcome.txn_id, partition, outcome.body)


def take_room(service: Service, incoming: Incoming, call: Prepared, reply: Reply) -> tuple[Reply, int]:
    """The answer that is given, and what was taken of the caller's share for it: nothing for a small one."""
    if not isinstance(reply, CallOutcome) or (size := len(reply.body)) <= UNCOUNTED_BYTES:
        return reply, 0
    name, procedure = incoming.caller.name, call.route.name
    service.traffic.note_results((procedure,), procedure, size)
    if service.unread.take_share(name, size):
        return reply, size
    return result_dropped(service.unread, name, reply, read_only=call.route.read_only), 0


def no_room(unread: Shares, caller: str, size: int) -> str:
    """Why a result of this size has no room."""
    held = f"unread answers of this credential take {unread.held.get(caller, 0)} of {unread.whole} bytes"
    return f"there is no room for a result of {size} bytes: {held}"


def result_dropped(unread: Shares, caller: str, outcome: CallOutcome, *, read_only: bool) -> CallRefused:
    """What its caller gets in place of a result for which there is no room."""
    why = no_room(unread, caller, len(outcome.body))
    if read_only:
        return NotReady(f"{why}; the call is safe to repeat")
    return UnknownOutcome(
        f"the call was executed as transaction {outcome.txn_id}, but {why}; a retry with its key gets the result"
    )


class Waiter:
    """A future that any thread may settle; the node does so in the loop's own thread, except when its log fails."""

    __slots__ = ("_loop", "_thread", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[Reply] = self._loop.create_future()

    def done(self, reply: Reply) -> None:
        """Called once by the node."""
        if threading.get_ident() == self._thread:
            self._settle_call(reply)
        else:
            self._loop.call_soon_threadsafe(self._settle_call, reply)

    def _settle_call(self, reply: Reply) -> None:
        if not self.future.done():  # cancelled when the server stops waiting
            self.future.set_result(reply)


class QuickCalls:
    """The calls of one application that are answered below ASGI, for its connections."""

    reads = READ

    def __init__(self, service: Service, admit_call: AdmitCall) -> None:
        self._service, self._admit_call = service, admit_call

    def takes(self, request: Request, body_bytes: int) -> bool:
        """Whether the request is a call whose body is read at once."""
        return body_bytes <= LARGE_BODY_BYTES and request.method == "POST" and request.path.startswith(PROCEDURES)

    def begin_call(self, request: Request, body: bytes, cycle: CallCycle) -> None:
        """Serves one call: the cycle is answered once, now or later, in this thread."""
        _Call(self._service, self._admit_call, request, cycle).begin_call(body)


class _Call:
    """One of them."""

    __slots__ = (
        "_admit_call",
        "_cycle",
        "_incoming",
        "_partition",
        "_placed",
        "_prepared",
        "_reply",
        "_request",
        "_service",
        "_thread",
        "_trace",
    )

    _incoming: Incoming
    _partition: int | None
    _prepared: Prepared
    _trace: Trace

    def __init__(self, service: Service, admit_call: AdmitCall, request: Request, cycle: CallCycle) -> None:
        self._service, self._admit_call, self._request, self._cycle = service, admit_call, request, cycle
        self._thread = get_ident()
        self._placed = False
        self._reply: Reply | None = None

    def begin_call(self, body: bytes) -> None:
        """Checks the request and gives the call to the node."""
        service, request = self._service, self._request
        picked = request.picked if type(request) is CallRequest else pick_headers({"headers": request.headers})
        self._trace = trace = Trace(service.front, None, route=ROUTE, given_id=picked.get(REQUEST_ID))
        try:
            caller = self._admit_call(request.path, picked)
            self._cycle.attribute(caller.name)
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
            self._cycle.loop.call_soon_threadsafe(self._answer_call, reply)
        else:
            self._answer_call(reply)

    def _answer_call(self, reply: Reply) -> None:
        self._reply = reply
        if self._placed:
            self._finish(reply)

    def _finish(self, reply: Reply) -> None:
        call, partition, service = self._prepared, self._partition, self._service
        room_bytes = 0
        if type(reply) is CallOutcome and len(reply.body) > UNCOUNTED_BYTES:
            reply, room_bytes = take_room(service, self._incoming, call, reply)
        try:
            if type(reply) is CallOutcome and not reply.status and call.durability is None and service.spans is None:
                front = service.front
                elapsed = front.now() - call.began
                if elapsed <= front.slow_s:  # nothing is said of it but how long it took
                    front.timed.append((elapsed, 1, 1))
                    self._cycle.answer_result(reply.txn_id, result_body(reply, partition), self._trace.request_id)
                    return
            note_reply(service, self._incoming, call, partition, reply)
            headers, body = encode_reply(call, reply, partition)
        except Problem as problem:
            self._refuse(problem)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        else:
            self._send(OK, headers, body)
        finally:
            if room_bytes:
                self._cycle.when_taken(partial(service.unread.give_back, self._incoming.caller.name, room_bytes))

    def _fail(self, error: Exception) -> None:
        self._trace.log_defect(self._request.path, error)
        self._refuse(Problem("internal_error", "internal server error; see the server's log"))

    def _refuse(self, problem: Problem) -> None:
        self._trace.note_problem(problem)
        body = problem.body()
        self._send(problem.status, problem.headers(body), body)

    def _send(self, status: int, headers: Headers, body: bytes) -> None:
        headers.append(self._trace.header)
        self._service.front.answered(ROUTE, status)
        self._cycle.answer(status, headers, body)
