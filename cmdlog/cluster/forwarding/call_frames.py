"""The channel for calls, and the kinds of its frames. WIRE.md has the layout."""

from __future__ import annotations

import enum
from typing import Final

from cmdlog.cluster.channels.sealed_frames import ChannelName

CALL_CHANNEL: Final = ChannelName("call", b"\xca", b"CF")


class CallFrameKind(enum.IntEnum):
    """Numbers for ever."""

    OPEN = 1  # the caller's first frame: it knows the session
    READY = 2  # the called end's answer: its window
    CALLS = 3
    ANSWERS = 4
    PROBE = 5  # asks for a sign of life
    RECEIPT = 6  # is one
