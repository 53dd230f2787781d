"""The beginning of a connection, message by message, against a peer that does it wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import RefusedByPeer, answer_peer, call_peer, naming_refusals, read_pinned
from cmdlog.cluster.transport.peer_book import PeerRefused
from cmdlog.operator_error import OperatorError
from cmdlog.raft.wire.control_frames import ControlKind, ProcessStart, RefusalReason
from cmdlog.raft.wire.layout import BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import NONCE_BYTES, Hello, Peer, decode_hello
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.linkkit import credentials, turns
from tests.cluster.transport.netkit import ONE, THREE, TWO


class Ends:
    """A caller and a called end in memory."""

    def __init__(self) -> None:
        self.caller, self.called = FramedConnection(silence_s=1.0), FramedConnection(silence_s=1.0)
        self.from_caller, self.from_called = FakeTransport(self.caller), FakeTransport(self.called)

    async def carry(self) -> None:
        """Moves what was written, until both ends wait."""
        for _ in range(20):
            await turns(2)
            for source, target in ((self.from_caller, self.called), (self.from_called, self.caller)):
                data, source.written = source.written, b""
                if data:
                    target.data_received(data)


def test_both_ends_learn_who_the_other_is(tmp_path: Path) -> None:
    """The caller has pinned before it says so; the called end learns the caller's process."""

    async def body() -> None:
        first = credentials(tmp_path, ONE).book  # an earlier start of the caller's directory
        one, two, ends = credentials(tmp_path, ONE), credentials(tmp_path, TWO), Ends()
        pinned: list[Peer] = []

        async def pin(peer: Peer) -> None:
            assert ends.from_caller.written == b""  # nothing is said before it is durable
            pinned.append(peer)

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        answering = asyncio.ensure_future(answer_peer(ends.called, two))
        await ends.carry()
        ours, (theirs, start) = await calling, await answering
        assert pinned == [two.hello.me] == [ours.peer]
        assert (theirs.peer, start) == (one.hello.me, one.book.start)
        assert start.earlier == one.book.start.earlier == (first.start.process,)
        ends.called.write(theirs.controls_out.seal(ControlKind.PINNED, 5))
        await ends.carry()
        said = await read_pinned(ends.caller, ours)
        assert (said, said.earlier) == (ProcessStart(5, two.book.start.process), ())

    asyncio.run(body())


def test_a_refusal_is_named_to_the_other_end(tmp_path: Path) -> None:
    """The caller refuses the called one: that one learns why, and neither waits."""

    async def body() -> None:
        one, two, ends = credentials(tmp_path, ONE), credentials(tmp_path, TWO), Ends()

        async def pin(peer: Peer) -> None:
            raise PeerRefused(peer, RefusalReason.STALE_INCARNATION, "replaced")

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        answering = asyncio.ensure_future(answer_peer(ends.called, two))
        await ends.carry()
        with pytest.raises(PeerRefused):
            await calling
        with pytest.raises(RefusedByPeer, match="stale_incarnation"):
            await answering
        assert ends.from_caller.is_closing()

    asyncio.run(body())


def test_a_disk_that_fails_is_named_unavailable(tmp_path: Path) -> None:
    """The other end learns that it is not its fault."""

    async def body() -> None:
        one, two, ends = credentials(tmp_path, ONE), credentials(tmp_path, TWO), Ends()

        async def pin(_: Peer) -> None:
            raise OperatorError("no space")

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        answering = asyncio.ensure_future(answer_peer(ends.called, two))
        await ends.carry()
        with pytest.raises(OperatorError, match="no space"):
            await calling
        with pytest.raises(RefusedByPeer, match="unavailable"):
            await answering

    asyncio.run(body())


def test_another_node_that_answers_is_refused(tmp_path: Path) -> None:
    """An address that belongs to somebody else, who holds the secret."""

    async def body() -> None:
        one, three, ends = credentials(tmp_path, ONE), credentials(tmp_path, THREE), Ends()

        async def pin(_: Peer) -> None:
            raise AssertionError("nobody is pinned")

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        answering = asyncio.ensure_future(answer_peer(ends.called, three))
        await ends.carry()
        with pytest.raises(BadFrame) as refused:
            await answering
        assert refused.value.fault is FrameFault.RECEIVER
        ends.called.end(refused.value)
        ends.from_called.lose()
        ends.from_caller.lose()
        with pytest.raises(OSError, match="hung up before it said hello: it may have another secret"):
            await calling

    asyncio.run(body())


def test_answer_in_the_name_of_another_node_is_refused(tmp_path: Path) -> None:
    """A node that takes calls for a third one: it holds the secret, and does not look for whom a hello is."""

    async def body() -> None:
        one, two, three, ends = (*(credentials(tmp_path, node) for node in (ONE, TWO, THREE)), Ends())

        async def pin(_: Peer) -> None:
            raise AssertionError("nobody is pinned")

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        await ends.carry()
        call = decode_hello(await ends.called.receive(), secret=two.hello.secret, cluster=two.hello.cluster, receiver=TWO)
        answer = Hello(three.hello.cluster, three.hello.me, ONE, bytes(NONCE_BYTES), echo=call.nonce)
        ends.called.write(answer.encode(three.hello.secret))
        await ends.carry()
        with pytest.raises(BadFrame, match="node 3 answers at the address of node 2") as refused:
            await calling
        assert refused.value.fault is FrameFault.SENDER

    asyncio.run(body())


def test_anything_but_pinned_after_the_hellos_is_refused(tmp_path: Path) -> None:
    """A caller that asks before it has confirmed."""

    async def body() -> None:
        one, two, ends = credentials(tmp_path, ONE), credentials(tmp_path, TWO), Ends()
        hold = asyncio.Event()

        async def pin(_: Peer) -> None:
            await hold.wait()

        calling = asyncio.ensure_future(call_peer(ends.caller, one, TWO, pin))
        answering = asyncio.ensure_future(answer_peer(ends.called, two))
        await ends.carry()
        hold.set()
        await turns()
        session = await calling
        ends.from_caller.written = b""
        ends.called.data_received(session.controls_out.seal(ControlKind.PROBE, 1))
        with pytest.raises(BadFrame) as refused:
            await answering
        assert refused.value.fault is FrameFault.MALFORMED
        assert replace(session).peer == two.hello.me

    asyncio.run(body())


def test_refusals_that_are_no_errors_of_ours_say_nothing(tmp_path: Path) -> None:
    """A connection that is lost has nobody to be told."""

    async def body() -> None:
        one, ends = credentials(tmp_path, ONE), Ends()
        from tests.cluster.transport.linkkit import sessions

        with pytest.raises(OSError, match="gone"), naming_refusals(ends.caller, sessions()[0]):
            raise OSError("gone")
        assert ends.from_caller.written == b""
        assert one.hello.me.node == ONE

    asyncio.run(body())
