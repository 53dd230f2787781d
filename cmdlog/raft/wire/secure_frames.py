"""Frames between two nodes: what is said on one connection, in one direction, sealed so that nobody else can say it.

One rule: a frame is taken as a whole or not at all, and only from the node, the incarnation of its disk, the cluster and the
session that the link belongs to, each once and in order. WIRE.md has the layout.

    | length | magic, version, seal, cluster, sender, receiver, session | sequence, meta_bytes | meta | crc | mac | bulk |
             |<----------------- the same in all frames of a link ----->|
    |<-------------------------- checksum and MAC are over this --------------------------------->|

A connection begins with two hellos, each with a number that was never used before; together they make the session. So a frame
that was recorded on an earlier connection is never valid on this one, and within a session the sequence only grows. The payloads
of entries are covered by checksums in meta, and by keyed digests too on a link whose bytes nobody else protects (`Seal.WHOLE`).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import google_crc32c

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append
from cmdlog.raft.wire.decoding import Decoder
from cmdlog.raft.wire.encoding import Encoder
from cmdlog.raft.wire.layout import ENTRIES_MAX, MESSAGES_MAX, Addressed, BadFrame, FrameFault, MessageTooLarge, layout

VERSION: Final = 1
MAGIC: Final = b"CR"
HELLO_MAGIC: Final = b"CH"
FRAME_BYTES_MAX: Final = 16 << 20  # an entry has at most 8 MiB (`Settings.entry_bytes_max`)
HELLO_BYTES_MAX: Final = 1024
EARLIER_MAX: Final = 64  # starts of a directory that a hello names
PROCESS_BYTES: Final = 8
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64  # what BLAKE2b takes as a key
NONCE_BYTES: Final = 16
NO_NONCE: Final = bytes(NONCE_BYTES)
SESSION_BYTES: Final = 8
MAC_BYTES: Final = 16

LENGTH_FIELDS: Final = (("frame_bytes", "I"),)
LINK_FIELDS: Final = (
    ("magic", "2s"),
    ("version", "B"),
    ("seal", "B"),
    ("cluster", "16s"),
    ("sender", "Q"),
    ("sender_incarnation", "8s"),
    ("receiver", "Q"),
    ("receiver_incarnation", "8s"),
    ("session", "8s"),
)
ORDER_FIELDS: Final = (("sequence", "Q"), ("meta_bytes", "I"))
HELLO_FIELDS: Final = (
    ("magic", "2s"),
    ("version", "B"),
    ("reserved", "x"),
    ("cluster", "16s"),
    ("sender", "Q"),
    ("sender_incarnation", "8s"),
    ("receiver", "Q"),
    ("nonce", "16s"),
    ("echo", "16s"),
    ("earlier_count", "H"),
    ("earlier", f"{EARLIER_MAX * PROCESS_BYTES}s"),
)
LENGTH: Final = layout(LENGTH_FIELDS)
LINK: Final = layout(LINK_FIELDS)
HELLO: Final = layout(HELLO_FIELDS)
FRONT: Final = layout((*LENGTH_FIELDS, ("link", f"{LINK.size}s"), *ORDER_FIELDS))
TRAILER: Final = layout((("crc", "I"), ("mac", f"{MAC_BYTES}s")))
FRAME_BYTES_MIN: Final = FRONT.size + TRAILER.size
_ROOM_BYTES: Final = FRAME_BYTES_MAX - FRAME_BYTES_MIN  # for messages
# The path of every frame: looked up once.
_FRONT_BYTES: Final = FRONT.size
_TRAILER_BYTES: Final = TRAILER.size
_pack_front, _unpack_front = FRONT.pack, FRONT.unpack_from
_pack_trailer, _unpack_trailer = TRAILER.pack, TRAILER.unpack_from
_crc32c: Final = google_crc32c.value


def cluster_of_epoch(cluster: bytes, epoch: int) -> bytes:
    """What frames and hellos say as `cluster` [16] after a forced recovery: members of before are refused by that name. 0 is the
    cluster as it was made."""
    if not epoch:
        return cluster
    return blake2b(cluster + epoch.to_bytes(8, "little"), digest_size=len(cluster), person=b"raft epoch").digest()


class Seal(enum.IntEnum):
    """How much of a frame the MAC vouches for. Both ends of a link are set to the same; another one is refused."""

    HEADS = 1  # all but payloads, which a checksum covers: for a link whose bytes TLS protects
    WHOLE = 2  # payloads too, by their digests: for a link that nobody else protects


@dataclass(frozen=True, slots=True)
class Peer:
    """A node, and which life of its disk."""

    node: NodeId
    incarnation: bytes  # [8]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one connection."""

    cluster: bytes  # [16] UUID
    sender: Peer
    receiver: Peer
    session: bytes  # [8]
    seal: Seal

    def head(self) -> bytes:
        """What all frames of the link have in common."""
        sender, receiver = self.sender, self.receiver
        ends = (sender.node, sender.incarnation, receiver.node, receiver.incarnation)
        return LINK.pack(MAGIC, VERSION, self.seal, self.cluster, *ends, self.session)


