"""What both clients are: options, keys, causality, requests as values, results decoded. No socket, thread or loop here."""

from __future__ import annotations

import itertools
import random
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import httpx

from cmdlog.client.batch_window import NDJSON, BatchLine, RunningBatch
from cmdlog.client.options import ClientArguments, make_options
from cmdlog.client.request import PLAIN, SESSION, Ask, call_ask, end_session_ask, is_json, session_of
from cmdlog.client.response import Attempt, check_owner, read_result
from cmdlog.client.retry import RetryWorld, SendAttempt, Steps, await_ready, exchange, patience_s, send
from cmdlog.client.server_set import ListedServer, ServerSet, base_urls
from cmdlog.client.session import CallName, ClientSessions, KeyGenerator, check_key
from cmdlog.errors import BadAnswer, CmdlogError, InvalidParameters
from cmdlog.procedure_calls import NEW_KEY, Call, Consistency, NewKey, call_of_item
from cmdlog.results import Result

if TYPE_CHECKING:
    from procedures.declaration.procedure import Procedure
    from procedures.wire.scalar_codecs import Codec

TXN: Final = "Cmdlog-Txn"
REQUEST_ID: Final = "X-Request-Id"
ANSWER_BYTES_MAX: Final = 512 << 20  # the server gives queries of 64 MiB; JSON writes a byte with up to six
BATCH: Final = "/v1/batch"
END_S: Final = 1.0  # for an attempt to end a session

BatchItem = Call[Any] | tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], str | None]

chance: Final = random.Random().random  # seeded by the system: a caller's `random.seed` stays the caller's


class Body(httpx.ByteStream):
    """A request's body that knows whether any of it was asked for: before that, nothing can be executed."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        self.begun = True
        return super().__iter__()

    def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        return super().__aiter__()


def begun(request: httpx.Request) -> bool:
    """Whether any of the request's body has left us. A request without a body changes nothing."""
    return isinstance(request.stream, Body) and request.stream.begun


def request_ids() -> Iterator[str]:
    """An id for every attempt: the server's log and its answers carry it. Threads may share it, unlike a generator."""
    return map(f"{secrets.token_hex(6)}-{{}}".format, itertools.count(1))


def owned(answer: Attempt, request: httpx.Request, response: httpx.Response) -> Attempt:
    """The answer, if it is the answer to this request. Raises: httpx.RemoteProtocolError."""
    check_owner(request.headers[REQUEST_ID], response.headers.get(REQUEST_ID), answer)
    return answer


