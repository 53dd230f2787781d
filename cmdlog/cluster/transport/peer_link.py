"""One established connection with a peer: what is sent over it, what is heard, and whether the other end lives.

One rule: messages go one way, from the end that called. The called end answers with control frames alone. So each end notices for
itself that its own direction is lost, and the two directions never wait for one another.

Both ends want a sign of life every `probe_s`: the caller asks and is answered, which also measures the round trip; the called end
says as well that bytes come in, since after a large frame on a slow line the question itself may be long under way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from cmdlog.cluster.transport.framed_connection import ConnectionEnded, FramedConnection
from cmdlog.cluster.transport.handshake import RefusedByPeer, Session
from cmdlog.cluster.transport.outbox import Outbox
from cmdlog.raft.wire.control_frames import ControlFrame, ControlKind, ProcessStart, is_control
from cmdlog.raft.wire.encoding import Encoder
from cmdlog.raft.wire.layout import Addressed, BadFrame, FrameFault, MessageTooLarge
from cmdlog.raft.wire.secure_frames import FrameSealer, Opener, Peer, Secret

BATCH_BYTES: Final = 256 << 10  # of messages in one frame, unless the first is larger: what a heartbeat waits for
BATCHES_AT_ONCE: Final = 8  # then the other connections have their turn
TRAFFIC: Final = tuple(f"{way}_{what}" for way in ("out", "in") for what in ("bytes", "frames", "messages"))


class PeerLink:
    """What both ends have. Used in the loop's thread alone."""

    def __init__(self, connection: FramedConnection, session: Session, start: ProcessStart) -> None:
        self.connection, self.session, self.start = connection, session, start
        self.since_s = time.time()
        self.round_trip_s: float | None = None
        self.answered = False  # a probe of ours was
        self._silent, self._heard_bytes = 0, 0
        self._probes = 0
        self._probed_s: dict[int, float] = {}  # when each unanswered probe was sent
        self._challenges: dict[int, asyncio.Future[bool]] = {}

    @property
    def peer(self) -> Peer:
        return self.session.peer

    @property
    def faults(self) -> Counter[FrameFault]:
        """What was refused on this connection."""
        return self.connection.faults + self.session.controls_in.faults

    @property
    def traffic(self) -> Counter[str]:
        """What went the way of its messages: some of TRAFFIC."""
        raise NotImplementedError

    def open(self, on_closed: Callable[[], None]) -> None:
        """From now on frames are taken as they come."""

        def closed() -> None:
            for challenge in self._challenges.values():
                if not challenge.done():
                    challenge.set_result(False)
            on_closed()

        self.connection.deliver_to(self._take_frame, on_writable=self.flush, on_closed=closed)

    def flush(self) -> None:
        """Sends what waits."""

    def end(self, why: str) -> None:
        """Closes the connection at once."""
        self.connection.end(ConnectionEnded(why))

    def end_former(self) -> bool:
        """Closes it when the cluster has another name than it had when the connection was made; whether that is so."""
        if self.session.name.current == self.session.outgoing.cluster:
            return False
        self.end("the cluster has another name since a forced recovery")
        return True

    def check_life(self, silence_probes: int) -> None:
        """Called every `probe_s`: ends a connection that is silent, and sends our own sign of life."""
        heard = self.connection.in_bytes != self._heard_bytes
        self._heard_bytes = self.connection.in_bytes
        self._silent = 0 if heard else self._silent + 1
        if self._silent >= silence_probes:
            self.end("no sign of life")
        elif self.connection.writable:  # otherwise bytes wait already, and are one
            self._give_sign(heard=heard)

    async def challenge(self, wait_s: float) -> bool:
        """Whether the other end answers in time."""
        challenge: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._challenges[self._send_probe()] = challenge
        try:
            async with asyncio.timeout(wait_s):
                return not self.connection.is_ending and await challenge
        except TimeoutError:
            return False

    def _give_sign(self, *, heard: bool) -> None:
        raise NotImplementedError

    def _send_probe(self) -> int:
        self._probes += 1
        self._probed_s[self._probes] = time.monotonic()
        self._say_control(ControlKind.PROBE, self._probes)
        return self._probes

    def _say_control(self, kind: ControlKind, value: int) -> None:
        self.connection.write(self.session.controls_out.seal(kind, value))

    def _take_frame(self, frame: bytes) -> None:
        if self.end_former():
            return
        if is_control(frame):
            self._take_control(self.session.controls_in.open(frame))
        else:
            self._take_messages(frame)

    def _take_messages(self, frame: bytes) -> None:
        raise NotImplementedError

    def _take_control(self, said: ControlFrame) -> None:
        if said.kind == ControlKind.PROBE:
            if self.connection.writable:  # one that asks without reading the answers gets no more of them
                self._say_control(ControlKind.RECEIPT, said.value)
        elif said.kind == ControlKind.RECEIPT:
            self._take_receipt(said.value)
        elif said.kind == ControlKind.REFUSED:
            self.connection.end(RefusedByPeer(self.peer.node, said.value))

    def _take_receipt(self, number: int) -> None:
        sent_s = self._probed_s.pop(number, None)
        if sent_s is None:
            return
        self.answered = True
        self.round_trip_s = time.monotonic() - sent_s
        self._probed_s = {probe: at_s for probe, at_s in self._probed_s.items() if probe > number}
        if (challenge := self._challenges.pop(number, None)) is not None and not challenge.done():
            challenge.set_result(True)


