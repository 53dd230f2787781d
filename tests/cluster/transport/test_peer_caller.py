"""Calling a peer again and again: pauses grow, end with a nudge, and begin again after a connection that lived."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.known_peer import KnownPeer
from cmdlog.cluster.transport.peer_admission import PeerAdmission
from cmdlog.cluster.transport.peer_caller import PeerCaller
from cmdlog.cluster.transport.peer_link import PeerLink
from cmdlog.cluster.transport.peer_transport import NoticeKind, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.raft.wire.control_frames import RefusalReason
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from tests.cluster.transport.linkkit import PeerBench, Wire, turn_until
from tests.cluster.transport.netkit import TWO, identity_of, open_book

SETTINGS = TransportSettings(pause_s_min=0.001, pause_s_max=0.008)


class Calls:
    """A caller whose connections are made by `outcomes`, one after the other; the last one is waited for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[Callable[[], PeerLink]]) -> None:
        self.bench, self.outcomes, self.done = PeerBench(), outcomes, asyncio.Event()
        self.pauses: list[float] = []
        monkeypatch.setattr(random, "uniform", self.draw)
        admission = PeerAdmission(
            open_book(folder, identity_of(1)), {TWO: self.bench.peer}.get, self.bench.notices.append, QuietLog(), 1.0
        )
        self.caller = PeerCaller(self.bench.peer, self.connect, admission, QuietLog(), SETTINGS)

    def draw(self, low: float, high: float) -> float:
        """Chance: the whole pause."""
        assert (low, high) == (0.5, 1.0)
        self.pauses.append(self.caller._pause_s)  # the next one
        return high

    async def connect(self, _: KnownPeer) -> PeerLink:
        if not self.outcomes:
            self.done.set()
            await asyncio.Event().wait()
        return self.outcomes.pop(0)()

    async def run(self) -> None:
        """Until all outcomes have been."""
        task = asyncio.ensure_future(self.caller.run())
        await self.done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def failing(error: Exception) -> Callable[[], PeerLink]:
    """A call that ends so."""

    def fail() -> PeerLink:
        raise error

    return fail


def lived(*, answered: bool) -> Callable[[], PeerLink]:
    """A connection that was made, and is over."""

    def connect() -> PeerLink:
        link = Wire().outgoing
        link.answered = answered
        link.connection.connection_lost(None)
        return link

    return connect


def test_pauses_double_up_to_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps the peer from being reached."""

    async def body() -> None:
        errors = [OSError("refused"), TimeoutError(), UnicodeError("no such name"), OSError("again"), OSError("again")]
        calls = Calls(tmp_path, monkeypatch, [failing(error) for error in errors])
        await calls.run()
        assert calls.pauses == [0.002, 0.004, 0.008, 0.008, 0.008]
        assert calls.bench.peer.last_error == "again"

    asyncio.run(body())


def test_a_connection_that_lived_ends_the_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never answered does not: it may be cut off each time."""

    async def body() -> None:
        calls = Calls(tmp_path, monkeypatch, [lived(answered=False), lived(answered=False), lived(answered=True)])
        await calls.run()
        assert calls.pauses == [0.002, 0.004, 0.002]

    asyncio.run(body())


def test_who_is_refused_calls_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes by itself; it is noticed, though."""

    async def body() -> None:
        calls = Calls(tmp_path, monkeypatch, [failing(RefusedByPeer(TWO, RefusalReason.NOT_A_MEMBER))])
        await calls.run()
        assert calls.pauses == [SETTINGS.pause_s_max]
        assert [notice.kind for notice in calls.bench.notices] == [NoticeKind.REFUSED_BY_PEER]
        assert "not_a_member" in calls.bench.peer.last_error

    asyncio.run(body())


def test_frames_that_are_refused_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a handshake too."""

    async def body() -> None:
        calls = Calls(tmp_path, monkeypatch, [failing(BadFrame(FrameFault.MAC, "forged"))])
        await calls.run()
        assert calls.bench.peer.status(None).faults == {"mac": 1}

    asyncio.run(body())


def test_a_nudge_ends_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that calls is called back at once, however long the pause would be."""

    async def body() -> None:
        calls = Calls(tmp_path, monkeypatch, [failing(OSError("refused"))])
        monkeypatch.setattr(random, "uniform", lambda _low, _high: 1e9)
        running = asyncio.ensure_future(calls.run())
        await turn_until(lambda: not calls.outcomes)
        calls.bench.peer.nudge.set()
        await running

    asyncio.run(body())
