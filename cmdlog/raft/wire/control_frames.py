"""Control frames: what the two ends of a connection say about themselves, beside the messages of consensus.

One rule: a control frame belongs to one direction of one connection, as every frame does: its head names both ends, both
incarnations and the session, and its own sequence only grows. WIRE.md has the layout.

After the hellos each end says PINNED: it holds the other's incarnation durably, and this is the start of the process that speaks.
Until both have, nothing else is sent. Later PROBE asks for a sign of life, and RECEIPT is one. REFUSED names why an end hangs up.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout
from cmdlog.raft.wire.secure_frames import (
    LENGTH,
    LENGTH_FIELDS,
    LINK_FIELDS,
    MAC_BYTES,
    MAGIC,
    PROCESS_BYTES,
    VERSION,
    Link,
    Secret,
)

CONTROL_MAGIC: Final = b"CC"
SAYING_FIELDS: Final = (("sequence", "Q"), ("kind", "H"), ("reserved", "2x"), ("value", "Q"), ("process", f"{PROCESS_BYTES}s"))
HEAD: Final = layout((*LENGTH_FIELDS, *LINK_FIELDS))
SAYING: Final = layout(SAYING_FIELDS)
CONTROL_BYTES: Final = HEAD.size + SAYING.size + MAC_BYTES


class ControlKind(enum.IntEnum):
    """Numbers for ever; a kind that is not known is skipped."""

    PINNED = 1  # value: number of the sender's start
    PROBE = 2  # value: a number to be repeated
    RECEIPT = 3  # value: the probe's number; 0 without one: bytes have come in lately
    REFUSED = 4  # value: RefusalReason


class RefusalReason(enum.IntEnum):
    """Why an end hangs up; the name in lower case is what logs and statuses say."""

    STALE_INCARNATION = 1  # a life of the disk that was replaced by a later one
    UNKNOWN_INCARNATION = 2  # another life of the disk than the one that is known, and nobody has admitted it
    DUPLICATE = 3  # another process has the same node id and incarnation: a copy of its directory
    EARLIER_START = 4  # the directory has been started again since: a copy, or one that was restored from a backup
    NOT_A_MEMBER = 5  # the node is no peer of this one
    UNAVAILABLE = 6  # this end cannot store the other's incarnation


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """Which process of a node speaks. A directory counts its starts durably; a copy of it counts the same numbers."""

    number: int
    process: bytes  # [8] random per start
    earlier: tuple[bytes, ...] = field(default=(), compare=False)  # processes of the starts just before it, oldest first

    def process_of(self, number: int) -> bytes | None:
        """Which process was that start of the same directory; None: a later one, or one that is not known any more."""
        back = self.number - number
        if back == 0:
            return self.process
        return self.earlier[-back] if 0 < back <= len(self.earlier) else None


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """One thing said. `kind` may be one that this program does not know."""

    kind: int
    value: int
    process: bytes  # [8] of the sender

    @property
    def start(self) -> ProcessStart:
        """Of a PINNED frame."""
        return ProcessStart(self.value, self.process)


def is_control(frame: bytes) -> bool:
    """Whether it is one; anything else is for `Opener`."""
    return frame[4:6] == CONTROL_MAGIC


class ControlSealer:
    """Makes the control frames of one direction."""

    __slots__ = ("_head", "_mac", "_process", "_sequence")

    def __init__(self, link: Link, secret: Secret, process: bytes) -> None:
        self._head = LENGTH.pack(CONTROL_BYTES) + _control_head(link)
        self._mac, self._process = secret.mac(b"raft control"), process
        self._sequence = 0

    def seal(self, kind: ControlKind, value: int = 0) -> bytes:
        """One frame."""
        self._sequence += 1
        front = self._head + SAYING.pack(self._sequence, kind, value, self._process)
        mac = self._mac.copy()
        mac.update(front)
        return front + mac.digest()


class ControlOpener:
    """Takes the control frames of one direction. What it refuses is counted in `faults`."""

    __slots__ = ("_head", "_mac", "_sequence", "faults")

    def __init__(self, link: Link, secret: Secret) -> None:
        self._head, self._mac = LENGTH.pack(CONTROL_BYTES) + _control_head(link), secret.mac(b"raft control")
        self._sequence = 0
        self.faults: Counter[FrameFault] = Counter()

    def open(self, frame: bytes) -> ControlFrame:
        """What the frame says. Raises: BadFrame."""
        try:
            return self._check(frame)
        except BadFrame as error:
            self.faults[error.fault] += 1
            raise

    def _check(self, frame: bytes) -> ControlFrame:
        if len(frame) != CONTROL_BYTES:
            raise BadFrame(FrameFault.LENGTH, f"control frame of {len(frame)} bytes, not {CONTROL_BYTES}")
        if not is_control(frame):
            raise BadFrame(FrameFault.MAGIC, frame[4:6].hex())
        if frame[6] != VERSION:
            raise BadFrame(FrameFault.VERSION, f"{frame[6]}, but this program speaks {VERSION}")
        mac = self._mac.copy()
        mac.update(frame[:-MAC_BYTES])
        if not compare_digest(mac.digest(), frame[-MAC_BYTES:]):
            raise BadFrame(FrameFault.MAC, "control frame damaged, or not made with this cluster's secret")
        if frame[: HEAD.size] != self._head:
            raise BadFrame(FrameFault.SESSION, "control frame of another connection, or with another seal")
        sequence, kind, value, process = SAYING.unpack_from(frame, HEAD.size)
        if sequence <= self._sequence:
            raise BadFrame(FrameFault.SEQUENCE, f"control frame {sequence} after {self._sequence}")
        self._sequence = sequence
        return ControlFrame(kind, value, process)


def _control_head(link: Link) -> bytes:
    """As of all frames of the link, but for the magic."""
    head = link.head()
    assert head.startswith(MAGIC)
    return CONTROL_MAGIC + head[len(MAGIC) :]
