"""A call's way from an HTTP process to a node and back, in one event loop and over real sockets; tests answer for the node."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cmdlog.api.processes.http_process import ProcessCalls
from cmdlog.api.processes.process_link import LinkSession, join_link, make_pair, new_connection, next_turn, nothing
from cmdlog.api.processes.process_main import NodeLink
from cmdlog.cluster.forwarding.call_receiver import CallReceiver
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.node.clock import ClockAhead
from cmdlog.node.outcome import CallOutcome, CallRefused, Reply
from cmdlog.node.placing.router import Encoded
from cmdlog.node.slot_map import SlotMap, make_routes
from procedures.execution.failure_trace import FailureTrace
from tests.api.relay_pair import happened
from tests.node.apps.faulty import db

PARTITIONS = 4
AHEAD = 1000


class LinkedNode:
    """What a node gives a process; it remembers the calls that it was given."""

    def __init__(self) -> None:
        self.placed: list[Encoded] = []
        self.refusal: CallRefused | None = None
        self.observed: list[int] = []
        self.trace: FailureTrace | None = None
        self.stages: dict[str, float] = {}
        self.meter = SimpleNamespace(slow=self.stages)
        self.routes: Any = make_routes(db, 1)
        self.slots = SlotMap(PARTITIONS)
        self.clock = SimpleNamespace(observe=self.observe)

    def call_encoded(self, calls: Sequence[Encoded]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.placed += calls

    def observe(self, txn: int) -> None:
        if txn >= AHEAD:
            raise ClockAhead(f"transaction id {txn} is ahead")
        self.observed.append(txn)

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        return self.trace

    def stages_of(self, txn_id: int) -> dict[str, float]:
        return self.stages


class LinkPair:
    """`near` is the process's end."""

    def __init__(self, window: CallWindow) -> None:
        self.node = LinkedNode()
        self.window = window

    async def open(self) -> None:
        ends, connections = make_pair(), (new_connection(), new_connection())
        for connection, end in zip(connections, ends, strict=True):
            await join_link(connection, end)
        node: Any = self.node
        receiver = CallReceiver(connections[0], LinkSession(), self.window, ProcessCalls(node), next_turn())
        receiver.open(nothing)
        self.near = NodeLink(next_turn(), partitions=PARTITIONS, call_bytes_max=1 << 16, durabilities=("sync", "async"))
        self.near.serve_code(db, 1)
        self.near.link.open(connections[1], LinkSession(), self.window)
        self.far = connections[0]
        self._connections = connections

    async def close(self) -> None:
        for connection in self._connections:
            connection.end()
            await connection.closed.wait()

    async def reached(self, calls: int) -> None:
        """So many were placed."""
        await happened(lambda: len(self.node.placed) >= calls)

    def answer(self, at: int, reply: Reply) -> None:
        """The node answers a call that it was given."""
        self.node.placed[at][4](reply)
