"""`POST /v1/procedures/{name}`: one call. The hot route: plain ASGI, no request object, the answer composed as bytes.

One rule: whatever is wrong with a request is found before `Node.call`, so nothing of it reaches the log.
"""

from __future__ import annotations

import asyncio
import threading

from starlette.types import Receive, Send

from cmdlog.api.credentials import scope_of
from cmdlog.api.problem import Problem, forbidden, invalid, of_outcome, of_refused, preference_applied
from cmdlog.api.request import (
    IDEMPOTENCY_KEY,
    PREFER,
    TXN,
    Incoming,
    echoed_txn,
    idempotency_key,
    json_object,
    preferred_durability,
    read_body,
)
from cmdlog.api.service import Service
from cmdlog.api.table import INVOKE, PROCEDURES
from cmdlog.node.clock import ClockAhead
from cmdlog.node.outcome import Durability, Outcome, OutcomeUnknown, Refused, Reply
from cmdlog.wal.errors import WalError
from procedures import InvalidParameters
from procedures.outcomes import key_fingerprint

JSON_TYPE = (b"content-type", b"application/json")


async def call_procedure(service: Service, incoming: Incoming, receive: Receive, send: Send) -> None:
    """Serves one call. Raises: Problem."""
    node = service.node()
    name, headers = incoming.path[len(PROCEDURES) :], incoming.headers
    route = node.routes.get(name)
    if route is None:
        raise Problem("unknown_procedure", f"no procedure is called {name[:80]!r}; GET /v1/procedures lists them")
    if not route.read_only and INVOKE not in incoming.caller.roles:
        raise forbidden(INVOKE)
    settings = service.settings
    trace = incoming.trace
    trace.procedure = name
    body = await read_body(receive, limit_bytes=settings.call_bytes_max, timeout_s=settings.body_timeout_s)
    began = service.front.now()
    try:
        params = route.procedure.bind(json_object(body))
    except InvalidParameters as error:
        raise invalid(error.problems) from None
    key = idempotency_key(headers.get(IDEMPOTENCY_KEY))
    txn = echoed_txn(headers.get(TXN))
    durability = preferred_durability(headers.get(PREFER))
    waiter = Waiter()
    try:
        fingerprint = key_fingerprint(scope_of(incoming.caller), key) if key else b""
        partition = node.call(route, params, key=fingerprint, done=waiter.done, txn=txn, durability=durability)
        reply = await waiter.future
    except Refused as refused:
        raise of_refused(refused) from None
    except WalError as error:
        raise of_refused(OutcomeUnknown(f"the log failed while the call was under way: {error}")) from None
    except ClockAhead as error:
        raise invalid([("Cmdlog-Txn", str(error))]) from None
    if trace.took(elapsed := service.front.now() - began):
        trace.slow(node, elapsed, name, partition, reply)
    await send_reply(send, reply, partition, durability)


async def send_reply(send: Send, reply: Reply, partition: int | None, durability: Durability | None) -> None:
    """Sends the answer to one call, which followed this preference. Raises: Problem, when it is not a result."""
    if not isinstance(reply, Outcome):
        raise of_refused(reply)
    if reply.status != 0:
        problem = of_outcome(reply)
        problem.applied = durability
        raise problem
    body = result_body(reply, partition)
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), (b"cmdlog-txn", b"%d" % reply.txn_id)]
    if durability is not None:
        headers.append(preference_applied(durability))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def result_body(outcome: Outcome, partition: int | None) -> bytes:
    """The JSON object of a result; its body is JSON already."""
    if partition is None:
        return b'{"txn_id":"%d","partition":null,"result":%b}' % (outcome.txn_id, outcome.body)
    return b'{"txn_id":"%d","partition":%d,"result":%b}' % (outcome.txn_id, partition, outcome.body)


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
            self._settle(reply)
        else:
            self._loop.call_soon_threadsafe(self._settle, reply)

    def _settle(self, reply: Reply) -> None:
        if not self.future.done():  # cancelled when the server stops waiting
            self.future.set_result(reply)
