"""Frames of a connection for copies: what each kind holds. WIRE.md has the layout.

One rule: what a frame holds is checked here, once. Everything but the bytes of files is JSON, whose values are in
`cmdlog.cluster.copying.copy_values`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

import google_crc32c

from cmdlog.cluster.transport.handshake import ClusterName, HelloCredentials
from cmdlog.cluster.transport.sealed_frames import ChannelName
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import BadFrame, FrameFault, layout
from cmdlog.raft.wire.secure_frames import Peer, Secret

COPY_CHANNEL: Final = ChannelName("copy", b"\x43", b"CC")
COPY_ID_BYTES: Final = 16
CHUNK_BYTES_MAX: Final = 1 << 20
CHUNK_FIELDS: Final = (("copy", f"{COPY_ID_BYTES}s"), ("file", "I"), ("length", "I"), ("offset", "Q"))
DATA_FIELDS: Final = (("copy", f"{COPY_ID_BYTES}s"), ("file", "I"), ("crc32c", "I"), ("offset", "Q"))
CHUNK: Final = layout(CHUNK_FIELDS)
DATA: Final = layout(DATA_FIELDS)


class CopyFrameKind(enum.IntEnum):
    """Numbers for ever."""

    OPEN = 1  # the recipient's first frame: it knows the session
    READY = 2  # the source's answer
    ASK = 3  # CopyWish; answered by STANDING
    STANDING = 4  # CopyStanding
    BEGIN = 5  # CopyRequest; answered by MANIFEST, WAIT or REFUSED
    MANIFEST = 6  # CopyManifest; `count` frames of it follow
    WAIT = 7  # CopyWait
    CHUNK = 8  # ChunkPlace; answered by DATA or REFUSED
    DATA = 9  # the place, and the bytes
    END = 10  # CopyEnd; answered by ENDED or REFUSED
    ENDED = 11
    REFUSED = 12  # CopyRefusal
    SUMS = 13  # SumsRequest; answered by KNOWN
    KNOWN = 14  # KnownSums


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Which bytes of a copy: [offset, offset + length) of a file."""

    copy: bytes  # [16] the copy's id
    file: int  # its number in the manifest
    offset: int
    length: int

    def encode(self) -> bytes:
        return CHUNK.pack(self.copy, self.file, self.length, self.offset)

    @classmethod
    def decode(cls, body: bytes) -> ChunkPlace:
        """Raises: BadFrame."""
        if len(body) != CHUNK.size:
            raise BadFrame(FrameFault.MALFORMED, f"request for a chunk of {len(body)} bytes")
        copy, file, length, offset = CHUNK.unpack(body)
        if not 0 < length <= CHUNK_BYTES_MAX:
            raise BadFrame(FrameFault.MALFORMED, f"a chunk of {length} bytes, not within [1, {CHUNK_BYTES_MAX}]")
        return cls(copy, file, offset, length)


@dataclass(frozen=True, slots=True)
class ChunkData:
    """The bytes at a place. `crc32c` was made where they were read, before anything else touched them."""

    place: ChunkPlace
    crc32c: int
    content: bytes

    def encode(self) -> bytes:
        place = self.place
        return DATA.pack(place.copy, place.file, self.crc32c, place.offset) + self.content

    @classmethod
    def decode(cls, body: bytes) -> ChunkData:
        """Raises: BadFrame."""
        try:
            copy, file, crc32c, offset = DATA.unpack_from(body)
        except struct.error:
            raise BadFrame(FrameFault.MALFORMED, f"a chunk in a frame of {len(body)} bytes") from None
        content = body[DATA.size :]
        return cls(ChunkPlace(copy, file, offset, len(content)), crc32c, content)

    @property
    def is_intact(self) -> bool:
        """Whether the bytes are those that were read."""
        return int(google_crc32c.value(self.content)) == self.crc32c


def copy_credentials(cluster: bytes, node: int, incarnation: bytes, secret: Secret) -> HelloCredentials:
    """What an end of a connection for copies proves itself with. `incarnation` [8]: of the life of the disk that is to be made,
    at the recipient; of its own, at the source. `secret` is the cluster's."""
    return HelloCredentials(ClusterName(cluster), Peer(NodeId(node), incarnation), COPY_CHANNEL.secret(secret))
