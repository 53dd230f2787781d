"""Who becomes a peer's connection: members, with the known incarnation, one process of each; what outlives connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.peer_admission import KnownPeer, PeerAdmission, PeerCaller
from cmdlog.cluster.transport.peer_book import PeerRecord, PeerRefused
from cmdlog.cluster.transport.peer_link import PeerLink
from cmdlog.cluster.transport.peer_transport import NoticeKind, TransportSettings
from cmdlog.cluster.transport.quiet_log import QuietLog
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart, RefusalReason
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.errors import DiskFull
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.linkkit import AGAIN, START, PeerBench, Wire, turn_until
from tests.cluster.transport.netkit import ONE, THREE, TWO, appended, identity_of, open_book

PEER = Peer(TWO, identity_of(2).incarnation)


class Gate:
    """An admission for one known peer."""

    def __init__(self, folder: Path, challenge_s: float = 0.01) -> None:
        self.bench = PeerBench()
        self.book = open_book(folder, identity_of(1))
        self.members = {TWO: self.bench.peer}
        self.admission = PeerAdmission(self.book, self.members.get, self.bench.notices.append, QuietLog(), challenge_s)
        self.attached: list[KnownPeer] = []

    async def accept(self, start: ProcessStart, peer: Peer = PEER, *, takes_us: bool = False) -> None:
        """A process that has proved to hold the secret."""
        connection = FramedConnection(silence_s=1.0)
        FakeTransport(connection)
        await self.admission.accept(connection, peer, start, self.attached.append, takes_us=takes_us)

    async def refusal(self, start: ProcessStart, peer: Peer = PEER) -> RefusalReason:
        """Why it is refused."""
        with pytest.raises(PeerRefused) as refused:
            await self.accept(start, peer)
        return refused.value.reason


def test_what_is_accepted_is_durable_before_it_is_attached(tmp_path: Path) -> None:
    """Incarnation, confirmation and start; the confirmation is noticed once."""

    async def body() -> None:
        gate = Gate(tmp_path)
        await gate.admission.pin(PEER)
        assert open_book(tmp_path, identity_of(1)).records[TWO].incarnation == PEER.incarnation
        assert gate.book.confirmed == frozenset()
        await gate.accept(START)
        await gate.accept(START)
        assert gate.attached == [gate.bench.peer] * 2
        assert open_book(tmp_path, identity_of(1)).records[TWO].start == START
        assert [notice.kind for notice in gate.bench.notices] == [NoticeKind.CONFIRMED]

    asyncio.run(body())


def test_only_members_are_accepted(tmp_path: Path) -> None:
    """And nothing is stored of others."""

    async def body() -> None:
        gate = Gate(tmp_path)
        stranger = Peer(THREE, b"life-of3")
        assert await gate.refusal(START, stranger) is RefusalReason.NOT_A_MEMBER
        with pytest.raises(PeerRefused):
            await gate.admission.pin(stranger)
        assert gate.book.records == {}

    asyncio.run(body())


def test_a_process_that_answers_keeps_its_place(tmp_path: Path) -> None:
    """Whatever the other one's start is; nothing of it is stored."""

    async def body() -> None:
        gate, wire = Gate(tmp_path, challenge_s=60.0), Wire()
        await gate.accept(START)
        gate.bench.peer.attach_incoming(wire.incoming)
        wire.outgoing.open(lambda: None)
        asked = asyncio.ensure_future(gate.refusal(AGAIN))
        await turn_until(lambda: wire.called_end.written)
        wire.carry()
        assert await asked is RefusalReason.DUPLICATE
        assert gate.book.records[TWO].start == START
        assert not wire.called_end.aborted

    asyncio.run(body())


def test_a_process_that_is_gone_makes_room(tmp_path: Path) -> None:
    """Its connection may be half open for long; a later start takes its place for good."""

    async def body() -> None:
        gate, wire = Gate(tmp_path), Wire()
        await gate.accept(START)
        gate.bench.peer.attach_incoming(wire.incoming)
        await gate.accept(AGAIN)
        assert wire.called_end.aborted
        assert await gate.refusal(START) is RefusalReason.EARLIER_START

    asyncio.run(body())


