"""The real frames between simulated nodes, and somebody on the wire who damages, repeats and swaps them.

One rule: what reaches a node is exactly what was sent to it, once and in its session; every damaged, repeated or foreign frame is
refused as a whole, and no message comes of it.

There is a session for each pair of processes and direction; a new process on either side begins a new one. Frames of one link
arrive in order, as on a connection, whatever their delays.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cmdlog.raft import Message, NodeId
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FrameSealer, Link, Opener, Peer, Seal, Secret
from cmdlog.wal.ids import PartitionId
from tests.raft.sim.oracle import Violation

if TYPE_CHECKING:
    from tests.raft.sim.world import Node

GROUP: Final = PartitionId(7)
CLUSTER: Final = bytes(range(16))
SECRET: Final = Secret(b"secret of the simulated cluster!")
RECORDED_MAX: Final = 64  # frames that the eavesdropper keeps, of all links and sessions
ATTACK_RATE: Final = 0.1  # per frame that arrives


@dataclass(slots=True)
class Wire:
    """One session in one direction."""

    sender: Node
    receiver: Node
    lives: tuple[int, int, int, int]
    sealer: FrameSealer
    opener: Opener
    under_way: deque[tuple[bytes, Message]] = field(default_factory=deque)


class Wires:
    """All links of a world."""

    def __init__(self, rng: random.Random, seal: Seal, counts: Counter[str]) -> None:
        self._rng, self._seal, self._counts = rng, seal, counts
        self._encoder = SECRET.encoder(seal)
        self._wires: dict[tuple[NodeId, NodeId], Wire] = {}
        self._sessions = 0
        self._recorded: deque[bytes] = deque(maxlen=RECORDED_MAX)

    def put(self, sender: Node, receiver: Node, message: Message) -> Wire:
        """Puts a frame under way; returns the link from which it is taken when it arrives."""
        wire = self._wire(sender, receiver)
        (frame,) = wire.sealer.seal([(GROUP, message)])
        wire.under_way.append((frame, message))
        return wire

    def take(self, wire: Wire) -> Message | None:
        """The next frame of the link arrives; None when nothing comes of it. Raises: Violation."""
        frame, message = wire.under_way.popleft()
        current = self._wire(wire.sender, wire.receiver)
        if current is not wire:
            self._refused(current.opener, frame, "frames of an earlier session")
            return None
        if self._rng.random() < ATTACK_RATE:
            self._refused(wire.opener, self._damaged(frame), "frames damaged")
            return None
        arrived = wire.opener.open(frame)
        if arrived != [(GROUP, message)]:
            raise Violation(f"sent was {message}, but {arrived} came out of the frame")
        self._recorded.append(frame)
        if self._rng.random() < ATTACK_RATE:
            self._refused(wire.opener, self._rng.choice(self._recorded), "frames repeated")
        return message

    def _wire(self, sender: Node, receiver: Node) -> Wire:
        lives = sender.life, sender.incarnation, receiver.life, receiver.incarnation
        wire = self._wires.get((sender.id, receiver.id))
        if wire is None or wire.lives != lives:
            self._sessions += 1
            there, here = (Peer(node.id, node.incarnation.to_bytes(8)) for node in (sender, receiver))
            link = Link(CLUSTER, there, here, self._sessions.to_bytes(8), self._seal)
            wire = Wire(sender, receiver, lives, FrameSealer(link, SECRET, self._encoder), Opener(link, SECRET))
            self._wires[sender.id, receiver.id] = wire
        return wire

    def _damaged(self, frame: bytes) -> bytes:
        rng, at = self._rng, self._rng.randrange(len(frame))
        kind = rng.randrange(4)
        if kind == 0:
            return frame[:at]
        if kind == 1:
            return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
        if kind == 2:
            return frame + rng.randbytes(1 + at % 9)
        other = rng.choice(self._recorded) if self._recorded else b""
        spliced = frame[:at] + other[at:]  # the end of another frame
        return spliced if spliced != frame else frame[:at]

    def _refused(self, opener: Opener, frame: bytes, what: str) -> None:
        self._counts[what] += 1
        try:
            messages = opener.open(frame)
        except BadFrame:
            return
        if messages:
            raise Violation(f"a frame that should be refused ({what}) gave {messages}")
