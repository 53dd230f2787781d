"""Nodes of a cluster that misbehave on purpose: scripted servers that share the outcomes under keys, of which one leads.

A node that does not lead refuses calls as a real one does. `lead` changes the leader, also in the middle of a batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import orjson

from tests.client.scripted import Request, ScriptedServer, Step, http, name_of_call, name_of_line, problem

REFUSAL = {"code": "not_ready", "status": 503, "detail": "another node leads", "retry_after_s": 0.0}
NO_LEADER = {**REFUSAL, "code": "no_quorum"}
UNKNOWN = {"code": "outcome_unknown", "status": 504, "detail": "the node led no more before a majority had the call"}


class ScriptedNode(ScriptedServer):
    """One node. `forwards`: as a follower it asks the leader itself."""

    cluster: ScriptedCluster
    forwards = False

    def _execute(self, request: Request) -> bytes:
        own = [f"X-Request-Id: {request.headers['x-request-id']}"]
        if request.path == "/v1/batch":
            shared = request.headers.get("cmdlog-session", "").partition(";")[0]
            lines = [self._line(orjson.loads(line), shared) for line in request.body.splitlines()]
            return http(200, b"\n".join([*map(orjson.dumps, lines), b""]), kind="application/x-ndjson", headers=own)
        if request.path.startswith("/v1/procedures/"):
            refusal = self.cluster.refusal(self)
            if refusal is None:
                return http(200, self.cluster.outcome(name_of_call(request)), headers=own)
            return http(refusal["status"], refusal, kind="application/problem+json", headers=[*own, "Retry-After: 1"])
        return http(200, {"ready": True}, headers=own)

    def _line(self, entry: dict[str, Any], shared: str) -> dict[str, Any]:
        """One line of a batch; the leader may change before it."""
        name = name_of_line(entry, shared)
        step = self.cluster.next_line()
        if step == "unknown, executed":
            self.cluster.outcome(name)
        if step.startswith("unknown"):
            return {"error": UNKNOWN}
        refusal = self.cluster.refusal(self)
        return {"error": refusal} if refusal is not None else self.cluster.outcome(name)


class ScriptedCluster:
    """Use it in a `with` block. Node 0 leads at first; `scripts` are those of the nodes.

    `lines` says what happens before lines of batches: "" nothing, "unknown" or "unknown, executed" to that line, "lead 1" another
    leader.
    """

    def __init__(self, scripts: Sequence[Sequence[Step]] = ((), (), ()), *, lines: Sequence[str] = ()) -> None:
        self.nodes = [ScriptedNode(script) for script in scripts]
        for node in self.nodes:
            node.cluster = self
        self.leader: int | None = 0
        self.executed: list[str] = []  # keys, in the order of the executions
        self._lines, self._lock = list(lines), threading.Lock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ScriptedCluster:
        for node in self.nodes:
            self._stack.enter_context(node)
        self.urls = [node.url for node in self.nodes]
        self._held = self.nodes[0]  # whose table of outcomes all share
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def lead(self, node: int | None) -> None:
        self.leader = node

    def requests(self) -> list[int]:
        """How many requests each node got."""
        return [len(node.requests) for node in self.nodes]

    def refusal(self, node: ScriptedNode) -> dict[str, Any] | None:
        """Why the node takes no call."""
        if self.leader is None:
            return NO_LEADER
        leader = self.nodes[self.leader]
        return None if leader is node or node.forwards else {**REFUSAL, "leader": leader.url}

    def outcome(self, key: str | None) -> dict[str, Any]:
        with self._lock:
            before = self._held.executions
            told = self._held._outcome(key)
            if self._held.executions > before:
                self.executed.append(key or "")
            return told

    def next_line(self) -> str:
        step = self._lines.pop(0) if self._lines else ""
        if step.startswith("lead "):
            self.lead(int(step.removeprefix("lead ")))
        return step


def refused(url: str = "") -> bytes:
    """The answer of a node that does not lead, and of what leads there."""
    return problem(503, "not_ready", "Retry-After: 0", **({"leader": url} if url else {}))
