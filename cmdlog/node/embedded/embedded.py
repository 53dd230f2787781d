"""A node inside the calling process: `cmdlog.open(data_dir, db)`. No server; same log, same executor, same recovery.

One rule: `call` returns when the call is durable and executed, or raises; threads may share one `Embedded`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Self, cast, overload

import orjson

import procedures
from cmdlog import errors
from cmdlog.errors import Aborted, KeyReused, ProcedureFailed, SessionExpired, Unavailable, UnknownProcedure
from cmdlog.node.assembly import MACHINE, Outside
from cmdlog.node.deploying.unopened import Unopened
from cmdlog.node.embedded.call_thread import CallbackThread, Interrupts, Unfinished, has_stack
from cmdlog.node.embedded.embedded_logging import log_as_library
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, CallRefused, Durability, NotReady, Reply, UnknownOutcome
from cmdlog.node.queries.query import QueryResult, run_query
from cmdlog.node.settings import BadSetting, Settings, fitted
from cmdlog.node.slot_map import Route
from cmdlog.node.telemetry.request_stats import facts_of
from cmdlog.node.telemetry.stage_timings import OUTCOMES
from cmdlog.procedure_calls import Call, P, QueryParameters, R, named_call, read_parameters
from cmdlog.results import Result
from cmdlog.wal.process_limits import check_address_space
from procedures import Database
from procedures.code.loaded_modules import is_bundled
from procedures.code.running_code import check_running_code
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import KEY_CHARS_MAX, Status, key_fingerprint
from procedures.source.loading import is_loading
from procedures.wire.frozen import thawed
from replay.machine_errors import naming_faults

if TYPE_CHECKING:
    from procedures import Transaction
    from procedures.declaration.procedure import EverywhereFunction

LEFT_OPEN: Final = (
    "close was interrupted while calls ran: what was acknowledged is in the log, which the next opening replays; "
    "until this process ends, the directory stays locked"
)
KEY_PROBLEM: Final = ("idempotency_key", f"must have 1 to {KEY_CHARS_MAX} printable characters")
SCOPE = "embedded"  # idempotency keys belong to a caller; here there is one


class EmbeddedInvalidParameters(errors.InvalidParameters, procedures.InvalidParameters):
    """Both what a client over HTTP raises and what `Procedure.bind` does."""

    def __init__(self, message: str = "", *, procedure: str = "", problems: Sequence[tuple[str, str]] = ()) -> None:
        errors.InvalidParameters.__init__(self, message, problems=problems)
        self.procedure = procedure


class WrongProcess(RuntimeError):
    """A fork of the process that opened the directory tried to use it; nothing was done."""


class Embedded:
    """An open data directory. Close it, or use it in a `with` block.

    It belongs to the process that opened it. A fork has copies of its files and of what it knows: both would write the log's
    next block: in the child every use is refused, and `close` does nothing.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._pid = os.getpid()
        self._closed = False
        self._interrupts = Interrupts.of_process()
        self._thread = CallbackThread()

    @overload
    def call(self, procedure: EverywhereFunction[P, Any, R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def call(self, procedure: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **params: P.kwargs) -> R: ...
    @overload
    def call(self, procedure: str, /, *, idempotency_key: str | None = None, **params: Any) -> Any: ...
    def call(self, procedure: Any, /, *args: Any, idempotency_key: Any = None, **params: Any) -> Any:
        """Calls a procedure and returns its result.

        `procedure` is a name, or the function itself: then the arguments and the result have the function's types. In the main
        thread handlers of signals run when the call has ended, and raise there: a time limit is no outcome of a call.

        Raises: Aborted, ProcedureFailed, KeyReused, SessionExpired - outcomes, durable like results; CallRefused and its kinds,
        Unavailable (sessions_full) - nothing was logged; EmbeddedInvalidParameters, UnknownProcedure.
        """
        name, given = (procedure, params) if type(procedure) is str and not args else named_call(procedure, args, params)[:2]
        return self._invoke(name, given, idempotency_key, None)[2]

    @overload
    def invoke(
        self,
        procedure: Call[R],
        params: None = None,
        *,
        idempotency_key: str | None = None,
        durability: Durability | None = None,
    ) -> Result[R]: ...
    @overload
    def invoke(
        self,
        procedure: str,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        durability: Durability | None = None,
    ) -> Result[Any]: ...
    def invoke(
        self,
        procedure: Any,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        durability: Durability | None = None,
    ) -> Result[Any]:
        """`call`, with the transaction's id and partition beside the result.

        `procedure` is a name, or a `Call`, which may have a key and a durability already. `durability`: "async" returns once the
        call is executed, and a power cut may take it for a moment; "sync" once it is durable. None: as the directory was opened.
        There is no `consistency`, unlike in clients: a read here sees every call that returned before it.
        """
        call = procedure if isinstance(procedure, Call) else named_call(procedure, (), params)
        own_key = call.idempotency_key if isinstance(call.idempotency_key, str) else None
        key = own_key if idempotency_key is None else idempotency_key
        return Result(*self._invoke(call.procedure, call.params, key, durability or call.durability))

    def _invoke(
        self, name: str, params: Mapping[str, Any], idempotency_key: str | None, durability: Durability | None
    ) -> tuple[int, int | None, Any]:
        """Calls, and returns the members of a `Result`."""
        executes = self._check_caller()
        if self._thread.answers:
            raise RuntimeError("a callback of a future runs in a thread that serves calls; use submit() there")
        route, front = self._route(name), self._node.front
        bound, key = _bind(route, params), b"" if idempotency_key is None else _name(route, idempotency_key)
        replies: SimpleQueue[Reply] = SimpleQueue()  # of this call alone: an answer after Ctrl-C is not the next call's
        place, began = self._node.call_inline if executes else self._node.call, front.now()
        try:
            with self._interrupts:
                partition = place(route, bound, key=key, done=replies.put, durability=durability)
        except CallRefused as refused:
            self._count_call(name, None, refused, front.now() - began)
            raise
        reply = replies.get()
        seconds = front.now() - began
        # Two cases: a result in time, as nearly always, which leaves one figure; and what is counted, logged or raised.
        if type(reply) is CallOutcome and not reply.status and seconds <= front.slow_s:
            front.timed.append((seconds, 1, 0))
            return reply.txn_id, partition, decode_result(route, reply.body)
        self._count_call(name, partition, reply, seconds)
        value = self._decode(route, reply)
        assert isinstance(reply, CallOutcome)
        return reply.txn_id, partition, value

    @overload
    def submit(
        self, procedure: EverywhereFunction[P, Any, R], /, *args: P.args, **params: P.kwargs
    ) -> concurrent.futures.Future[R]: ...
    @overload
    def submit(
        self, procedure: Callable[Concatenate[Transaction, P], R], /, *args: P.args, **params: P.kwargs
    ) -> concurrent.futures.Future[R]: ...
    @overload
    def submit(
        self, procedure: str, /, *, idempotency_key: str | None = None, **params: Any
    ) -> concurrent.futures.Future[Any]: ...
    def submit(self, procedure: Any, /, *args: Any, idempotency_key: Any = None, **params: Any) -> Any:
        """Places a call and returns at once; the future gets what `call` would return or raise, in a thread of the node.

        It cannot be cancelled: what is placed will be executed. Its callbacks may `submit`, but not `call` or `invoke`.
        """
        self._check_caller()
        call, future = named_call(procedure, args, params), concurrent.futures.Future[Any]()
        route = self._route(call.procedure)
        future.set_running_or_notify_cancel()

        def done(reply: Reply) -> None:
            self._thread.note_answering(True)
            try:
                future.set_result(self._decode(route, reply))
            except Exception as error:  # noqa: BLE001 - it is the caller's to see
                future.set_exception(error)
            finally:
                self._thread.note_answering(False)

        bound, key = _bind(route, call.params), b"" if idempotency_key is None else _name(route, idempotency_key)
        with self._interrupts:
            self._node.call(route, bound, key=key, done=done)
        return future

    def query(self, sql: str, params: QueryParameters = (), *, partition: int | None = None) -> QueryResult:
        """Runs a SELECT on a frozen state of one partition or of all, one after the other. Raises: InvalidParameters.

        `params`: a list for `?`, or a dict for `:name`.
        """
        self._check_caller()
        read = functools.partial(run_query, cancelled=self._interrupts.interrupted)
        with self._interrupts:
            return self._node.query_by(read, sql, read_parameters(params), partition)

    def status(self) -> dict[str, Any]:
        """What `GET /v1/status` shows."""
        return self._node.status()

    @property
    def node(self) -> Node:
        return self._node

    def close(self) -> None:
        """Answers what is under way, seals the log, closes everything. Idempotent. Not for a callback of a future: RuntimeError.

        Ctrl-C meanwhile ends the waits. Where a call still runs after that, the context of the KeyboardInterrupt is `Unfinished`:
        the directory stays locked until this process ends, and its next opening recovers, as after a kill.
        """
        if os.getpid() != self._pid:
            return
        if self._thread.answers:
            raise RuntimeError("a callback of a future runs in a thread that serves calls; close the database in another one")
        again, self._closed = self._closed, True
        try:
            with self._interrupts:
                if not self._interrupts.wait_for(lambda hurried: self._node.close(hurried=hurried)):
                    raise Unfinished(LEFT_OPEN)
        finally:
            if not again:
                self._interrupts.restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def _decode(self, route: Route, reply: Reply) -> Any:
        trace = None
        if isinstance(reply, CallOutcome) and reply.status == Status.FAILED:
            trace = self._node.trace_of(reply)
            self._node.front.error(ProcedureFailed.code, route.name, "", trace=trace)
        return decode_reply(route, reply, trace)

    def _count_call(self, name: str, partition: int | None, reply: Reply, seconds: float) -> None:
        """Counts a call that came to its end, as the API does."""
        front = self._node.front
        front.timed.append((seconds, 1, 0))
        if not isinstance(reply, CallOutcome):
            front.error(reply.code, name, "")
            if not isinstance(reply, UnknownOutcome):
                front.refuse(name, reply.code)
        elif reply.status not in (Status.OK, Status.ABORTED, Status.FAILED):  # an abort is no error; a failure has its trace
            front.error(OUTCOMES[reply.status], name, "")
        if seconds > front.slow_s:
            front.slow(seconds, lambda: facts_of(self._node, reply, procedure=name, partition=partition, request_id=""))

    def _check_caller(self) -> bool:
        """Whether the calling thread has the stack to execute a call itself. Raises: WrongProcess, NotReady, RecursionError."""
        if os.getpid() != self._pid:
            raise WrongProcess(
                f"the directory was opened by process {self._pid}, and {os.getpid()} is a fork of it; "
                "call there, or start the process by `spawn` and open another directory in it"
            )
        if self._closed:
            raise NotReady("the database is closed; `cmdlog.open` opens its directory again")
        return has_stack()

    def _route(self, name: str) -> Route:
        routes = self._node.bound.routes
        route = routes.get(name)
        if route is None:
            raise UnknownProcedure(f"no procedure {name!r}; there are {', '.join(sorted(routes))}")
        return route


def decode_reply(route: Route, reply: Reply, trace: FailureTrace | None) -> Any:
    """The procedure's result as its return annotation says, or the error that the reply is, caused by what `trace` holds."""
    if isinstance(reply, CallRefused):
        raise reply
    if reply.status == Status.OK:
        return decode_result(route, reply.body)
    raise _error(route, reply, orjson.loads(reply.body), trace) from (trace.raised if trace is not None else None)


def decode_result(route: Route, body: bytes) -> Any:
    """The procedure's result as its return annotation says."""
    value, codec = orjson.loads(body), route.procedure.result_codec
    if route.everywhere and route.procedure.returns_nothing:
        return None
    if codec is None or codec.plain:
        return value
    return [thawed(codec.from_wire(part)) for part in value] if route.everywhere else thawed(codec.from_wire(value))


def _name(route: Route, key: str) -> bytes:
    """What stands for an idempotency key."""
    fingerprint = key_fingerprint(SCOPE, key)
    if not (0 < len(key) <= KEY_CHARS_MAX and key.isprintable()):
        raise EmbeddedInvalidParameters(": ".join(KEY_PROBLEM), procedure=route.name, problems=[KEY_PROBLEM])
    return fingerprint


def _bind(route: Route, params: Mapping[str, Any]) -> list[Any]:
    try:
        return route.procedure.bind(params)
    except procedures.InvalidParameters as error:
        raise EmbeddedInvalidParameters(str(error), procedure=error.procedure, problems=error.problems) from None


def _error(route: Route, outcome: CallOutcome, value: dict[str, Any], trace: FailureTrace | None) -> errors.CmdlogError:
    message = value["message"]
    if outcome.status == Status.ABORTED:
        return Aborted(message, abort_code=value["code"], txn_id=outcome.txn_id)
    if outcome.status == Status.FAILED:
        file, line, hint = ("", 0, "") if trace is None else (trace.file, trace.line, trace.hint)
        return ProcedureFailed(
            message, error_type=value["type"], procedure=route.name, file=file, line=line, hint=hint, txn_id=outcome.txn_id
        )
    if outcome.status == Status.KEY_REUSED:
        return KeyReused(message, txn_id=outcome.txn_id)
    if outcome.status == Status.SESSION_EXPIRED:
        return SessionExpired(message, txn_id=outcome.txn_id)
    return Unavailable(message, code=Status(outcome.status).name.lower(), txn_id=outcome.txn_id)


def _why_no_database(given: object) -> str:
    module, _, attribute = given.partition(":") if isinstance(given, str) else ("", "", "")
    if attribute:
        return f"db is the text {given!r}, not a Database; import it: `from {module} import {attribute}`"
    return f"db is of type {type(given).__name__}, not a Database; give the object that `Database(...)` made"


def open_embedded(data_dir: str | os.PathLike[str], db: Database, **settings: Any) -> Embedded:
    """Opens (makes, recovers) a data directory in this process.

    `settings` are those of `cmdlog serve`, by name. With `sites=N`, N site processes execute; else this process does. A directory
    inside a program is often thrown away, so its log takes space two segments ahead unless `preallocate="ring"` is given.
    Returns when every acknowledged call of earlier lives is in the state. In a module that is loaded from a log it opens nothing.

    Raises, each with the file or call that it is about and what to do:
        WalError: `WrongDirectory` (no node's directory; `Unusable`: permissions, or a file that is of another kind), `Locked`,
            `Corrupt`, `Foreign`, `NewerFormat`, `DiskFull`, `WriteFailed` (also a read-only volume), `LimitReached` (open files,
            memory or threads of this process).
        ReplayError: `Divergence` and `Poison` (a logged call that cannot be repeated), `Incomplete` (history is missing).
        SnapshotError: a snapshot that is needed cannot be used.
        ProceduresError: `BundleError` (code of the log, or new code out of it, cannot be loaded; a module's file was changed
            after its import), `DefinitionError`, `SchemaConflict`.
        TypeError: `db` is no `Database`.
        BadSetting: a setting is unknown, out of bounds, or not that of the directory; or `data_dir` is empty.
        NotStarted: with `sites`, a site process ended before it served.
    """
    if is_loading() or is_bundled(sys._getframe(1)):  # noqa: SLF001 - a thread of such a module does not know that it is loaded
        return cast(Embedded, Unopened())
    return open_embedded_on(MACHINE, data_dir, db, settings)


def open_embedded_on(outside: Outside, data_dir: str | os.PathLike[str], db: Database, settings: Mapping[str, Any]) -> Embedded:
    """`open_embedded` with another disk or time than the operating system's. Raises as it does."""
    log_as_library()
    if not isinstance(db, Database):
        raise TypeError(_why_no_database(db))
    if not (path := os.fspath(data_dir)).strip():  # a variable that is not set must not mean the current folder
        raise BadSetting("data_dir", "is empty; name the folder of the node's files", hint='`"."` is the current one')
    inline, directory = not settings.get("sites"), os.path.abspath(path)
    if inline:
        check_running_code(db)
    with naming_faults(directory):
        check_address_space()
        chosen = Settings(**fitted({"preallocate": "ahead", **settings}))
        node = Node.open(directory, db, chosen, target=None, inline=inline, outside=outside)
        try:
            node.attach(None)
        except BaseException:  # a thread that cannot be started, say
            with contextlib.suppress(Exception):
                node.close()
            raise
        return Embedded(node)