def test_the_same_process_is_not_challenged(tmp_path: Path) -> None:
    """It calls again because its connection was lost."""

    async def body() -> None:
        gate, wire = Gate(tmp_path), Wire()
        gate.bench.peer.attach_incoming(wire.incoming)
        await gate.accept(START)
        assert wire.called_end.written == b""

    asyncio.run(body())


def test_a_connection_that_ended_meanwhile_is_not_attached(tmp_path: Path) -> None:
    """Nor is one whose node was removed while it was written down."""

    async def body() -> None:
        gate, connection = Gate(tmp_path), FramedConnection(silence_s=1.0)
        FakeTransport(connection).lose()
        with pytest.raises(ConnectionEnded):
            await gate.admission.accept(connection, PEER, START, gate.attached.append)
        assert gate.attached == []

    asyncio.run(body())


def test_a_refusal_as_a_copy_is_durable_until_the_peer_takes_us(tmp_path: Path) -> None:
    """Not one for another reason, and not our own refusal of the peer."""

    async def body() -> None:
        gate = Gate(tmp_path)
        await gate.accept(START)
        gate.admission.report(RefusedByPeer(TWO, RefusalReason.UNAVAILABLE), TWO)
        gate.admission.report(PeerRefused(PEER, RefusalReason.EARLIER_START, "a backup"), TWO)
        assert not gate.book.records[TWO].met_later
        gate.admission.report(RefusedByPeer(TWO, RefusalReason.EARLIER_START), TWO)
        assert open_book(tmp_path, identity_of(1)).records[TWO].met_later
        await gate.accept(START)
        assert gate.book.records[TWO].met_later
        await gate.accept(START, takes_us=True)
        assert not gate.book.records[TWO].met_later

    asyncio.run(body())


