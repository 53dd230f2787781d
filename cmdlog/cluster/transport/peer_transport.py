"""What consensus needs of a network: the seam between the driver and whatever carries its messages, and time as it counts it.

One rule: `send` promises nothing. Messages may be lost, and after a lost connection those of two directions may overlap; but what
arrives was said by that peer, whole, once, and in its order of sending within one connection. All calls of the handler come from
one thread, the transport's own, so they must not wait for anything.

No tick is lost and none is given twice. After a pause (the process was stopped, the machine was busy) the ticks that were missed
come first, before any message that waited meanwhile: a leader that slept through its term must notice before it answers, and a
follower must not take an old heartbeat for a new one.
"""

from __future__ import annotations

import enum
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import Addressed, FrameFault


class BadPeerCertificate(OperatorError):
    """The files for TLS between nodes cannot be used."""

    exit_code = 2
    hint = (
        "give a certificate and its key without a password in PEM, and the authority's certificate that signed those of all nodes"
    )


@dataclass(frozen=True, slots=True)
class PeerTls:
    """A context for each role of a connection. Both verify the other end."""

    called: ssl.SSLContext
    caller: ssl.SSLContext


def options_to_call(tls: PeerTls | None, host: str, *, handshake_s: float) -> dict[str, Any]:
    """Arguments of the event loop for a connection that this node makes; none without TLS."""
    return {} if tls is None else {"ssl": tls.caller, "server_hostname": host, "ssl_handshake_timeout": handshake_s}


def options_when_called(tls: PeerTls | None, *, handshake_s: float) -> dict[str, Any]:
    """The same for a connection that came in."""
    return {} if tls is None else {"ssl": tls.called, "ssl_handshake_timeout": handshake_s}


def make_peer_tls(certificate: Path, key: Path, authority: Path) -> PeerTls:
    """TLS 1.3 with these files. Raises: BadPeerCertificate."""
    called, caller = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    for context in (called, caller):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(certificate, key, password=b"")
            context.load_verify_locations(authority)
        except (ssl.SSLError, OSError) as error:
            raise BadPeerCertificate(f"TLS between nodes with {certificate}, {key} and {authority}: {error}") from None
    return PeerTls(called, caller)


Address = tuple[str, int]
"""Host and port."""


class NoticeKind(enum.Enum):
    """What happens seldom, and matters to the operator."""

    CONNECTED = "connected"  # messages of ours reach the peer
    DISCONNECTED = "disconnected"
    CONFIRMED = "confirmed"  # the peer has, for the first time, said that it holds our incarnation; ours of it is durable
    REFUSED = "refused"  # this node does not speak with that peer: see `RefusalReason`
    REFUSED_BY_PEER = "refused_by_peer"  # that peer does not speak with this node
    DUPLICATE = "duplicate"  # two processes act as that peer, or as this node


@dataclass(frozen=True, slots=True)
class PeerNotice:
    kind: NoticeKind
    peer: NodeId
    detail: str = ""


class PeerHandler(Protocol):
    """The driver, as its transport sees it."""

    def on_tick(self, ticks: int) -> None:
        """So many units of time have passed; more than one after a pause, and then before anything that came in meanwhile."""
        ...

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        """The messages of one frame, in their order; frames come in order."""
        ...

    def on_notice(self, notice: PeerNotice) -> None:
        """Something changed about a peer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """One peer. Bytes, frames and messages count from the start of this process; out is what this node says."""

    node: NodeId
    address: str  # that is called
    incarnation: str  # hexadecimal; "" while it is unknown
    confirmed: bool
    met_later: bool  # it has met a later start of this node's directory: the disk went back, or a copy of it runs
    connected_since_s: float | None  # Unix time, of the connection that carries our messages
    calls_since_s: float | None  # of the connection that carries the peer's
    round_trip_s: float | None  # the last one measured
    connections: int  # that this node made to the peer
    out_bytes: int
    out_frames: int
    out_messages: int
    in_bytes: int
    in_frames: int
    in_messages: int
    queue_bytes: int
    queue_messages: int
    dropped_messages: int
    dropped_bytes: int
    faults: dict[str, int]  # frames and messages that were refused, by reason
    last_error: str

    @property
    def was_called(self) -> bool:
        """Whether it took us once, refused us, or could not be reached."""
        return self.connections > 0 or bool(self.last_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStatus:
    """All peers, and what came from nobody that is one."""

    listens_on: str
    peers: list[LinkStatus] = field(default_factory=list)
    strangers: int = 0  # connections that have not proved who they are
    strangers_evicted: int = 0  # hung up on because there were too many
    faults: dict[str, int] = field(default_factory=dict)  # of connections that never proved who they are, by reason
    duplicates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Of one node; the nodes of a cluster need not agree."""

    tick_s: float = 0.1  # a unit of time of consensus
    queue_bytes_max: int = 32 << 20  # per peer: a slow one costs this much memory, not more
    queue_messages_max: int = 16_384  # per peer: bounds the objects, where messages are small
    connect_s: float = 2.0  # for a connection, name look-up included
    hello_s: float = 3.0  # from the first byte until both ends have proved who they are; TLS included
    probe_s: float = 0.5  # between signs of life, and so between measured round trips
    silence_s: float = 3.0  # without a byte from the other end, a connection is lost
    challenge_s: float = 1.0  # in which a process that is connected answers, when another claims to be the same node
    pause_s_min: float = 0.05  # before a lost peer is called again
    pause_s_max: float = 2.0  # it doubles up to here: a peer that is back waits no longer
    strangers_max: int = 128  # connections that have not proved who they are; the oldest makes room

    def __post_init__(self) -> None:
        if not 0 < self.pause_s_min <= self.pause_s_max:
            raise ValueError(f"pause_s_min {self.pause_s_min} must be above 0 and at most pause_s_max {self.pause_s_max}")
        if self.silence_s < 2 * self.probe_s:
            raise ValueError(f"silence_s {self.silence_s} must be at least twice probe_s {self.probe_s}: one may be lost")
        if min(self.tick_s, self.connect_s, self.hello_s, self.probe_s, self.challenge_s) <= 0:
            raise ValueError("times must be above 0")
        if min(self.queue_bytes_max, self.queue_messages_max, self.strangers_max) < 1:
            raise ValueError("queue_bytes_max, queue_messages_max and strangers_max must be at least 1")

    @property
    def silence_probes(self) -> int:
        """`silence_s`, counted in probes: a pause of this process is not the peer's silence."""
        return max(2, round(self.silence_s / self.probe_s))


def fault_text(faults: Counter[FrameFault]) -> dict[str, int]:
    """Counted reasons by their words, without those that never occurred."""
    return {fault.value: count for fault, count in faults.items() if count}


def address_text(address: Address) -> str:
    """As in a URL."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Ticker:
    """Gives ticks as time passes. One thread."""

    __slots__ = ("_give", "_given", "_now", "_origin_s", "_tick_s")

    def __init__(self, tick_s: float, give: Callable[[int], None], *, now: Callable[[], float] = time.monotonic) -> None:
        self._tick_s, self._give, self._now = tick_s, give, now
        self._origin_s, self._given = now(), 0

    def give_due(self) -> None:
        """Gives all ticks that are due and have not been given, as one number."""
        due = int((self._now() - self._origin_s) / self._tick_s) - self._given
        if due > 0:
            self._given += due
            self._give(due)

    @property
    def wait_s(self) -> float:
        """Until the next tick is due."""
        return max(0.0, self._origin_s + (self._given + 1) * self._tick_s - self._now())
