"""An established connection: messages one way, signs of life both ways, and challenges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cmdlog.cluster.transport.handshake import RefusedByPeer
from cmdlog.cluster.transport.peer_link import BATCH_BYTES, BATCHES_AT_ONCE
from cmdlog.raft.wire.control_frames import ControlKind, RefusalReason
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FRAME_BYTES_MAX, FrameSealer, Seal
from tests.cluster.transport.linkkit import Wire, sessions, turns
from tests.cluster.transport.netkit import ONE, SECRET, TWO, appended, indexes


def in_loop(body: Callable[[], Awaitable[None]]) -> None:
    """Runs the body of a test in an event loop."""

    async def run() -> None:
        await body()

    asyncio.run(run())


def test_messages_go_from_the_caller_to_the_called() -> None:
    """In batches, in their order, and counted at both ends."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        for index in (1, 2, 3):
            wire.outbox.put(appended(ONE, TWO, index))
        wire.outgoing.flush()
        wire.carry()
        assert indexes(wire.heard) == [1, 2, 3]
        assert (wire.outgoing.frames, wire.incoming.frames) == (1, 1)

    in_loop(body)


def test_nothing_is_sealed_while_the_socket_is_full() -> None:
    """It stays in the outbox, where a heartbeat can still overtake it; it leaves when the socket has room."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        wire.caller.pause_writing()
        wire.outbox.put(appended(ONE, TWO, 1))
        wire.outgoing.flush()
        assert wire.caller_end.written == b""
        wire.caller.resume_writing()
        wire.carry()
        assert indexes(wire.heard) == [1]

    in_loop(body)


def test_a_long_queue_gives_others_a_turn() -> None:
    """A few batches at once, the rest in later turns of the loop."""

    async def body() -> None:
        wire = Wire()
        wire.outbox.bytes_max = 1 << 30
        wire.open()
        count = BATCHES_AT_ONCE + 3
        for index in range(1, count + 1):
            wire.outbox.put(appended(ONE, TWO, index, BATCH_BYTES))
        wire.outgoing.flush()
        assert wire.outgoing.frames == BATCHES_AT_ONCE
        await turns()
        wire.carry()
        assert indexes(wire.heard) == list(range(1, count + 1))

    in_loop(body)


def test_a_message_that_no_frame_holds_is_dropped() -> None:
    """And nothing else of its batch."""

    async def body() -> None:
        wire = Wire()
        wire.outbox.bytes_max = 1 << 30
        wire.open()
        for index, size in ((1, 10), (2, FRAME_BYTES_MAX), (3, 10)):
            wire.outbox.put(appended(ONE, TWO, index, size))
        wire.outgoing.flush()
        await turns()
        wire.carry()
        assert indexes(wire.heard) == [1, 3]
        assert wire.outbox.dropped_messages == 1

    in_loop(body)


def test_messages_from_the_called_end_are_refused() -> None:
    """They have a connection of their own."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        back = FrameSealer(wire.incoming.session.outgoing, SECRET, SECRET.encoder(Seal.WHOLE))
        (frame,) = back.seal(appended(TWO, ONE, 1).messages)
        wire.caller.data_received(frame)
        assert wire.caller_end.aborted
        assert isinstance(wire.caller.error, BadFrame)

    in_loop(body)


def test_signs_of_life_go_both_ways_and_are_timed() -> None:
    """The caller asks, the called end answers, and says as well that bytes came in; neither falls silent."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        for _ in range(20):
            wire.outgoing.check_life(2)
            wire.carry()
            wire.incoming.check_life(2)
            wire.carry()
        assert not wire.caller.is_ending
        assert not wire.called.is_ending
        assert wire.outgoing.answered
        assert wire.outgoing.round_trip_s is not None
        assert len(wire.outgoing._probed_s) <= 1

    in_loop(body)


@pytest.mark.parametrize("end", ["outgoing", "incoming"])
def test_silence_ends_a_connection(end: str) -> None:
    """After so many checks without a byte; one byte starts the count again."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        link = wire.outgoing if end == "outgoing" else wire.incoming
        for _ in range(2):
            link.check_life(3)
        assert not link.connection.is_ending
        link.connection.in_bytes += 1
        for _ in range(3):
            link.check_life(3)
        assert not link.connection.is_ending
        link.check_life(3)
        assert "no sign of life" in str(link.connection.error)

    in_loop(body)


def test_bytes_of_a_large_frame_are_a_sign_of_life() -> None:
    """The called end says that they come in, though the frame is not whole."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        wire.outbox.put(appended(ONE, TWO, 1, 5000))
        wire.outgoing.flush()
        data, wire.caller_end.written = wire.caller_end.written, b""
        for at in range(0, 1000, 100):
            wire.called.data_received(data[at : at + 100])
            wire.incoming.check_life(2)
            wire.carry()
            wire.caller.pause_writing()  # it cannot ask
            wire.outgoing.check_life(2)
        assert not wire.caller.is_ending
        assert wire.heard == []

    in_loop(body)


@pytest.mark.parametrize("end", ["outgoing", "incoming"])
def test_a_challenge_is_answered_by_a_live_process(end: str) -> None:
    """Either end may ask."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        link = wire.outgoing if end == "outgoing" else wire.incoming
        asked = asyncio.ensure_future(link.challenge(60.0))
        await turns()
        wire.carry()
        assert await asked

    in_loop(body)


def test_a_challenge_fails_in_time_and_with_the_connection() -> None:
    """Nobody waits for a process that is gone."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        assert not await wire.incoming.challenge(0.01)
        asked = asyncio.ensure_future(wire.incoming.challenge(60.0))
        await turns()
        wire.called_end.lose()
        assert not await asked
        assert wire.ended == ["incoming"]
        assert not await wire.incoming.challenge(60.0)

    in_loop(body)


def test_a_refusal_ends_the_connection_with_its_reason() -> None:
    """Also later than the handshake, and one whose number is not known."""

    async def body() -> None:
        for reason, word in ((RefusalReason.DUPLICATE, "duplicate"), (99, "reason_99")):
            wire = Wire()
            wire.open()
            wire.caller.data_received(wire.incoming.session.controls_out.seal(ControlKind.REFUSED, reason))
            assert isinstance(wire.caller.error, RefusedByPeer)
            assert wire.caller.error.kind == word

    in_loop(body)


def test_who_does_not_read_gets_no_more_answers() -> None:
    """Questions without end would otherwise fill our memory with answers."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        wire.called.pause_writing()
        for number in range(100):
            wire.called.data_received(wire.outgoing.session.controls_out.seal(ControlKind.PROBE, number))
        assert wire.called_end.written == b""

    in_loop(body)


def test_control_frames_of_later_versions_are_skipped() -> None:
    """A kind that is not known changes nothing."""

    async def body() -> None:
        wire = Wire()
        wire.open()
        wire.called.data_received(wire.outgoing.session.controls_out.seal(77))  # type: ignore[arg-type]
        assert not wire.called.is_ending
        assert sessions()[0].peer.node == TWO

    in_loop(body)