@dataclass(frozen=True, slots=True)
class Secret:
    """What the nodes of a cluster share. Its keys are derived, so that no use of one can stand for another."""

    key: bytes

    def __post_init__(self) -> None:
        if not SECRET_BYTES_MIN <= len(self.key) <= SECRET_BYTES_MAX:
            raise ValueError(f"a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, not {len(self.key)}")

    def __repr__(self) -> str:
        return "Secret()"

    def mac(self, use: bytes) -> blake2b:
        """A MAC to be fed. `use` has at most 16 bytes."""
        return blake2b(key=self.key, digest_size=MAC_BYTES, person=use)

    def encoder(self, seal: Seal) -> Encoder:
        """One serves all links of a node that are sealed alike."""
        return Encoder(self.digest_key(seal))

    def digest_key(self, seal: Seal) -> bytes | None:
        """The key of payload digests, where the seal wants them."""
        return self.mac(b"raft digest key").digest() if seal is Seal.WHOLE else None


class FrameSealer:
    """Makes the frames of one direction. The sequence begins with the session."""

    __slots__ = ("_encode", "_head", "_mac", "_receiver", "_sender", "_sequence")

    def __init__(self, link: Link, secret: Secret, encoder: Encoder) -> None:
        self._sender, self._receiver, self._encode = link.sender.node, link.receiver.node, encoder.encode
        self._head, self._mac = link.head(), secret.mac(b"raft frame")
        self._sequence = 0

    def seal(self, messages: Iterable[Addressed]) -> list[bytes]:
        """The frames that carry these messages, in their order; one, unless the limits of a frame need more.

        Raises: MessageTooLarge, before any frame was made.
        """
        sender, receiver, encode = self._sender, self._receiver, self._encode
        full: list[tuple[list[bytes], list[bytes], int]] = []
        metas: list[bytes] = []
        bulks: list[bytes] = []
        room, entries_left = _ROOM_BYTES, ENTRIES_MAX
        # A message joins the frame, begins the next one because it has no place in this one, or is too large for any.
        for group, message in messages:
            if message.receiver != receiver or message.sender != sender:
                raise ValueError(f"message from {message.sender} to {message.receiver} on the link {sender} to {receiver}")
            meta, bulk = encode(group, message)
            size, entries = len(meta) + len(bulk), len(message.entries.terms) if type(message) is Append else 0
            if size > room or len(metas) == MESSAGES_MAX or entries > entries_left:
                if size > _ROOM_BYTES:
                    raise MessageTooLarge(f"message of {size} bytes, at most {_ROOM_BYTES}")
                full.append((metas, bulks, room))
                metas, bulks, room, entries_left = [], [], _ROOM_BYTES, ENTRIES_MAX
            room -= size
            entries_left -= entries
            metas.append(meta)
            if bulk:
                bulks.append(bulk)
        if not metas:
            return []
        if not full:
            return [self._frame(metas, bulks, room)]
        return [self._frame(*parts) for parts in (*full, (metas, bulks, room))]

    def _frame(self, metas: list[bytes], bulks: list[bytes], room: int) -> bytes:
        """`room` is what it leaves of the largest frame."""
        self._sequence = sequence = self._sequence + 1
        meta = metas[0] if len(metas) == 1 else b"".join(metas)
        front = _pack_front(FRAME_BYTES_MAX - room, self._head, sequence, len(meta)) + meta
        mac = self._mac.copy()
        mac.update(front)
        trailer = _pack_trailer(_crc32c(front), mac.digest())
        return b"".join((front, trailer, *bulks)) if bulks else front + trailer


