"""Accepting connections: strangers are few, the oldest makes room, and no descriptor is lost."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

import pytest

from cmdlog.cluster.transport import peer_acceptor
from cmdlog.cluster.transport.peer_acceptor import PeerAcceptor
from cmdlog.cluster.transport.quiet_log import QuietLog
from tests.cluster.transport.linkkit import turn_until
from tests.waiting import PATIENCE_S


class FullServer(socket.socket):
    """A listening socket for which there is no descriptor left, `refusals` times."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


class Hall:
    """An acceptor whose strangers wait until they are cancelled."""

    def __init__(self, strangers_max: int) -> None:
        self.listener = FullServer(socket.AF_INET)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.welcomed: list[socket.socket] = []
        self.left: list[socket.socket] = []
        self.acceptor = PeerAcceptor(self.listener, self.welcome, QuietLog(), strangers_max=strangers_max)
        self.callers: list[socket.socket] = []

    async def welcome(self, sock: socket.socket) -> None:
        self.welcomed.append(sock)
        try:
            await asyncio.Event().wait()
        finally:
            self.left.append(sock)
            sock.close()

    def call(self) -> socket.socket:
        """Somebody connects."""
        self.callers.append(socket.create_connection(self.listener.getsockname(), timeout=PATIENCE_S))
        return self.callers[-1]

    def close(self) -> None:
        self.acceptor.end_strangers()
        for sock in self.callers:
            sock.close()


def in_hall(body: Callable[[Hall], Awaitable[None]], strangers_max: int = 3) -> None:
    """Runs a test beside the acceptor."""

    async def run() -> None:
        hall = Hall(strangers_max)
        accepting = asyncio.ensure_future(hall.acceptor.run())
        try:
            await body(hall)
        finally:
            accepting.cancel()
            hall.close()
            await asyncio.wait([accepting])

    asyncio.run(run())


def test_the_oldest_stranger_makes_room() -> None:
    """So their number is bounded, and a newcomer is heard."""

    async def body(hall: Hall) -> None:
        for number in range(1, 8):
            hall.call()
            await turn_until(lambda number=number: len(hall.welcomed) == number)  # type: ignore[misc]
            assert hall.acceptor.strangers <= 3
        await turn_until(lambda: len(hall.left) == 4)
        assert hall.left == hall.welcomed[:4]
        assert hall.acceptor.evicted == 4

    in_hall(body)


def test_a_stranger_that_leaves_gives_its_place_back() -> None:
    """Nobody is evicted for it."""

    async def body(hall: Hall) -> None:
        for number in range(1, 4):
            hall.call()
            await turn_until(lambda number=number: len(hall.welcomed) == number)  # type: ignore[misc]
        next(iter(hall.acceptor._strangers)).cancel()
        await turn_until(lambda: hall.acceptor.strangers == 2)
        hall.call()
        await turn_until(lambda: len(hall.welcomed) == 4)
        assert hall.acceptor.evicted == 0

    in_hall(body)


def test_who_is_evicted_before_its_first_step_keeps_no_socket() -> None:
    """Its task never ran, so nobody else closes it."""

    async def body(hall: Hall) -> None:
        ours, theirs = socket.socketpair()
        hall.acceptor._take_stranger(ours)
        next(iter(hall.acceptor._strangers)).cancel()
        await turn_until(lambda: hall.acceptor.strangers == 0)
        assert ours.fileno() == -1
        assert hall.welcomed == []
        theirs.close()

    in_hall(body)


def test_no_descriptor_left_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not spin, and accepts again when there is one."""
    monkeypatch.setattr(peer_acceptor, "PAUSE_S", 0.001)

    async def body(hall: Hall) -> None:
        hall.listener.refusals = 3
        hall.call()
        hall.call()
        await turn_until(lambda: len(hall.welcomed) == 2)
        assert hall.listener.refusals == 0

    in_hall(body)


def test_ending_hangs_up_on_strangers() -> None:
    """And nobody else is accepted once `run` has ended."""

    async def run() -> None:
        hall = Hall(3)
        accepting = asyncio.ensure_future(hall.acceptor.run())
        caller = hall.call()
        await turn_until(lambda: len(hall.welcomed) == 1)
        accepting.cancel()
        await asyncio.gather(accepting, *hall.acceptor.end_strangers(), return_exceptions=True)
        assert hall.left == hall.welcomed
        assert caller.recv(1) == b""
        with pytest.raises(OSError):
            hall.call()
        caller.close()

    asyncio.run(run())
