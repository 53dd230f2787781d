"""What a log is fed with by benchmarks that write one without a node.

One rule: it keeps nothing but the blocks that it was given.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from cmdlog.wal.errors import WalError


class Feed:
    """A source of the blocks that it is given."""

    def __init__(self) -> None:
        self.blocks: deque[list[bytes]] = deque()
        self.pending_bytes, self.waits, self.lax = 0, True, False
        self.arrived = threading.Event()

    def take_records(self, _bytes_max: int) -> Sequence[bytes]:
        return self.blocks.popleft() if self.blocks else ()

    def written(self, block: int) -> None: ...

    def durable(self, _block: int) -> None:
        self.arrived.set()

    def failed(self, error: WalError) -> None:
        raise error
