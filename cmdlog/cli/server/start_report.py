"""What a server reports of its start and stop: lines for people, events for programs, and notices for systemd (`Type=notify`).

One rule: without systemd no notice is sent, and one that cannot be sent has no effect.

The protocol of sd_notify(3): datagrams of `NAME=value` lines to the socket in NOTIFY_SOCKET, whose name begins with @ when it is
abstract. WATCHDOG_USEC is how long systemd waits for a sign of life. It is sent by the event loop, which serves all requests:
a loop that hangs is restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cmdlog.cli.output import out

if TYPE_CHECKING:
    from cmdlog.node.node import Node

BEATS: Final = 3  # signs of life per time that systemd waits: one may be late


class ServiceNotices:
    """Notices of one process. All methods do nothing without systemd."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        micros = environ.get("WATCHDOG_USEC", "")
        self._beat_s = int(micros) / 1e6 / BEATS if meant and micros.isdigit() else 0.0

    def say_opening(self) -> None:
        """Requests are answered; the node may recover for long."""
        self._send("STATUS=opening the data directory")

    def say_ready(self) -> None:
        """Calls are served. On the event loop's thread, which from now on gives the signs of life."""
        self._send("READY=1", "STATUS=serving calls")
        if self._address and self._beat_s:
            self._beat(asyncio.get_running_loop())

    def say_stopping(self) -> None:
        """No new calls; calls in progress are answered."""
        self._send("STOPPING=1", "STATUS=answering calls in progress")

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1")
        loop.call_later(self._beat_s, self._beat, loop)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.connect(self._address)
            sender.send("\n".join(lines).encode())


class StartReport:
    """What a start tells people: `listening` when calls are served, and not before. Programs get each event as it happens."""

    def __init__(self, data: Path) -> None:
        self._data, self._notices = data.absolute(), ServiceNotices()
        self._new = False
        self._url = ""

    def announce_creation(self) -> None:
        """Before the first file is written: who expected data here is in the wrong place."""
        from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME, LOCK_NAME, NO_CONTENT

        with contextlib.suppress(OSError):  # opening the log reports what is wrong with it
            names = set(os.listdir(self._data)) if self._data.exists() else set()
            self._new = INSTANCE_NAME not in names and (CREATING_NAME in names or names <= {LOCK_NAME, *NO_CONTENT})
        if self._new:
            import structlog

            what = f"creating a new, empty data directory {self._data}"
            structlog.get_logger("cmdlog.cli").info("new_data_directory", what=what, hint="--data DIR names another one")

    def say_listening(self, url: str) -> None:
        """The server answers; its node may recover for long."""
        self._notices.say_opening()
        self._url = url
        report = {"event": "listening", "url": url, "pid": os.getpid()}
        out.result(report, lambda: out.text(f"opening {self._data}; until it can serve, {url}/readyz answers 503"))

    def say_ready(self, node: Node) -> None:
        """Calls are served from now on."""
        partitions, procedures = node.settings.partitions, len(node.routes)
        report = {"event": "ready", "partitions": partitions, "procedures": procedures, "recovery": node.recovery}
        out.result(report, lambda: self._show_ready(node))
        self._notices.say_ready()

    def say_stopping(self) -> None:
        """No new calls."""
        self._notices.say_stopping()
        out.result({"event": "stopping"}, lambda: out.text("stopping: requests in flight are answered first"))

    def _show_ready(self, node: Node) -> None:
        for part in () if self._new else node.recovery:
            out.text(tell_start(part))
        out.text(f"ready: {len(node.routes)} procedures on {node.settings.partitions} partitions")
        out.text(f"cmdlog listening on {self._url}")


def tell_start(part: Mapping[str, Any]) -> str:
    """From what a partition's state was rebuilt, and why from nothing better."""
    source = {"state": "its state file", "snapshot": "a snapshot", "empty": "nothing"}[part["from"]]
    text = f"partition {part['partition']}: from {source} ({part['why']}), {part['replayed_calls']:,} calls replayed"
    return "; ".join([text, *(f"not from {passed['name']}: {passed['why']}" for passed in part["passed"])])
