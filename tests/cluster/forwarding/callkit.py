"""Two ends of a link for calls in memory: a caller whose answers are kept, and a placer that answers when it is asked to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cmdlog.cluster.forwarding.call_link import CallLink, OutgoingCall
from cmdlog.cluster.forwarding.call_receiver import CallReceiver
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL, NO_KEY, AnswerRow, CallColumns, CallName, CallWindow
from cmdlog.cluster.transport.channel_session import ChannelSession
from cmdlog.cluster.transport.framed_connection import FramedConnection
from cmdlog.cluster.transport.handshake import ClusterName, HelloCredentials
from cmdlog.cluster.transport.sealed_frames import ChannelOpener, ChannelSealer
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Hello, Link, Peer, Seal, Secret, make_links
from tests.cluster.transport.fake_transport import FakeTransport
from tests.cluster.transport.netkit import CLUSTER

SECRET = CALL_CHANNEL.secret(Secret(b"0123456789abcdef0123456789abcdef"))
NAME = CallName(b"bump", b"shape of")
OTHER = CallName(b"other", b"shape of")
ROOM = CallWindow(calls=1000, params_bytes=1 << 20)

Settled = tuple[str, object]
"""Of a call: "answered" with its body, or "unsent" or "lost" with the reason."""


def credentials(node: int, *, secret: Secret = SECRET, cluster: bytes = CLUSTER) -> HelloCredentials:
    """Of an end."""
    return HelloCredentials(ClusterName(cluster), Peer(NodeId(node), b"process%d" % node), secret)


def links(session: int = 0) -> tuple[Link, Link]:
    """From node 1 to node 2 and back; another session has other keys."""
    ends = [Peer(NodeId(node), b"process%d" % node) for node in (1, 2)]
    nonces = [bytes([node, session]) * 8 for node in (1, 2)]
    call = Hello(CLUSTER, ends[0], ends[1].node, nonces[0])
    return make_links(call, Hello(CLUSTER, ends[1], ends[0].node, nonces[1], echo=nonces[0]), SECRET, Seal.WHOLE)


def sessions(session: int = 0) -> tuple[ChannelSession, ChannelSession]:
    """What the caller and the called end have after their hellos."""
    there, back = links(session)

    def end(peer: Peer, outgoing: Link, incoming: Link) -> ChannelSession:
        return ChannelSession(peer, ChannelSealer(CALL_CHANNEL, outgoing, SECRET), ChannelOpener(CALL_CHANNEL, incoming, SECRET))

    return end(there.receiver, there, back), end(there.sender, back, there)


class Answers:
    """Takes what becomes of calls; a call is known by its `done`, a text."""

    def __init__(self) -> None:
        self.settled: dict[str, list[Settled]] = {}

    def answered(self, done: str, status: int, txn: int, body: bytes, more: bytes) -> None:
        self.settled.setdefault(done, []).append(("answered", (status, txn, body, more)))

    def lost(self, done: str, why: str, *, sent: bool) -> None:
        self.settled.setdefault(done, []).append(("lost" if sent else "unsent", why))

    def of(self, done: str) -> list[Settled]:
        return self.settled.get(done, [])


class Placer:
    """Keeps what it is given; answers with the parameters at once, or when `release` is called."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.names: list[CallName] = []
        self.batches: list[CallColumns] = []
        self.held: list[tuple[bytes, Callable[[Any], None]]] = []  # parameters, done

    def find(self, name: CallName) -> str:
        self.names.append(name)
        return name.name.decode()

    def place(self, names: Sequence[str], calls: CallColumns, dones: Sequence[Callable[[Any], None]]) -> None:
        assert all(at < len(names) for at in calls.procedures)
        self.batches.append(calls)
        self.held += zip(calls.params, dones, strict=True)
        if not self.waits:
            self.release()

    def release(self, count: int | None = None) -> None:
        """Answers the oldest calls."""
        due, self.held = self.held[:count], self.held[len(self.held[:count]) :]
        for params, done in due:
            done((0, 7, params))

    def busy(self, why: str) -> tuple[int, int, bytes]:
        return (255, 0, why.encode())

    def encode(self, replies: Sequence[tuple[int, tuple[int, int, bytes]]]) -> list[AnswerRow]:
        return [AnswerRow(call, *reply, b"") for call, reply in replies]

    @property
    def placed(self) -> list[bytes]:
        """Parameters of all calls, in the order of their placing."""
        return [params for batch in self.batches for params in batch.params]


def calls(*texts: str, name: CallName = NAME, **fields: Any) -> list[OutgoingCall[str]]:
    """Calls whose parameters are these texts."""
    given = {"slot": 3, "promise": 0, "key": NO_KEY, "txn": 0, **fields}
    return [OutgoingCall(name, params=text.encode(), done=text, **given) for text in texts]


@dataclass
class CallWire:
    """A link from node 1 to node 2. `carry` moves what was written, and runs what is due, until nothing is under way."""

    window: CallWindow = ROOM
    placer: Placer = field(default_factory=Placer)
    due: list[Callable[[], None]] = field(default_factory=list)
    forgotten: int = 0  # times that the called end said that it is over
    seen: list[bytes] = field(default_factory=list)  # frames of the caller that were carried

    def __post_init__(self) -> None:
        self.answers = Answers()
        self.link: CallLink[str] = CallLink(self.answers, self.due.append)
        self.caller, self.called = FramedConnection(silence_s=1.0), FramedConnection(silence_s=1.0)
        self.caller_end, self.called_end = FakeTransport(self.caller), FakeTransport(self.called)
        self.ours, self.theirs = sessions()
        self.receiver: CallReceiver[str, Any] = CallReceiver(self.called, self.theirs, self.window, self.placer, self.due.append)

    def open(self) -> None:
        """As after the handshake."""
        self.receiver.open(self._forget)
        self.link.open(self.caller, self.ours, self.window)

    def _forget(self) -> None:
        self.forgotten += 1

    def run_due(self) -> None:
        """One turn of the loop."""
        due = list(self.due)
        self.due.clear()
        for call in due:
            call()

    def carry(self) -> None:
        while self.due or self.caller_end.written or self.called_end.written:
            self.run_due()
            self.seen += (frames := self.caller_end.frames())
            for frame in frames:
                if not self.called.is_ending:
                    self.called.data_received(frame)
            for frame in self.called_end.frames():
                if not self.caller.is_ending:
                    self.caller.data_received(frame)

    def cut(self) -> None:
        """The connection is gone."""
        self.caller_end.lose()
        self.called_end.lose()


def a_key(number: int) -> bytes:
    """A fingerprint."""
    return number.to_bytes(4, "little") + os.urandom(12)
