"""All HTTP processes of a node: started, started again, given the code, asked for their counts, stopped.

One rule: the node's process listens and never accepts. The socket outlives every process, so a connection that waits in its queue
is taken by another one, or by the next.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.types import ASGIApp

from cmdlog.api.processes.http_process import HttpProcess, ProcessGround, ProcessStats
from cmdlog.api.routes.batch import CALLED
from cmdlog.api.routes.service import Fronts
from cmdlog.child_process import describe_late_start
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.node.settings import TABLE, Settings
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.operator_error import OperatorError, full_text

if TYPE_CHECKING:
    from cmdlog.node.node import Node

LOOK_S: Final = 0.25  # between two looks at versions and signs of life
HUNG_S: Final = 30.0  # without a sign of life, which each gives every second
COUNTS_S: Final = 1.0  # for the counts of a process; one that is slower is counted at its next word
PAUSE_S_MIN: Final = 0.1  # before a process is started again that ended soon after its start
PAUSE_S_MAX: Final = 5.0
SOON_S: Final = 5.0
STOP_MARGIN_S: Final = 5.0  # beyond `drain_timeout_s`

logger = structlog.get_logger("cmdlog.api")


class ProcessNotStarted(OperatorError, RuntimeError):
    """An HTTP process does not serve."""


class ProcessSet(Fronts):
    """Only the event loop's thread."""

    def __init__(self, application: ASGIApp, front: RequestStats, settings: Settings, module: str) -> None:
        """`application` and `front` are the node's; `module` is the program of a process."""
        self._settings = settings
        count = settings.http_processes
        window = CallWindow(
            max(1, settings.inflight_calls_max // count), max(settings.call_bytes_max, settings.inflight_bytes_max // count)
        )
        self._ground = ProcessGround(application, front, module, make_order(settings), window)
        self._processes: dict[int, HttpProcess] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._cut: dict[str, int] = {}  # connections that processes have refused or ended, by code
        self._node: Node | None = None
        self._watch: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._stopping = False
        self._ended_early = ""  # why a process ended before it served
        front.show_connections(lambda: sum(stats.connections for stats in self._stats()), cut=lambda: self._cut)
        of_node = front.held_bytes
        front.show_held(lambda: sum((Counter(stats.held_bytes) for stats in self._stats()), Counter(of_node())))

    def start(self, listener: socket.socket) -> None:
        """Starts all; they take connections from this socket, which the set owns."""
        self._listener = listener
        loop = asyncio.get_running_loop()
        self._lives = [loop.create_task(self._keep_process(n, listener)) for n in range(self._settings.http_processes)]
        self._watch = loop.create_task(self._watch_processes())

    def attach(self, node: Node) -> None:
        """They serve calls of this node from now on."""
        self._node = node
        self._give_code()

    async def wait_serving(self) -> None:
        """Returns when all serve calls. Raises: ProcessNotStarted."""
        timeout_s = self._settings.start_timeout_s
        deadline = time.monotonic() + timeout_s
        while not (self._stopping or self._all_serve()):
            if self._ended_early:
                raise ProcessNotStarted(f"an HTTP process did not start: {self._ended_early}")
            if time.monotonic() > deadline:
                raise ProcessNotStarted(f"an HTTP process did not start: {describe_late_start(timeout_s)}")
            await asyncio.sleep(LOOK_S / 10)

    # -- cmdlog.api.routes.service.Fronts --------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        return {"http_processes": [pid for process in self._processes.values() if (pid := process.pid) is not None]}

    async def gather_counts(self) -> None:
        asked = [process.ask_counts() for process in self._processes.values() if process.is_linked]
        if asked:
            await asyncio.wait(asked, timeout=COUNTS_S)

    async def follow_code(self) -> None:
        self._give_code()
        waiting = [asyncio.create_task(process.code.known.wait()) for process in self._processes.values() if process.code.given]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._settings.start_timeout_s)
            for task in late:
                task.cancel()

    # -- stopping ----------------------------------------------------------------------------------------------------------

    async def stop(self, *, leaving: bool = False) -> None:
        """Returns when all have answered what was under way, and have ended. Idempotent."""
        if self._stopping:
            await self._all_ended()
            return
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        if self._listener is not None:
            self._listener.close()
        for process in self._processes.values():
            process.stop(leaving=leaving)
        await self._all_ended()

    async def _all_ended(self) -> None:
        if not self._lives:
            return
        _, late = await asyncio.wait(self._lives, timeout=self._settings.drain_timeout_s + STOP_MARGIN_S)
        if late:
            self.kill()
            await asyncio.wait(late)

    def kill(self) -> None:
        """Ends all at once."""
        for process in self._processes.values():
            process.kill()

    # -- each process --------------------------------------------------------------------------------------------------------

    async def _keep_process(self, number: int, listener: socket.socket) -> None:
        """One life after the other."""
        pause_s = 0.0
        while not self._stopping:
            process = self._processes[number] = HttpProcess(number, self._ground, self._cut)
            try:
                why = await process.live(listener)
            except OSError as error:
                why = full_text(error)
            finally:
                del self._processes[number]
            if self._stopping:
                return
            served = process.code.loaded > 0
            if not served and self._node is None:
                self._ended_early = why or "it ended by itself"
            soon = time.monotonic() - process.began_s < SOON_S
            pause_s = min(max(2 * pause_s, PAUSE_S_MIN), PAUSE_S_MAX) if soon else 0.0
            logger.warning("http_process_ended", process=number, why=why or "it ended by itself", again_in_s=pause_s)
            await asyncio.sleep(pause_s)

    async def _watch_processes(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._give_code()
            self._show_others()
            now = time.monotonic()
            for process in list(self._processes.values()):
                patience_s = HUNG_S if process.code.loaded else self._settings.start_timeout_s
                if now - process.heard_s > patience_s:
                    logger.error("http_process_hung", process=process.number, silent_s=round(now - process.heard_s, 1))
                    process.kill()

    def _give_code(self) -> None:
        """Each process has the newest code of the log, or is loading it."""
        node = self._node
        if node is None:
            return
        versions = node.deployer.code
        newest = versions.newest
        for process in self._processes.values():
            if process.is_linked and process.code.given != newest:
                process.serve_code(node, newest, str(versions.by_version[newest]["bundle"]))

    def _show_others(self) -> None:
        """A batch of one process makes way for the single calls of another."""
        stats = {process: process.stats for process in self._processes.values()}
        for process in stats:
            others = [one for other, one in stats.items() if other is not process]
            process.show_others(sum(one.calls(CALLED) for one in others), sum(one.streams for one in others))

    def _all_serve(self) -> bool:
        wanted = self._settings.http_processes
        return len(self._processes) == wanted and all(process.code.loaded for process in self._processes.values())

    def _stats(self) -> Iterator[ProcessStats]:
        return (process.stats for process in self._processes.values())


def make_order(settings: Settings) -> dict[str, Any]:
    """What a process is started with: the settings as plain data, with its share of the connections."""
    plain = {item.name: getattr(settings, item.name) for item in fields(settings)}
    plain["connections_max"] = max(1, settings.connections_max // settings.http_processes)
    return {"settings": {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()}}


def read_order(order: Mapping[str, Any]) -> Settings:
    """The inverse. Raises: BadSetting."""
    return Settings(**{name: _typed(name, value) for name, value in order["settings"].items()})


def _typed(name: str, value: Any) -> Any:
    return Path(value) if TABLE[name].kind == "path" and value is not None else value
