"""What systemd is told, over a real socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL

import pytest

from cmdlog.child_process import ChildProcess, without_settings
from cmdlog.cli.server.start_report import ServiceNotices
from tests.waiting import PATIENCE_S

WAIT_S = PATIENCE_S


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket on which systemd listens; its name is short enough for one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(os.path.relpath(tmp_path / "notify"))
        listener.settimeout(WAIT_S)
        yield listener


def heard(manager: socket.socket) -> dict[str, str]:
    """The next notice."""
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())


def test_notices_arrive_in_order(tmp_path: Path, manager: socket.socket) -> None:
    """Opening, ready with signs of life, stopping; a second sign follows by itself."""
    environ = {"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    notices = ServiceNotices(environ)

    async def serve() -> None:
        notices.say_opening()
        assert "READY" not in heard(manager)
        notices.say_ready()
        assert heard(manager)["READY"] == "1"
        for _ in range(2):
            assert await asyncio.to_thread(heard, manager) == {"WATCHDOG": "1"}

    asyncio.run(serve())
    notices.say_stopping()
    last = heard(manager)
    while "WATCHDOG" in last:  # Signs of life that were sent before the loop ended.
        last = heard(manager)
    assert last["STOPPING"] == "1"


def test_abstract_sockets_are_reached() -> None:
    """A name that begins with @ has no file."""
    name = f"cmdlog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.settimeout(WAIT_S)
        ServiceNotices({"NOTIFY_SOCKET": f"@{name}"}).say_stopping()
        assert heard(listener)["STOPPING"] == "1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"NOTIFY_SOCKET": ""}])
def test_without_systemd_nothing_happens(environ: dict[str, str]) -> None:
    """No socket, or one that is gone, stops nobody; no loop is needed."""
    notices = ServiceNotices(environ)
    notices.say_opening()
    notices.say_ready()
    notices.say_stopping()


@pytest.mark.parametrize("more", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "soon"}])
def test_a_watchdog_of_another_process_gets_no_signs(manager: socket.socket, more: dict[str, str]) -> None:
    """Ready is said all the same, and no loop is needed."""
    ServiceNotices({"NOTIFY_SOCKET": str(manager.getsockname()), "WATCHDOG_USEC": "30000", **more}).say_ready()
    assert heard(manager)["READY"] == "1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


@pytest.mark.slow
def test_a_server_tells_systemd_when_it_serves_and_stops(tmp_path: Path, manager: socket.socket) -> None:
    """READY=1 comes when calls are served, then signs of life, then STOPPING=1; the process ends in order."""
    environment = {
        **without_settings(),
        "NOTIFY_SOCKET": str((Path.cwd() / manager.getsockname()).resolve()),
        "WATCHDOG_USEC": "900000",
    }
    options = ("--data", str(tmp_path / "data"), "--port", "0", "--preallocate", "ahead", "--partitions", "1")
    server = ChildProcess(
        "cmdlog.cli", "serve", "procedures.samples.ledger:db", *options, environment=environment, stdout=DEVNULL
    )
    with server:
        assert heard(manager) == {"STATUS": "opening the data directory"}
        assert heard(manager)["READY"] == "1"
        assert heard(manager) == {"WATCHDOG": "1"}
        server.send_signal(signal.SIGTERM)
        while (notice := heard(manager)) == {"WATCHDOG": "1"}:
            pass
        assert notice["STOPPING"] == "1"
        assert server.wait(WAIT_S) == 0