def test_a_book_that_cannot_be_written_stops_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next refusal tries again; this one is noticed all the same."""

    def full(_node: NodeId) -> None:
        raise DiskFull("no room")

    gate = Gate(tmp_path)
    monkeypatch.setattr(gate.book, "note_later", full)
    gate.admission.report(RefusedByPeer(TWO, RefusalReason.DUPLICATE), TWO)
    assert [notice.kind for notice in gate.bench.notices] == [NoticeKind.REFUSED_BY_PEER, NoticeKind.DUPLICATE]


def test_refusals_are_noticed_and_copies_counted(tmp_path: Path) -> None:
    """By this end and by the other one."""
    gate = Gate(tmp_path)
    gate.admission.report(PeerRefused(PEER, RefusalReason.UNKNOWN_INCARNATION, "another"), TWO)
    assert gate.admission.duplicates == 0
    gate.admission.report(PeerRefused(PEER, RefusalReason.EARLIER_START, "a backup"), TWO)
    gate.admission.report(RefusedByPeer(TWO, RefusalReason.DUPLICATE), TWO)
    assert gate.admission.duplicates == 2
    assert [notice.kind for notice in gate.bench.notices] == [
        NoticeKind.REFUSED,
        NoticeKind.REFUSED,
        NoticeKind.DUPLICATE,
        NoticeKind.REFUSED_BY_PEER,
        NoticeKind.DUPLICATE,
    ]


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


def test_the_queue_is_open_while_messages_can_leave() -> None:
    """What waited is lost with the connection; why it ended is shown until there is another one."""

    async def body() -> None:
        bench = PeerBench()
        wire = Wire(outbox=bench.outbox)
        bench.outbox.put(appended(ONE, TWO, 1))
        bench.peer.attach_outgoing(wire.outgoing)
        bench.outbox.put(appended(ONE, TWO, 2))
        assert bench.peer.status(None).queue_messages == 1
        wire.caller_end.lose()
        assert bench.peer.outgoing is None
        assert bench.peer.status(None).dropped_messages == 2
        assert [(notice.kind, notice.detail) for notice in bench.notices] == [
            (NoticeKind.CONNECTED, ""),
            (NoticeKind.DISCONNECTED, "the peer hung up"),
        ]
        assert bench.peer.status(None).last_error == "the peer hung up"
        bench.peer.attach_outgoing(Wire(outbox=bench.outbox).outgoing)
        assert bench.peer.status(None).last_error == ""

    asyncio.run(body())


def test_a_later_connection_takes_the_place_of_an_earlier_one() -> None:
    """The earlier may be half open; its end, whenever it is noticed, changes nothing."""

    async def body() -> None:
        bench = PeerBench()
        first, second = Wire(outbox=bench.outbox), Wire(outbox=bench.outbox)
        for wire in (first, second):
            bench.peer.attach_outgoing(wire.outgoing)
            bench.peer.attach_incoming(wire.incoming)
        assert first.caller_end.aborted
        assert first.called_end.aborted
        first.caller_end.lose()
        first.called_end.lose()
        assert bench.peer.links == [second.outgoing, second.incoming]
        bench.outbox.put(appended(ONE, TWO, 1))
        assert bench.peer.status(None).queue_messages == 1

    asyncio.run(body())


def test_a_peer_that_calls_is_called_back_at_once() -> None:
    """Unless it is connected."""

    async def body() -> None:
        bench, wire = PeerBench(), Wire()
        bench.peer.attach_incoming(wire.incoming)
        assert bench.peer.nudge.is_set()
        bench.peer.nudge.clear()
        bench.peer.attach_outgoing(wire.outgoing)
        bench.peer.attach_incoming(Wire().incoming)
        assert not bench.peer.nudge.is_set()

    asyncio.run(body())


def test_counters_outlive_connections() -> None:
    """Bytes, frames, faults and the last error, of all connections together."""

    async def body() -> None:
        bench, data = PeerBench(), b""
        for _ in range(2):
            wire = Wire(outbox=bench.outbox)
            bench.peer.attach_incoming(wire.incoming)
            wire.outgoing._outbox.open()
            wire.outgoing._outbox.put(appended(ONE, TWO, 1))
            wire.outgoing.flush()
            data = wire.caller_end.written
            wire.called.data_received(data + data)
            wire.called_end.lose()
        status = bench.peer.status(PeerRecord(b"life-of2", confirmed=True))
        assert (status.in_frames, status.faults) == (2, {"sequence": 2})
        assert status.in_bytes == 4 * len(data)
        assert "sequence" in status.last_error
        assert status.incarnation == b"life-of2".hex()
        assert [type(error) for error in bench.errors] == [BadFrame] * 2
        bench.peer.count_fault(BadFrame(FrameFault.SENDER, "another node"))
        assert bench.peer.status(None).faults == {"sequence": 2, "sender": 1}

    asyncio.run(body())


def test_the_status_counts_what_goes_each_way() -> None:
    """Of the connections that are over and of the present ones; the round trip is that of the present one."""

    async def body() -> None:
        bench, sent = PeerBench(), 0
        wires = [Wire(outbox=bench.outbox) for _ in range(2)]
        for number, wire in enumerate(wires, 1):
            bench.peer.attach_outgoing(wire.outgoing)
            bench.peer.attach_incoming(wire.incoming)
            bench.outbox.put(appended(ONE, TWO, 1))
            wire.outgoing.flush()
            sent += len(wire.caller_end.written)
            wire.carry()
            status = bench.peer.status(PeerRecord(b"life-of2", confirmed=True))
            assert (status.connections, status.out_frames, status.out_messages) == (number, number, number)
            assert status.out_bytes == sent
            assert (status.in_frames, status.in_messages, status.in_bytes) == (number, number, sent)
            assert (status.confirmed, status.round_trip_s) == (True, None)
        wires[-1].outgoing.check_life(2)
        wires[-1].carry()
        assert bench.peer.status(None).round_trip_s is not None

    asyncio.run(body())


def test_another_address_ends_the_call() -> None:
    """The same one does not."""

    async def body() -> None:
        bench = PeerBench()
        wire = Wire(outbox=bench.outbox)
        bench.peer.attach_outgoing(wire.outgoing)
        bench.peer.call_elsewhere(bench.peer.address)
        assert not wire.caller_end.aborted
        bench.peer.call_elsewhere(("::1", 9))
        assert wire.caller_end.aborted
        assert bench.peer.nudge.is_set()
        assert bench.peer.status(None).address == "[::1]:9"

    asyncio.run(body())


def test_an_error_without_words_is_given_some() -> None:
    """A time-out has none."""

    async def body() -> None:
        bench = PeerBench()
        bench.peer.record_error(TimeoutError())
        assert bench.peer.status(None).last_error == "no answer in time"

    asyncio.run(body())
