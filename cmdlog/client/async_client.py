"""`AsyncClient`: for tasks of one event loop (asyncio). Many may share one.

It carries out the steps of `exchange.py` and the requests that `window.py` wants, with httpx and `asyncio.sleep`; it decides
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Self, Unpack, overload

import httpx

from cmdlog.client.auto_batch import AsyncAutoBatcher
from cmdlog.client.batch_window import TAKEN_PER_ANSWER, Answered, AnswerLines, RunningBatch, is_stream, no_stream
from cmdlog.client.client_base import ANSWER_BYTES_MAX, END_S, BatchItem, ClientCore, begun, owned
from cmdlog.client.connection_pool import AsyncConnectionPool
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


class AsyncClient(ClientCore):
    """`Client` for tasks: the same methods, awaited. It belongs to the event loop that first used it.

    Example:
        async with cmdlog.AsyncClient(["http://10.0.0.1:8642", "http://10.0.0.2:8642", "http://10.0.0.3:8642"]) as client:
            left = await client.call("reserve", item=1, count=3)
    """

    def __init__(self, url: str | Sequence[str] = DEFAULT_URL, **given: Unpack[ClientArguments]) -> None:
        super().__init__(url, given)
        self._pools = [AsyncConnectionPool(self.options.http(url), self.options.connections_max) for url in self.urls]
        options = self.options.auto_batch
        self._batcher = None if options is None else AsyncAutoBatcher(self._send, self._send_many, options)
        self._endings: set[asyncio.Task[None]] = set()  # requests under way that end sessions

    # -- calls -----------------------------------------------------------------------------------------------------------

    @overload
    async def call(self, procedure: EverywhereFunction[P, Any, R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    async def call(self, procedure: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    async def call(self, procedure: str, /, *, idempotency_key: str | NewKey | None = ..., **params: Any) -> Any: ...
    async def call(self, procedure: Any, /, *args: Any, idempotency_key: Any = NEW_KEY, **params: Any) -> Any:
        """Calls a procedure and returns its result; see `Client.call`. Cancelled, it may have been executed."""
        call = named_call(procedure, args, params)
        return (await self.invoke(call, idempotency_key=idempotency_key)).value

    @overload
    async def invoke(self, procedure: Call[R], params: None = None, **options: Unpack[InvokeOptions]) -> Result[R]: ...
    @overload
    async def invoke(
        self, procedure: str, params: Mapping[str, Any] | None = None, **options: Unpack[InvokeOptions]
    ) -> Result[Any]: ...
    async def invoke(
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
        """`call`, with the transaction's id and partition beside the result; see `Client.invoke`."""
        call = procedure if isinstance(procedure, Call) else named_call(procedure, (), params)
        call = call.with_options(idempotency_key, durability)
        ask = self._call_ask(call, consistency)
        value = await self._run(self._exchange(ask, timeout_s, renames=call.idempotency_key is NEW_KEY))
        return self._decode(ask, value, returns)

    async def batch(
        self, calls: Iterable[BatchItem] | AsyncIterable[BatchItem], *, timeout_s: float | None = None
    ) -> AsyncGenerator[Answered, None]:
        """Calls in order, answered in the same order; see `Client.batch`."""
        window = self._window(timeout_s)
        try:
            async with contextlib.aclosing(self._answers(window, _each(calls))) as answers:
                async for answered in answers:
                    yield answered
        finally:
            window.abandon()
            self._end_sessions()

    async def _answers(self, window: RunningBatch, source: AsyncGenerator[BatchItem, None]) -> AsyncGenerator[Answered, None]:
        more = True
        while more or window:
            while more and window.waits:
                more = await self._take_in(window, source)
            for answered in window.ready():
                yield answered
            lines = window.due()
            if not lines:
                await asyncio.sleep(window.wait_s())
                continue
            step = self._batch_step(lines[0])
            due = iter(lines)
            async with contextlib.aclosing(self._send_many([line.ask for line in lines], step)) as attempts:
                async for attempt in attempts:
                    window.settle_line(next(due), attempt)
                    for answered in window.ready():
                        yield answered
                    for _ in range(TAKEN_PER_ANSWER):  # the next request is made ready while the server works at this one
                        more = await self._take_in(window, source) if more and window.room else more
            window.passed(len(lines))

    async def _take_in(self, window: RunningBatch, source: AsyncGenerator[BatchItem, None]) -> bool:
        """The source's next call; False when there is none."""
        try:
            item = await anext(source)
        except StopAsyncIteration:
            return False
        ask, renames = self._batch_ask(item)
        window.add(ask, renames=renames)
        return True

    # -- what else a server tells ----------------------------------------------------------------------------------------

    async def query(
        self, sql: str, params: QueryParameters = (), *, partition: int | None = None, consistency: Consistency | None = None
    ) -> QueryResult:
        """Runs a SELECT on a frozen state of one partition or, concatenated, of all; see `Client.query`."""
        return read_rows(await self._run(self._exchange(query_ask(sql, params, partition, consistency))))

    async def procedures(self) -> list[dict[str, Any]]:
        """Every procedure with its schemas."""
        return read_catalog(await self._read("/v1/procedures"))

    async def status(self) -> dict[str, Any]:
        """Node, partitions, watermarks, log."""
        return read_object(await self._read("/v1/status"))

    async def snapshots(self) -> list[dict[str, Any]]:
        """Every snapshot."""
        listed: list[dict[str, Any]] = member(await self._read("/v1/snapshots"), "snapshots")
        return listed

    async def take_snapshot(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Takes a snapshot of every partition now."""
        taken: list[dict[str, Any]] = member(await self._run(self._exchange(SNAPSHOT, timeout_s)), "snapshots")
        return taken

    async def take_point(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Takes a recovery point now: `snapshots`, and `point` with the transaction id up to which all can be restored."""
        return read_object(await self._run(self._exchange(POINT, timeout_s)))

    async def deploy(self, *, timeout_s: float | None = None, **options: Any) -> dict[str, Any]:
        """Other code into the server: `bundle`, or `rollback` and `to`; `plan` changes nothing (DEPLOYING.md)."""
        return read_object(await self._run(self._exchange(deploy_ask(options), timeout_s)))

    async def members(self) -> dict[str, Any]:
        """Of a cluster: version, leader, members with their states, failure set, copies under way."""
        return read_object(await self._run(self._exchange(MEMBERS)))

    async def change_member(self, kind: str, node: int, **options: Any) -> dict[str, Any]:
        """`add`, `remove`, `replace`, `retire` or `transfer`. Options: peer, client, base, force, plan (CLUSTER.md)."""
        return read_object(await self._run(self._exchange(change_ask(kind, node, options))))

    async def recover_unsafely(self, **options: Any) -> dict[str, Any]:
        """The server continues without its majority. Options: yes_lose, survivors, force (CLUSTER.md "Lost majority")."""
        return read_object(await self._run(self._exchange(recovery_ask(options))))

    async def cancel_copy(self, node: int) -> dict[str, Any]:
        """Ends the copy of the server's data to this node."""
        return read_object(await self._run(self._exchange(cancel_copy_ask(node))))

    async def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the server serves calls, waiting up to `timeout_s` for it."""
        ready: bool = await self._run(self._await_ready(timeout_s))
        return ready

    async def close(self) -> None:
        """Waits for requests that calls share, and ends the sessions and the connections."""
        if self._batcher is not None:
            await self._batcher.close()
        self._end_later(self._sessions.close())
        if self._endings:
            await asyncio.wait(self._endings)
        for lanes in self._pools:
            await lanes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- carrying out ----------------------------------------------------------------------------------------------------

    async def _read(self, path: str) -> Any:
        return await self._run(self._exchange(read_ask(path)))

    async def _run(self, steps: Steps) -> Any:
        """Carries out the steps of an exchange."""
        came_of_it: Attempt | None = None
        try:
            while True:
                step = steps.send(came_of_it)
                if isinstance(step, SendAttempt):
                    came_of_it = await self._attempt(step)
                else:
                    await asyncio.sleep(step.seconds)
                    came_of_it = None
        except StopIteration as end:
            return end.value
        finally:
            steps.close()
            self._end_sessions()

    def _end_sessions(self) -> None:
        """Lets the server forget the sessions whose last call is over. There is one about every 15 minutes."""
        if self._sessions.has_drained:
            self._end_later(self._sessions.pop_drained())

    def _end_later(self, uuids: Sequence[str]) -> None:
        """Beside the call that is over: its caller gets the answer first."""
        if uuids:
            task = asyncio.get_running_loop().create_task(self._end_in_time(uuids))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def _end_in_time(self, uuids: Sequence[str]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for step in self._end_steps(uuids):
                    if isinstance(await self._send(step), Lost):
                        return

    async def _attempt(self, step: SendAttempt) -> Attempt:
        if self._batcher is not None and step.ask.procedure and not step.ask.stale:
            return await self._batcher.attempt(step)
        return await self._send(step)

    async def _send(self, step: SendAttempt) -> Attempt:
        """One request of its own."""
        server = self._servers.preferred
        request = self._request(server, step)
        try:
            async with asyncio.timeout(step.attempt_s):
                async with self._pools[server.at].response(request, wait_s=step.attempt_s) as response:
                    attempt = owned(await _read_answer(response), request, response)
        except httpx.RequestError as error:
            attempt = lost(error, begun=begun(request))
        except TimeoutError:
            attempt = Lost(reached=begun(request), reason=f"no answer for {step.attempt_s:g} s")
        return self._servers.note_attempt(server, attempt)

    async def _send_many(self, asks: Sequence[Ask], step: SendAttempt) -> AsyncGenerator[Attempt, None]:
        """One request for several calls; gives one attempt for each, in order. `attempt_s` is the longest silence."""
        servers, server = self._servers, self._servers.preferred
        lines, request = AnswerLines(len(asks)), self._many_request(server, asks, step)
        why: Attempt = Lost(reached=True, reason="the answer ended before its last line")
        try:
            async with self._pools[server.at].response(request, wait_s=step.attempt_s) as response:
                if is_stream(response.status_code, response.headers):
                    owned(why, request, response)
                    async for chunk in response.aiter_raw():
                        for attempt in lines.feed(chunk, date=response.headers.get("date", "")):
                            yield servers.note_attempt(server, attempt)
                        if lines.broken:
                            break
                else:
                    why = no_stream(owned(await _read_answer(response), request, response))
        except httpx.RequestError as error:
            why = lost(error, begun=begun(request))
        for attempt in lines.end(why):
            yield servers.note_attempt(server, attempt)


async def _each(calls: Iterable[BatchItem] | AsyncIterable[BatchItem]) -> AsyncGenerator[BatchItem, None]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call


async def _read_answer(response: httpx.Response) -> Attempt:
    """The complete answer. Raises: httpx.RequestError."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return Response(response.status_code, None, about=f"more than {ANSWER_BYTES_MAX} bytes")
    return read_answer(response.status_code, response.headers, bytes(body))
