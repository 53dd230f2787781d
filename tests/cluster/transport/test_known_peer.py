"""One peer: its connections replace each other, its queue lives with the one that sends, its counters outlive them."""

from __future__ import annotations

import asyncio

from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.cluster.transport.peer_transport import NoticeKind
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from tests.cluster.transport.linkkit import PeerBench, Wire
from tests.cluster.transport.netkit import ONE, TWO, appended


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
        for number in (1, 2):
            wire = Wire(outbox=bench.outbox)
            bench.peer.attach_outgoing(wire.outgoing)
            bench.peer.attach_incoming(wire.incoming)
            bench.outbox.put(appended(ONE, TWO, 1))
            wire.outgoing.flush()
            sent += len(wire.caller_end.written)
            wire.carry()
            status = bench.peer.status(PeerRecord(b"life-of2", confirmed=True))
            assert (status.connections, status.out_frames, status.out_messages, status.out_bytes) == (
                number,
                number,
                number,
                sent,
            )
            assert (status.in_frames, status.in_messages, status.in_bytes) == (number, number, sent)
            assert (status.confirmed, status.round_trip_s) == (True, None)
        wire.outgoing.check_life(2)
        wire.carry()
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