class Opener:
    """Takes the frames of one direction. What it refuses is counted in `faults`."""

    __slots__ = ("_decode", "_head", "_link", "_mac", "_sequence", "faults")

    def __init__(self, link: Link, secret: Secret) -> None:
        self._link = link
        self._head, self._mac = link.head(), secret.mac(b"raft frame")
        decoder = Decoder(sender=link.sender.node, receiver=link.receiver.node, digest_key=secret.digest_key(link.seal))
        self._decode = decoder.decode
        self.faults = decoder.faults  # refused frames and messages by reason
        self._sequence = 0

    def open(self, frame: bytes) -> list[Addressed]:
        """The messages of a frame. Raises: BadFrame."""
        try:
            meta_end, sequence = self._check(frame)
            messages = self._decode(frame, at=_FRONT_BYTES, end=meta_end, bulk_at=meta_end + _TRAILER_BYTES)
        except BadFrame as error:
            self.faults[error.fault] += 1
            raise
        self._sequence = sequence
        return messages

    def _check(self, frame: bytes) -> tuple[int, int]:
        """Where the meta ends, and the sequence. Raises: BadFrame."""
        size = len(frame)
        if size < FRAME_BYTES_MIN:
            raise BadFrame(FrameFault.LENGTH, f"{size} bytes")
        stated, head, sequence, meta_bytes = _unpack_front(frame)
        if stated != size:
            raise BadFrame(FrameFault.LENGTH, f"{size} bytes, but {stated} are stated")
        meta_end = _FRONT_BYTES + meta_bytes
        if meta_end + _TRAILER_BYTES > size:
            raise _unreadable(frame)
        front = frame[:meta_end]
        crc, tag = _unpack_trailer(frame, meta_end)
        if _crc32c(front) != crc:
            raise _unreadable(frame)
        if head != self._head:
            raise self._foreign(head)
        mac = self._mac.copy()
        mac.update(front)
        if not compare_digest(mac.digest(), tag):
            raise BadFrame(FrameFault.MAC, "not made with this cluster's secret")
        if sequence <= self._sequence:
            raise BadFrame(FrameFault.SEQUENCE, f"{sequence} after {self._sequence}")
        return meta_end, sequence

    def _foreign(self, head: bytes) -> BadFrame:
        """Names what is not this link's. Nothing of it is proved: it shows the operator where to look."""
        _, _, seal, cluster, sender, sender_life, receiver, receiver_life, _ = LINK.unpack(head)
        link = self._link
        if cluster != link.cluster:
            return BadFrame(FrameFault.CLUSTER, f"{cluster.hex()}, but this is {link.cluster.hex()}")
        for fault, found, peer in (
            (FrameFault.SENDER, Peer(sender, sender_life), link.sender),
            (FrameFault.RECEIVER, Peer(receiver, receiver_life), link.receiver),
        ):
            if found != peer:
                return BadFrame(fault, f"node {found.node}, incarnation {found.incarnation.hex()}, but this link has {peer}")
        return BadFrame(
            FrameFault.SESSION, f"seal {seal}, where {link.seal.name} is agreed" if seal != link.seal else "an earlier one"
        )


def _unreadable(frame: bytes) -> BadFrame:
    """Another version may keep its checksum elsewhere, so magic and version are looked at first."""
    magic, version = frame[4:6], frame[6]
    if magic != MAGIC:
        return BadFrame(FrameFault.MAGIC, magic.hex())
    if version != VERSION:
        return BadFrame(FrameFault.VERSION, f"{version}, but this program speaks {VERSION}")
    return BadFrame(FrameFault.CHECKSUM, f"frame of {len(frame)} bytes")


# -- the beginning of a connection ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first thing that each side says. Its layout is the same in all versions; longer ones are read as far as it goes."""

    cluster: bytes  # [16]
    sender: Peer
    receiver: NodeId
    nonce: bytes  # [16] never used before
    echo: bytes = NO_NONCE  # the nonce that is answered; none from the side that calls
    version: int = VERSION  # the newest that the sender speaks; both use the older of the two
    earlier: tuple[bytes, ...] = ()  # `ProcessStart.earlier` of the sender; at most `EARLIER_MAX`

    def encode(self, secret: Secret) -> bytes:
        """One frame."""
        sender = self.sender
        body = HELLO.pack(
            HELLO_MAGIC, self.version, self.cluster, sender.node, sender.incarnation, self.receiver, self.nonce, self.echo,
            len(self.earlier), b"".join(self.earlier),
        )  # fmt: skip
        front = LENGTH.pack(LENGTH.size + len(body) + MAC_BYTES) + body
        return front + _hello_mac(front, secret)


