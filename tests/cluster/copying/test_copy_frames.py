"""Frames of a connection for copies: what is encoded is decoded, WIRE.md says the same, and nothing that lies is taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cmdlog.cluster.copying
from cmdlog.cluster.copying.copy_frames import (
    CHUNK_BYTES_MAX,
    CHUNK_FIELDS,
    COPY_CHANNEL,
    COPY_ID_BYTES,
    DATA_FIELDS,
    ChunkData,
    ChunkPlace,
    CopyFrameKind,
    copy_credentials,
)
from cmdlog.cluster.copying.copy_values import RefusalCode
from cmdlog.cluster.forwarding.call_rows import CALL_CHANNEL
from cmdlog.cluster.transport.sealed_frames import TURN_FIELDS
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import HELLO, LENGTH, LENGTH_FIELDS, LINK_FIELDS, MAC_BYTES, Secret
from tests.cluster.transport.channelkit import kinds_of, table_of
from tests.raft.test_layout import placed

WIRE = Path(cmdlog.cluster.copying.__file__).with_name("WIRE.md").read_text(encoding="utf-8")
COPIES = st.binary(min_size=COPY_ID_BYTES, max_size=COPY_ID_BYTES)
SIZES = st.integers(1, CHUNK_BYTES_MAX)
PLACES = st.builds(ChunkPlace, COPIES, st.integers(0, 2**32 - 1), st.integers(0, 2**63), SIZES)


@given(PLACES)
def test_request_comes_as_it_was(place: ChunkPlace) -> None:
    """A shorter or longer one is refused."""
    body = place.encode()
    assert ChunkPlace.decode(body) == place
    for damaged in (body[:-1], body + b"x", b""):
        with pytest.raises(BadFrame):
            ChunkPlace.decode(damaged)


@pytest.mark.parametrize("length", [0, CHUNK_BYTES_MAX + 1])
def test_request_for_nothing_or_too_much_is_refused(length: int) -> None:
    """The source is never asked for more memory than the contract says."""
    with pytest.raises(BadFrame):
        ChunkPlace.decode(ChunkPlace(bytes(16), 0, 0, length).encode())


def test_chunk_comes_with_its_bytes() -> None:
    """And shows when they are others."""
    place = ChunkPlace(b"copy" * 4, 3, 7, 5)
    data = ChunkData.decode(ChunkData(place, 0x9A71BB4C, b"hello").encode())
    assert (data.place, data.content, data.is_intact) == (place, b"hello", True)
    assert not ChunkData(place, 0x9A71BB4C, b"hellO").is_intact
    with pytest.raises(BadFrame):
        ChunkData.decode(b"short")


def test_nothing_else_begins_as_a_connection_for_copies() -> None:
    """Neither a hello of consensus, nor TLS, nor a link for calls; and its key is its own."""
    hello = LENGTH.pack(LENGTH.size + HELLO.size + MAC_BYTES)[:1]
    assert COPY_CHANNEL.preface not in {hello, bytes([22]), CALL_CHANNEL.preface}
    secret = Secret(b"the secret of a cluster")
    keys = {secret.key, CALL_CHANNEL.secret(secret).key, copy_credentials(bytes(16), 2, b"new life", secret).secret.key}
    assert len(keys) == 3


def test_every_layout_is_in_the_document() -> None:
    """Offsets, sizes and names; and the kinds of frames by their numbers."""
    assert table_of(WIRE, "Frame") == list(placed((*LENGTH_FIELDS, *LINK_FIELDS, *TURN_FIELDS)))
    assert table_of(WIRE, "Request for a chunk") == list(placed(CHUNK_FIELDS))
    assert table_of(WIRE, "Chunk") == list(placed(DATA_FIELDS))
    assert kinds_of(WIRE) == {kind.name: kind.value for kind in CopyFrameKind}


def test_every_code_is_in_the_document() -> None:
    """With what it means."""
    codes = re.findall(r"^\| `([a-z_]+)` \|", WIRE, flags=re.MULTILINE)
    assert codes == [code.value for code in RefusalCode]
