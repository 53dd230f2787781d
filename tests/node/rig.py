"""A node as tests drive it: calls that wait, replies that are kept, processes that are ended by their id."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from cmdlog.node.assembly import MACHINE, Outside
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, LogFullRefusal, Reply
from cmdlog.node.settings import Settings
from procedures import Database
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.storage.state import open_reader
from replay.state.trust import state_path
from tests.node.apps.faulty import db
from tests.waiting import PATIENCE_S, wait_for

T = TypeVar("T")
WAIT_S = PATIENCE_S
SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "segments": 8, "log_reserve_bytes": 64 << 10, "call_bytes_max": 100_000}
QUICK_SITES: dict[str, Any] = {"sites": 1, "call_timeout_s": 1.0}


class Pending:
    """One call under way."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self._told = threading.Event()

    def done(self, reply: Reply) -> None:
        self.replies.append(reply)
        self._told.set()

    def wait(self, timeout_s: float = WAIT_S) -> Reply:
        assert self._told.wait(timeout_s), "no answer"
        return self.replies[0]

    def value(self) -> Any:
        """The result of a call that went well."""
        reply = self.wait()
        assert isinstance(reply, CallOutcome), reply
        assert reply.status == 0, reply
        return orjson.loads(reply.body)


def open_node(directory: Path, *, app: Database = db, inline: bool = False, outside: Outside = MACHINE, **settings: Any) -> Node:
    """A node that lets calls in."""
    wanted = Settings(**{**SMALL, **({} if inline else QUICK_SITES), **settings})
    node = Node.open(str(directory), app, wanted, inline=inline, outside=outside)
    node.attach(None)
    return node


def send(node: Node, name: str, /, *, key: str | bytes = "", **params: Any) -> Pending:
    """Places a call. `key`: its text, or the name of the call as the node takes it."""
    pending = Pending()
    route = node.routes[name]
    fingerprint = key if isinstance(key, bytes) else key_fingerprint("", key) if key else b""
    node.call(route, route.procedure.bind(params), key=fingerprint, done=pending.done)
    return pending


def ask(node: Node, name: str, /, *, key: str | bytes = "", **params: Any) -> Any:
    """A call and its result."""
    return send(node, name, key=key, **params).value()


def when_there_is_room(call: Callable[[], T]) -> T:
    """What the call gives, once the log has room for it."""
    given: list[T] = []

    def accepted() -> bool:
        with contextlib.suppress(LogFullRefusal):
            given.append(call())
        return bool(given)

    wait_for(accepted)
    return given[0]


def rows(directory: Path, partition: int, sql: str) -> list[tuple[Any, ...]]:
    """What a state file holds, read past all guards."""
    connection, _ = open_reader(state_path(str(directory), partition))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def counters(node: Node) -> dict[int, int]:
    """Every counter of every partition."""
    return {int(row[0]): int(row[1]) for row in node.query("SELECT id, n FROM counters").rows}


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(pid: int) -> None:
    """SIGKILL to one process."""
    os.kill(pid, 9)


def partition(node: Node, number: int) -> int:
    """Where a counter lives."""
    return node.slots.partition_of(node.routes["bump"].procedure, [number, 0])
