"""What a server reports to systemd with `Type=notify`: that the server is ready, alive and stopping.

One rule: without systemd nothing happens, and a notice that cannot be sent has no effect.

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
from typing import Final

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