class ClientCore:
    """The common part of a client."""

    def __init__(self, url: str | Sequence[str], given: ClientArguments) -> None:
        self.urls = base_urls(url)
        self.options = make_options(given)
        self.txn_id = 0
        """The highest transaction id that this client has seen."""
        self._headers = self.options.headers()
        self._servers = ServerSet(self.urls, self.options.credential)
        self._sessions = ClientSessions(window=self.options.session_window)
        self._retries = RetryWorld(
            policy=self.options.retry,
            servers=self._servers,
            names=KeyGenerator() if self.options.keys == "single" else self._sessions,
            clock=time.monotonic,
            chance=chance,
        )
        self._request_ids = request_ids()
        self._newest_request: httpx.Request | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> httpx.URL:
        """The server that is asked next: of several, the one that answered last, or has not been asked."""
        return self._servers.preferred.url

    @property
    def newest_failure(self) -> str:
        """Why the newest attempt of a request gave no result; "" if it did, or none has ended yet."""
        return self._servers.newest_failure()

    @property
    def nobody_listens(self) -> bool:
        """Whether all attempts of all requests so far were refused a connection."""
        return self._servers.only_refused and self.newest_failure != ""

    @property
    def has_sent(self) -> bool:
        """Whether the newest request has left us: it had a connection."""
        return self._newest_request is not None and begun(self._newest_request)

    # -- requests --------------------------------------------------------------------------------------------------------

    def _call_ask(self, call: Call[Any], consistency: Consistency | None = None) -> Ask:
        """Raises: InvalidParameters, UnknownProcedure."""
        declared = call.declared or self._procedure(call.procedure)
        stale = consistency == "stale"
        reads = stale or (declared is not None and declared.read_only)
        params = call.params if declared is None else as_declared(declared, call.params)
        key = None if stale else self._name(call.idempotency_key)
        try:
            return call_ask(
                call.procedure, params, key=key, reads=reads, stale=stale, durability=call.durability, declared=declared
            )
        except CmdlogError:
            if key is not None:
                self._retries.names.finish(key)
            raise

    def _batch_ask(self, item: BatchItem) -> tuple[Ask | CmdlogError, bool]:
        """A call of a batch, or why it cannot be sent; whether its name was made here. Raises: TypeError (it is no call)."""
        call = call_of_item(item)
        try:
            ask = self._call_ask(call)
        except CmdlogError as error:
            return error, False
        return ask, call.idempotency_key is NEW_KEY

    def _name(self, key: str | NewKey | None) -> CallName | None:
        if isinstance(key, NewKey):
            return None if self.options.keys == "none" else self._retries.names.new()
        if key is not None and not isinstance(key, str):
            raise TypeError(f"idempotency_key is text, not {type(key).__name__}")
        return key if key is None else self._sessions.named(key) or check_key(key)

    def _exchange(self, ask: Ask, timeout_s: float | None = None, *, renames: bool = False) -> Steps:
        """`renames`: the call's name was made here, and may be made again."""
        return exchange(ask, self._retries, timeout_s=self._within(timeout_s), renames=renames)

    def _await_ready(self, timeout_s: float) -> Steps:
        return await_ready(self._retries, timeout_s=timeout_s)

    def _window(self, timeout_s: float | None) -> RunningBatch:
        return RunningBatch(self._retries, timeout_s=self._within(timeout_s), decode=self._decode)

    def _within(self, timeout_s: float | None) -> float:
        return self.options.timeout_s if timeout_s is None else timeout_s

    def _request(self, server: ListedServer, step: SendAttempt) -> httpx.Request:
        """The HTTP request of one attempt."""
        ask = step.ask
        return self._http_request(ask.method, ask.path, ask.body, ask.headers, server=server, step=step)

    def _many_request(self, server: ListedServer, asks: Sequence[Ask], step: SendAttempt) -> httpx.Request:
        """The same calls as the lines of one request."""
        session = session_of(asks)
        headers = [("Content-Type", NDJSON)]
        if session is not None:
            headers.append((SESSION, f"{session.uuid}; floor={session.floor}"))
        body = b"\n".join([ask.line(session) for ask in asks])
        return self._http_request("POST", BATCH, body, headers, server=server, step=step)

    def _end_steps(self, uuids: Iterable[str]) -> list[SendAttempt]:
        """One attempt each to end sessions; what becomes of it does not matter."""
        return [SendAttempt(end_session_ask(uuid), END_S, END_S) for uuid in uuids]

    def _batch_step(self, line: BatchLine) -> SendAttempt:
        """The request that begins with this line of a batch."""
        policy = self.options.retry
        patience = patience_s(line, policy, several=self._servers.several)
        return send(line.ask, policy, left_s=policy.attempt_s, patience_s=patience)

    def _http_request(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: Iterable[tuple[str, str]],
        *,
        server: ListedServer,
        step: SendAttempt,
    ) -> httpx.Request:
        timeouts = {"connect": step.connect_s, "pool": step.attempt_s, "read": step.attempt_s, "write": step.attempt_s}
        sent = [
            *server.headers,
            *self._headers,
            *headers,
            ("Content-Length", str(len(body))),
            (REQUEST_ID, next(self._request_ids)),
        ]
        if self.txn_id and self.options.causality == "echo":
            sent.append((TXN, str(self.txn_id)))
        request = httpx.Request(
            method, server.address_of(path), headers=sent, stream=Body(body), extensions={"timeout": timeouts}
        )
        self._newest_request = request
        return request

    # -- answers ---------------------------------------------------------------------------------------------------------

    def _decode(self, ask: Ask, value: Any, returns: Any = None) -> Result[Any]:
        """The result that an answer holds. Raises: BadAnswer."""
        result = read_result(value)
        self._saw(result.txn_id)
        declared = ask.declared
        codec = codec_of(returns) if returns is not None else declared.result_codec if declared else None
        if codec is None:
            return result
        try:
            if result.partition is None and isinstance(result.value, list):
                parts = [_from_wire(codec, part) for part in result.value]
                return replace(result, value=None if declared and declared.returns_nothing else parts)
            return replace(result, value=_from_wire(codec, result.value))
        except (ValueError, TypeError) as error:
            raise BadAnswer(
                f"{ask.procedure} was executed, and its result is not of the expected type: {error}", txn_id=result.txn_id
            ) from None

    def _procedure(self, name: str) -> Procedure | None:
        db = self.options.db
        return None if db is None else db.procedures.get(name)

    def _saw(self, txn_id: int) -> None:
        """Later calls are ordered after this transaction."""
        if txn_id > self.txn_id:
            with self._lock:
                self.txn_id = max(self.txn_id, txn_id)


@lru_cache(256)
def codec_of(hint: Any) -> Codec:
    """The codec of a return type. Raises: DefinitionError."""
    from procedures.wire.type_codecs import codec_for  # noqa: PLC0415 - it brings SQLAlchemy, which a client without types does not need

    return codec_for(hint)


def as_declared(declared: Procedure, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters as the procedure's own types write them. What does not fit, or is unknown here, is the server's to judge.

    What is JSON already goes as it is: defaults are the server's to fill in, so that a retry sends the same. Raises:
    InvalidParameters, for an object that would not come back equal: the server could not know.
    """
    if all(type(value) in PLAIN for value in params.values()):
        return params
    from procedures.wire.scalar_codecs import NotRepeatable  # noqa: PLC0415 - a client without declarations does not need it

    codecs = {parameter.name: parameter.codec for parameter in declared.parameters}
    wire = dict(params)
    for name in params.keys() & codecs.keys():
        if is_json(params[name]):
            continue
        try:
            wire[name] = codecs[name].to_wire(params[name])
        except NotRepeatable as error:
            raise InvalidParameters(problems=[(name, str(error))]) from None
        except (ValueError, TypeError):
            continue
    return wire


def _from_wire(codec: Codec, value: Any) -> Any:
    from procedures.wire.frozen import thawed  # noqa: PLC0415 - as above

    return thawed(codec.from_wire(codec.to_wire(value)))  # to_wire checks
