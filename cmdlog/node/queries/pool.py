"""Processes that run queries: started when the first ones come, kept, and replaced when a query was the end of one.

One rule: a query ends, whatever its statement: by its own limits, or with its process.

An answer stays in the process that made it: what asked gets it in pieces, as its client takes them, and so holds one of them.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import orjson
import structlog

from cmdlog.child_process import DEVNULL, ChildProcess, describe_end, describe_late_start
from cmdlog.node.outcome import NotReady
from cmdlog.node.queries.query import QueryLimit, QueryLimits, QueryRefused, out_of_memory
from cmdlog.node.queries.worker import ANSWER, LENGTH, READY, AnswerKind, encode_request, receive_exactly
from cmdlog.procedure_calls import QueryParameters

PIECE_BYTES: Final = 256 << 10  # of an answer, read at once

log = structlog.get_logger("cmdlog.node")


class QueryCancelled(Exception):
    """The caller has gone."""


class Ticket:
    """One query under way; `cancel` from any thread ends it soon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self.cancelled = False

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        with self._lock:
            self.cancelled = True
            if self._worker is not None:
                self._worker.cancel()

    def begin_request(self, worker: _Worker) -> None:
        """The worker has the whole request: a word to it can no longer fall into the middle of that."""
        with self._lock:
            self._worker = worker
            if self.cancelled:
                worker.cancel()

    def end(self) -> None:
        """From now on a word to the worker would be about another query."""
        with self._lock:
            self._worker = None


class QueryAnswer:
    """The answer of a query as JSON; `close` it. One thread at a time; blocking."""

    def __init__(self, size: int, read: Callable[[int], bytes], end: Callable[[bool], None]) -> None:
        """Raises: EOFError, OSError. `end` is called once: whether all was read."""
        self.size = size
        self._left, self._read, self._end = size, read, end
        self._first = self.read_piece()

    @property
    def is_read(self) -> bool:
        """Nothing of it is left in its process."""
        return not self._left

    def take_first(self) -> bytes:
        """The first piece, which is read already."""
        first, self._first = self._first, b""
        return first

    def read_piece(self) -> bytes:
        """The next at most PIECE_BYTES, b"" after the last. Raises: EOFError, OSError, when the process is gone."""
        piece = self._read(min(self._left, PIECE_BYTES)) if self._left else b""
        self._left -= len(piece)
        if piece and not self._left:
            self._end(True)
        return piece

    def close(self) -> None:
        """Reads what is left, for nobody, so that the process can serve the next query."""
        try:
            while self._left:
                self.read_piece()
        except (EOFError, OSError):
            self._left = 0
            self._end(False)


