"""One request from arrival to answer, for operators: its id, its route, its status, its errors.

One rule: every answer carries the request's id, problems also in their body, and every line that the log gets about it does too;
nothing else that the caller sent is kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable
from typing import Final

import structlog
from starlette.types import Message, Send

from cmdlog.api.gate.problem import Problem
from cmdlog.node.outcome import Reply
from cmdlog.node.telemetry.request_stats import RequestStats, Stages, facts_of

REQUEST_ID: Final = b"x-request-id"
SCOPE_KEY: Final = "cmdlog.trace"  # where FastAPI handlers find it
CALL_ROUTES: Final = ("call", "batch")
NO_ERRORS: Final = ("aborted", "redirected")  # what a procedure or a caller wants is none
PROBED: Final = ("readyz", "not_ready")  # what a probe asked is answered: at each start there would be such errors
FRAMES_LOGGED: Final = 8  # the innermost ones

logger = structlog.get_logger("cmdlog.api")


def text_of(problem: Problem) -> str:
    """What is kept of an error's text: the detail where it is the server's, else the title; callers' words may be in a detail."""
    return problem.detail if problem.status >= 500 else problem.title


class Trace:
    """Stands in for `send`. `route` is the name of an entry of the route table, "" for what is not served."""

    __slots__ = ("_front", "_send", "header", "procedure", "request_id", "route")

    def __init__(self, front: RequestStats, send: Send | None, *, route: str, given_id: bytes | None) -> None:
        self._front, self._send, self.route = front, send, route
        self.request_id = front.request_id(given_id)
        self.header = (REQUEST_ID, self.request_id.encode())
        self.procedure = ""  # of the catalog, once it is known

    def send(self, message: Message) -> Awaitable[None]:
        """Passes an answer on, with the id; counts it when it begins."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], self.header]
            self._front.answered(self.route, message["status"])
        assert self._send is not None
        return self._send(message)

    def set_procedure(self, name: str) -> None:
        """The request calls this procedure of the catalog."""
        self.procedure = name

    def note_problem(self, problem: Problem, procedure: str | None = None) -> Problem:
        """An error that goes out, as the whole answer or as the answer to one call of a batch; it gets the id."""
        problem.without(self._front.paths).more["request_id"] = self.request_id
        name = self.procedure if procedure is None else procedure
        if problem.code not in NO_ERRORS and (self.route, problem.code) != PROBED:
            self._front.error(problem.code, name, self.request_id, text_of(problem), problem.trace)
        if problem.code == "outcome_unknown" or "txn_id" in problem.more:  # the node has counted what it decided
            return problem
        if procedure is not None or self.route in CALL_ROUTES:
            self._front.refuse(name, problem.code)
        return problem

    def log_defect(self, path: str, error: Exception) -> None:
        """The kind of error and the way to it, without its message, which may hold parameters."""
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_LOGGED:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        logger.error("request_failed", path=path, request_id=self.request_id, error=type(error).__name__, where=where)

    @classmethod
    def of_no_request(cls, front: RequestStats, problem: Problem) -> tuple[bytes, bytes]:
        """For an error before there was a request to read: counted, and given an id, whose header is returned."""
        trace = cls(front, send=None, route="", given_id=None)
        trace.note_problem(problem)
        front.answered("", problem.status)
        return trace.header

    def took(self, seconds: float, calls: int = 1) -> bool:
        """So long from a complete call to its answer; whether that is worth a line in the log."""
        self._front.latency.add(seconds, calls)
        return seconds > self._front.slow_s

    def slow(self, node: Stages, seconds: float, procedure: str, partition: int | None, reply: Reply) -> None:
        """Logs a slow call."""
        self._front.slow(
            seconds,
            lambda: facts_of(node, reply, procedure=procedure, partition=partition, request_id=self.request_id),
        )
