"""`cmdlog serve` with the clock and the disk of a test: the process of `cmdlog.testing.Server`.

    python -m cmdlog.die_with_parent … cmdlog.testing.server_main CLOCK DISK serve …

CLOCK and DISK are inherited descriptors of shared words (`machine.py`). A disk of 0 works, every other one fails.
"""

from __future__ import annotations

import functools
import importlib
import sys
from unittest.mock import patch

from cmdlog.node.assembly import Outside
from cmdlog.node.node import Node
from cmdlog.testing.machine import BreakableFiles, SettableClock, SharedWord


def main() -> None:
    """Entry point. Everything but clock and disk is the product's."""
    clock, disk = (SharedWord(int(fd)) for fd in sys.argv[1:3])
    del sys.argv[1:3]
    outside = Outside(BreakableFiles(lambda: disk.value), SettableClock(clock).source())
    with patch.object(Node, "open", functools.partial(Node.open, outside=outside)):
        importlib.import_module("cmdlog.cli").main()