class QueryPool:
    """As many processes as threads have called `run` at the same time, or have not read the whole answer. Any thread."""

    def __init__(self, *, memory_bytes_max: int, start_timeout_s: float) -> None:
        self._memory_bytes_max, self._start_timeout_s = memory_bytes_max, start_timeout_s
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._closed = False

    def run(
        self,
        paths: Mapping[int, str],
        sql: str,
        params: QueryParameters | orjson.Fragment,
        limits: QueryLimits,
        *,
        ticket: Ticket | None = None,
        dated: bool = False,
    ) -> QueryAnswer:
        """The result as JSON; `dated`: with the time of the oldest state. Blocking.

        Raises: QueryRefused, QueryLimit, NotReady, QueryCancelled.
        """
        request = encode_request(paths, sql, params, limits, dated=dated)
        ticket = ticket or Ticket()
        worker = self._take_worker()
        try:
            worker.send(request)
            ticket.begin_request(worker)
            kind, size = worker.receive_head()
            ticket.end()
            answer = QueryAnswer(size, worker.receive_body, partial(self._end_answer, worker))
        except (EOFError, OSError):
            self._bury(worker)
            raise self._cause(worker, ticket, limits) from None
        finally:
            ticket.end()
        # A result is handed on as it comes; of any other answer the first part is the reason.
        if kind == AnswerKind.RESULT and not ticket.cancelled:
            return answer
        answer.close()
        if ticket.cancelled:
            raise QueryCancelled
        raise {AnswerKind.REFUSED: QueryRefused, AnswerKind.LIMIT: QueryLimit, AnswerKind.NOT_READY: NotReady}[AnswerKind(kind)](
            answer.take_first().decode()
        )

    def pids(self) -> list[int]:
        """The processes, for anyone who watches memory."""
        with self._lock:
            return sorted(worker.process.pid for worker in self._all)

    def close(self) -> None:
        """Ends every process; a query under way is refused."""
        with self._lock:
            self._closed = True
            idle, busy = self._idle, self._all.difference(self._idle)
            self._all, self._idle = set(), []
        for worker in busy:
            worker.kill()  # this wakes the thread that waits for it, which disposes of it
        for worker in idle:
            worker.dispose()

    def _take_worker(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise NotReady("the node is stopping")
            if self._idle:
                return self._idle.pop()
        try:
            worker = _Worker(self._memory_bytes_max)
        except OSError as error:
            raise NotReady(f"no query process can be started: {error.strerror}") from None
        with self._lock:
            self._all.add(worker)
        try:
            worker.wait_ready(self._start_timeout_s)
        except NotReady:
            self._bury(worker)
            raise
        return worker

    def _end_answer(self, worker: _Worker, whole: bool) -> None:
        if not whole:
            self._bury(worker)
            return
        with self._lock:
            if worker in self._all:
                self._idle.append(worker)

    def _bury(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.dispose()

    def _cause(self, worker: _Worker, ticket: Ticket, limits: QueryLimits) -> Exception:
        """Why a process ended in the middle of a query."""
        if self._closed:
            return NotReady("the node is stopping")
        if ticket.cancelled:
            return QueryCancelled()
        if worker.process.returncode == -signal.SIGALRM:
            return QueryLimit(f"the query ran longer than query_timeout_s={limits.timeout_s:g}")
        log.warning("query_process_ended", exit_code=worker.process.returncode)
        return out_of_memory()


class _Worker:
    """One process; one thread at a time asks it."""

    def __init__(self, memory_bytes_max: int) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = ChildProcess(
                "cmdlog.node.queries.worker",
                str(theirs.fileno()),
                str(memory_bytes_max),
                pass_fds=(theirs.fileno(),),
                stderr=DEVNULL,  # a traceback would show the statement
            )

    def wait_ready(self, timeout_s: float) -> None:
        """Raises: NotReady."""
        self._socket.settimeout(timeout_s)
        try:
            receive_exactly(self._socket, len(READY))
        except TimeoutError:
            raise NotReady(f"the query process did not start: {describe_late_start(timeout_s)}") from None
        except (EOFError, OSError):
            raise NotReady(f"the query process did not start: {self._why_ended()}") from None
        self._socket.settimeout(None)

    def _why_ended(self) -> str:
        return self.process.last_error() or describe_end(self.process.end(after_s=1.0))

    def send(self, request: bytes) -> None:
        """Raises: OSError, when the process is gone."""
        self._socket.sendall(LENGTH.pack(len(request)) + request)

    def receive_head(self) -> tuple[int, int]:
        """Kind of the answer and length of its body. Raises: EOFError, OSError, when the process is gone."""
        kind, length = ANSWER.unpack(receive_exactly(self._socket, ANSWER.size))
        return kind, length

    def receive_body(self, size: int) -> bytes:
        """So much of it. Raises: as above."""
        return receive_exactly(self._socket, size)

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(LENGTH.pack(0))

    def kill(self) -> None:
        """Ends the process; its readers get an error."""
        self.process.kill()

    def dispose(self) -> None:
        """Ends the process, waits for that, and closes the socket, which nobody else may be using."""
        self.process.close()
        self._socket.close()
