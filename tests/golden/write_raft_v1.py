"""Writes `raft_v1/frames.bin`: one sealed frame per message of the tests' list, as version 1 of the wire has them.

Run `python -m tests.golden.write_raft_v1` only when messages are added at the end; bytes that are there stay for ever.
"""

from __future__ import annotations

from pathlib import Path

from cmdlog.raft.wire.secure_frames import FrameSealer
from tests.raft.wirekit import LINK_WHOLE, MESSAGES, SECRET

PATH = Path(__file__).parent / "raft_v1" / "frames.bin"


def frames() -> bytes:
    """All frames, one after the other."""
    sealer = FrameSealer(LINK_WHOLE, SECRET, SECRET.encoder(LINK_WHOLE.seal))
    return b"".join(frame for message in MESSAGES for frame in sealer.seal([message]))


if __name__ == "__main__":
    PATH.write_bytes(frames())