def decode_hello(frame: bytes, *, secret: Secret, cluster: bytes, receiver: NodeId, echo: bytes = NO_NONCE) -> Hello:
    """What the other side said first. `echo` is our own nonce when we called, and so proves that the answer is new.

    The side that was called knows that the caller is alive only by the first frame, which needs the session. Raises: BadFrame.
    """
    if not LENGTH.size + HELLO.size + MAC_BYTES <= len(frame) <= HELLO_BYTES_MAX or LENGTH.unpack_from(frame)[0] != len(frame):
        raise BadFrame(FrameFault.LENGTH, f"hello of {len(frame)} bytes")
    magic, version, theirs, sender, incarnation, to, nonce, echoed, count, starts = HELLO.unpack_from(frame, LENGTH.size)
    if magic != HELLO_MAGIC:
        raise BadFrame(FrameFault.MAGIC, magic.hex())
    if theirs != cluster:
        raise BadFrame(FrameFault.CLUSTER, f"{theirs.hex()}, but this is {cluster.hex()}")
    if not compare_digest(_hello_mac(frame[:-MAC_BYTES], secret), frame[-MAC_BYTES:]):
        raise BadFrame(FrameFault.MAC, "not made with this cluster's secret")
    if to != receiver or sender == receiver:
        raise BadFrame(FrameFault.RECEIVER, f"from node {sender} to node {to}, but this is {receiver}")
    if echoed != echo:
        raise BadFrame(FrameFault.SESSION, "answers another call")
    if not version:
        raise BadFrame(FrameFault.VERSION, "0")
    if count > EARLIER_MAX:
        raise BadFrame(FrameFault.LENGTH, f"hello with {count} earlier starts")
    earlier = tuple(starts[PROCESS_BYTES * each : PROCESS_BYTES * (each + 1)] for each in range(count))
    return Hello(theirs, Peer(sender, incarnation), to, nonce, echoed, version, earlier)


def make_links(call: Hello, answer: Hello, secret: Secret, seal: Seal) -> tuple[Link, Link]:
    """From the caller to the called, and back."""
    mac = secret.mac(b"raft session")
    mac.update(call.nonce + answer.nonce)
    session = mac.digest()[:SESSION_BYTES]
    there = Link(call.cluster, call.sender, answer.sender, session, seal)
    return there, Link(call.cluster, answer.sender, call.sender, session, seal)


def _hello_mac(front: bytes, secret: Secret) -> bytes:
    mac = secret.mac(b"raft hello")
    mac.update(front)
    return mac.digest()


class FrameCutter:
    """Cuts a stream of bytes into frames. Holds at most one frame and what came with its last byte.

    `bytes_max` is raised to FRAME_BYTES_MAX when the other side has proved who it is: a stranger is given no memory.
    """

    __slots__ = ("_buffer", "_bytes_min", "bytes_max", "faults")

    def __init__(self, *, bytes_min: int = FRAME_BYTES_MIN) -> None:
        self._buffer, self._bytes_min = bytearray(), bytes_min
        self.bytes_max = HELLO_BYTES_MAX
        self.faults: Counter[FrameFault] = Counter()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the frames that are complete with `data`. Raises: BadFrame for a length that no frame has."""
        buffer = self._buffer
        buffer += data
        position, available = 0, len(buffer)
        try:
            while available - position >= LENGTH.size:
                (size,) = LENGTH.unpack_from(buffer, position)
                if not self._bytes_min <= size <= self.bytes_max:
                    self.faults[FrameFault.LENGTH] += 1
                    raise BadFrame(FrameFault.LENGTH, f"{size} bytes, not within [{self._bytes_min}, {self.bytes_max}]")
                if available - position < size:
                    return
                with memoryview(buffer) as view:
                    frame = bytes(view[position : position + size])
                position += size
                yield frame
        finally:
            del buffer[:position]