class OutgoingLink(PeerLink):
    """The end that called: it sends what waits in the outbox."""

    def __init__(
        self,
        connection: FramedConnection,
        session: Session,
        start: ProcessStart,
        *,
        outbox: Outbox,
        secret: Secret,
        encoder: Encoder,
    ) -> None:
        super().__init__(connection, session, start)
        self.frames = self.messages = 0
        self._outbox = outbox
        self._sealer = FrameSealer(session.outgoing, secret, encoder)

    @property
    def traffic(self) -> Counter[str]:
        return Counter(out_bytes=self.connection.out_bytes, out_frames=self.frames, out_messages=self.messages)

    def flush(self) -> None:
        """Sends batches as long as the socket takes them."""
        for _ in range(BATCHES_AT_ONCE):
            if not self.connection.writable or not self._outbox.waits:
                return
            batch = self._outbox.take_batch(BATCH_BYTES)
            if self.end_former():  # asked after the batch was taken: it may hold what follows from the new name
                return
            self.messages += len(batch)
            for frame in self._seal(batch):
                self.connection.write(frame)
                self.frames += 1
        asyncio.get_running_loop().call_soon(self.flush)

    def _seal(self, batch: list[Addressed]) -> list[bytes]:
        try:
            return self._sealer.seal(batch)
        except MessageTooLarge:
            if len(batch) == 1:
                self._outbox.count_dropped(1, 0)
                return []
        return [frame for addressed in batch for frame in self._seal([addressed])]

    def _give_sign(self, *, heard: bool) -> None:
        self._send_probe()

    def _take_messages(self, frame: bytes) -> None:
        raise BadFrame(FrameFault.MAGIC, "messages from the end that was called")


class IncomingLink(PeerLink):
    """The end that was called: it passes on what it hears."""

    def __init__(
        self,
        connection: FramedConnection,
        session: Session,
        start: ProcessStart,
        *,
        secret: Secret,
        deliver: Callable[[list[Addressed]], None],
    ) -> None:
        super().__init__(connection, session, start)
        self.frames = self.messages = 0
        self._deliver = deliver
        self._opener = Opener(session.incoming, secret)

    @property
    def traffic(self) -> Counter[str]:
        return Counter(in_bytes=self.connection.in_bytes, in_frames=self.frames, in_messages=self.messages)

    @property
    def faults(self) -> Counter[FrameFault]:
        """Of messages too."""
        return super().faults + Counter(self._opener.faults)

    def _give_sign(self, *, heard: bool) -> None:
        if heard:
            self._say_control(ControlKind.RECEIPT, 0)

    def _take_messages(self, frame: bytes) -> None:
        messages = self._opener.open(frame)
        self.frames += 1
        self.messages += len(messages)
        self._deliver(messages)
