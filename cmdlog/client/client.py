"""`Client`: for threads. Many may share one.

It carries out the steps of `exchange.py` and the requests that `window.py` wants, with httpx and `time.sleep`; it decides
nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Self, Unpack, overload

import httpx

from cmdlog.client.auto_batch import AutoBatcher
from cmdlog.client.batch_window import TAKEN_PER_ANSWER, Answered, AnswerLines, RunningBatch, is_stream, no_stream
from cmdlog.client.client_base import ANSWER_BYTES_MAX, END_S, BatchItem, ClientCore, begun, owned, request_ids
from cmdlog.client.connection_pool import ConnectionPool
from cmdlog.client.options import ClientArguments, InvokeOptions
from cmdlog.client.request import (
    MEMBERS,
    POINT,
    SNAPSHOT,
    Ask,
    cancel_copy_ask,
    change_ask,
    deploy_ask,
    query_ask,
    read_ask,
    recovery_ask,
)
from cmdlog.client.response import Attempt, Lost, Response, lost, member, read_answer, read_catalog, read_object, read_rows
from cmdlog.client.retry import SendAttempt, Steps
from cmdlog.client.server_set import DEFAULT_URL
from cmdlog.procedure_calls import NEW_KEY, Call, Consistency, Durability, NewKey, P, QueryParameters, R, named_call
from cmdlog.results import QueryResult, Result

if TYPE_CHECKING:
    from procedures import Transaction
    from procedures.declaration.procedure import EverywhereFunction


class Client(ClientCore):
    """Calls procedures of a server, or of the nodes of a cluster. Close it, or use it in a `with` block.

    `url` is one address or those of all nodes: the next one is asked under the same idempotency key when one does not answer or
    does not lead (`server_set.py`). Every listed address is sent the token; no other one is, whatever an answer names.
    Options: `ClientArguments`. Errors: `cmdlog.errors`, by `code`; nothing else is raised for what a network or a server does.
    With several addresses an error that they share says what each of them did.

    Example:
        with cmdlog.Client("http://127.0.0.1:8642") as client:
            left = client.call("reserve", item=1, count=3)
    """

    def __init__(self, url: str | Sequence[str] = DEFAULT_URL, **given: Unpack[ClientArguments]) -> None:
        super().__init__(url, given)
        self._open()

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._request_ids = request_ids()
        self._pools = [ConnectionPool(self.options.http(url), self.options.connections_max) for url in self.urls]
        options = self.options.auto_batch
        self._batcher = None if options is None else AutoBatcher(self._send, self._send_many, options)
        self._pid = os.getpid()  # last: another thread of a fork would else use what it copied

    # -- calls -----------------------------------------------------------------------------------------------------------

    @overload
    def call(self, procedure: EverywhereFunction[P, Any, R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def call(self, procedure: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def call(self, procedure: str, /, *, idempotency_key: str | NewKey | None = ..., **params: Any) -> Any: ...
    def call(self, procedure: Any, /, *args: Any, idempotency_key: Any = NEW_KEY, **params: Any) -> Any:
        """Calls a procedure and returns its result; repeated as often as it takes, executed once.

        `procedure` is a name, or the function itself: then the arguments and the result have the function's types.

        Raises: CallError (Aborted, ProcedureFailed, KeyReused, SessionExpired), RequestRefused, Unavailable, OutcomeUnknown,
        ServerFault.
        """
        call = named_call(procedure, args, params)
        return self.invoke(call, idempotency_key=idempotency_key).value

    @overload
    def invoke(self, procedure: Call[R], params: None = None, **options: Unpack[InvokeOptions]) -> Result[R]: ...
    @overload
    def invoke(
        self, procedure: str, params: Mapping[str, Any] | None = None, **options: Unpack[InvokeOptions]
    ) -> Result[Any]: ...
    def invoke(
        self,
        procedure: Any,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | NewKey | None = NEW_KEY,
        returns: Any = None,
        timeout_s: float | None = None,
        durability: Durability | None = None,
        consistency: Consistency | None = None,
    ) -> Result[Any]:
        """`call`, with the transaction's id and partition beside the result, and with options of its own.

        `procedure` is a name, or a `Call`, which may have a key and a durability already.

        `idempotency_key` None sends none: then only what surely was not executed is sent again. `returns` is the type that the
        result is decoded to. `durability` "async" asks for an answer before the disk has it, where the server allows that.
        `consistency` "stale" reads what the server has, without asking its cluster: the result says `as_of`.
        """
        call = procedure if isinstance(procedure, Call) else named_call(procedure, (), params)
        call = call.with_options(idempotency_key, durability)
        ask = self._call_ask(call, consistency)
        value = self._run(self._exchange(ask, timeout_s, renames=call.idempotency_key is NEW_KEY))
        return self._decode(ask, value, returns)

    def batch(self, calls: Iterable[BatchItem], *, timeout_s: float | None = None) -> Iterator[Answered]:
        """Calls in order; each is answered by a `Result`, or by the error that `invoke` would raise, in the same order.

        Memory is bounded, whatever `calls` gives: it is read as answers are taken. Calls on one partition are executed in order,
        except that one which was refused (503) on its own may be executed after others. A read sees what was answered before it
        was sent, and may miss the writes of calls just before it: several calls are one request. `timeout_s` counts from a
        call's first failure. A caller that stops early leaves up to 4,096 calls undecided.
        """
        window = self._window(timeout_s)
        try:
            yield from self._answers(window, iter(calls))
        finally:
            window.abandon()
            self._end_sessions()

    def _answers(self, window: RunningBatch, source: Iterator[BatchItem]) -> Iterator[Answered]:
        more = True
        while more or window:
            while more and window.waits:
                more = self._take_in(window, source)
            yield from window.ready()
            lines = window.due()
            if not lines:
                time.sleep(window.wait_s())
                continue
            step = self._batch_step(lines[0])
            with contextlib.closing(self._send_many([line.ask for line in lines], step)) as attempts:
                for line, attempt in zip(lines, attempts, strict=True):
                    window.settle_line(line, attempt)
                    yield from window.ready()
                    for _ in range(TAKEN_PER_ANSWER):  # the next request is made ready while the server works at this one
                        more = self._take_in(window, source) if more and window.room else more
            window.passed(len(lines))

    def _take_in(self, window: RunningBatch, source: Iterator[BatchItem]) -> bool:
        """The source's next call; False when there is none."""
        try:
            item = next(source)
        except StopIteration:
            return False
        ask, renames = self._batch_ask(item)
        window.add(ask, renames=renames)
        return True

    # -- what else a server tells ----------------------------------------------------------------------------------------

    def query(
        self, sql: str, params: QueryParameters = (), *, partition: int | None = None, consistency: Consistency | None = None
    ) -> QueryResult:
        """Runs a SELECT on a frozen state of one partition or, concatenated, of all. `consistency` as in `invoke`.

        Args:
            params: a list for `?`, or a dict for `:name`.

        Columns have no types: values are as SQLite stores them, and bytes are base64 text.
        """
        return read_rows(self._run(self._exchange(query_ask(sql, params, partition, consistency))))

    def procedures(self) -> list[dict[str, Any]]:
        """Every procedure with its schemas."""
        return read_catalog(self._read("/v1/procedures"))

    def status(self) -> dict[str, Any]:
        """Node, partitions, watermarks, log."""
        return read_object(self._read("/v1/status"))

    def snapshots(self) -> list[dict[str, Any]]:
        """Every snapshot."""
        listed: list[dict[str, Any]] = member(self._read("/v1/snapshots"), "snapshots")
        return listed

    def take_snapshot(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Takes a snapshot of every partition now."""
        taken: list[dict[str, Any]] = member(self._run(self._exchange(SNAPSHOT, timeout_s)), "snapshots")
        return taken

    def take_point(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Takes a recovery point now: `snapshots`, and `point` with the transaction id up to which all can be restored."""
        return read_object(self._run(self._exchange(POINT, timeout_s)))

    def deploy(self, *, timeout_s: float | None = None, **options: Any) -> dict[str, Any]:
        """Other code into the server: `bundle`, or `rollback` and `to`; `plan` changes nothing (DEPLOYING.md)."""
        return read_object(self._run(self._exchange(deploy_ask(options), timeout_s)))

    def members(self) -> dict[str, Any]:
        """Of a cluster: version, leader, members with their states, failure set, copies under way."""
        return read_object(self._run(self._exchange(MEMBERS)))

    def change_member(self, kind: str, node: int, **options: Any) -> dict[str, Any]:
        """`add`, `remove`, `replace`, `retire` or `transfer`. Options: peer, client, base, force, plan (CLUSTER.md)."""
        return read_object(self._run(self._exchange(change_ask(kind, node, options))))

    def recover_unsafely(self, **options: Any) -> dict[str, Any]:
        """The server continues without its majority. Options: yes_lose, survivors, force (CLUSTER.md "Lost majority")."""
        return read_object(self._run(self._exchange(recovery_ask(options))))

    def cancel_copy(self, node: int) -> dict[str, Any]:
        """Ends the copy of the server's data to this node."""
        return read_object(self._run(self._exchange(cancel_copy_ask(node))))

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the server serves calls, waiting up to `timeout_s` for it."""
        ready: bool = self._run(self._await_ready(timeout_s))
        return ready

    def close(self) -> None:
        """Ends the sessions and the connections. Calls of other threads that are under way fail."""
        self._open_after_fork()
        if self._batcher is not None:
            self._batcher.close()
        self._end_in_time(self._sessions.close())
        for lanes in self._pools:
            lanes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    # -- carrying out ----------------------------------------------------------------------------------------------------

    def _read(self, path: str) -> Any:
        return self._run(self._exchange(read_ask(path)))

    def _run(self, steps: Steps) -> Any:
        """Carries out the steps of an exchange."""
        came_of_it: Attempt | None = None
        try:
            while True:
                step = steps.send(came_of_it)
                if isinstance(step, SendAttempt):
                    came_of_it = self._attempt(step)
                else:
                    time.sleep(step.seconds)
                    came_of_it = None
        except StopIteration as end:
            return end.value
        finally:
            steps.close()
            self._end_sessions()

    def _end_sessions(self) -> None:
        """Lets the server forget the sessions whose last call is over. There is one about every 15 minutes."""
        if self._sessions.has_drained:
            self._end_in_time(self._sessions.pop_drained())

    def _end_in_time(self, uuids: Sequence[str]) -> None:
        until = time.monotonic() + END_S
        for step in self._end_steps(uuids):
            if time.monotonic() < until and isinstance(self._send(step), Lost):
                return

    @property
    def _is_copy(self) -> bool:
        """Whether a fork has copied this client. Its connections are the parent's: both would read each other's answers."""
        return self._pid != os.getpid()

    def _open_after_fork(self) -> None:
        """A child uses connections of its own."""
        if self._is_copy:
            self._open()

    def _attempt(self, step: SendAttempt) -> Attempt:
        self._open_after_fork()
        if self._batcher is not None and step.ask.procedure and not step.ask.stale:
            return self._batcher.attempt(step)
        return self._send(step)

    def _send(self, step: SendAttempt) -> Attempt:
        """One request of its own."""
        self._open_after_fork()
        server = self._servers.preferred
        deadline, request = time.monotonic() + step.attempt_s, self._request(server, step)
        try:
            with self._pools[server.at].response(request, wait_s=step.attempt_s) as response:
                attempt = owned(_read_answer(response, deadline), request, response)
        except httpx.RequestError as error:
            attempt = lost(error, begun=begun(request))
        return self._servers.note_attempt(server, attempt)

    def _send_many(self, asks: Sequence[Ask], step: SendAttempt) -> Generator[Attempt, None, None]:
        """One request for several calls; gives one attempt for each, in order. `attempt_s` is the longest silence."""
        self._open_after_fork()
        servers, server = self._servers, self._servers.preferred
        lines, request = AnswerLines(len(asks)), self._many_request(server, asks, step)
        why: Attempt = Lost(reached=True, reason="the answer ended before its last line")
        try:
            with self._pools[server.at].response(request, wait_s=step.attempt_s) as response:
                if is_stream(response.status_code, response.headers):
                    owned(why, request, response)
                    for chunk in response.iter_raw():
                        for attempt in lines.feed(chunk, date=response.headers.get("date", "")):
                            yield servers.note_attempt(server, attempt)
                        if lines.broken or self._is_copy:  # the rest of the answer is for the parent
                            break
                else:
                    answer = owned(_read_answer(response, time.monotonic() + step.attempt_s), request, response)
                    why = no_stream(answer)
        except httpx.RequestError as error:
            why = lost(error, begun=begun(request))
        for attempt in lines.end(why):
            yield servers.note_attempt(server, attempt)


def _read_answer(response: httpx.Response, deadline: float) -> Attempt:
    """The complete answer. Raises: httpx.RequestError."""
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return Response(response.status_code, None, about=f"more than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            return Lost(reached=True, reason="the answer was not complete in time")
    return read_answer(response.status_code, response.headers, bytes(body))
