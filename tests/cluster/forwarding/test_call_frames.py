"""The channel for calls: nothing else begins as it does."""

from __future__ import annotations

from cmdlog.cluster.forwarding.call_frames import CALL_CHANNEL
from cmdlog.raft.wire.secure_frames import EARLIER, HELLO, LENGTH, MAC_BYTES


def test_no_hello_of_any_version_begins_with_the_preface() -> None:
    """The first byte of a connection says whose it is: a hello's is the low byte of its length, that of TLS is 22."""
    older = LENGTH.size + HELLO.size + MAC_BYTES
    hellos = {LENGTH.pack(size)[:1] for size in (older, older + EARLIER.size)}
    assert not hellos & {CALL_CHANNEL.preface, bytes([22])}
