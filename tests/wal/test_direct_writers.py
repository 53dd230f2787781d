"""Which direct writer a system gets."""

from __future__ import annotations

import pytest

from cmdlog.wal.native import steps
from cmdlog.wal.system import write_thread
from cmdlog.wal.system.aio_writer import AioWriter
from cmdlog.wal.system.direct_writers import open_direct_writer
from cmdlog.wal.system.write_thread import WriteThread


def test_the_thread_goes_before_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was built; without it the kernel's queue does the same, or there is none."""
    found = open_direct_writer()
    assert isinstance(found, WriteThread) or steps is None
    if found is not None:
        found.close()
    monkeypatch.setattr(write_thread, "steps", None)
    other = open_direct_writer()
    assert other is None or isinstance(other, AioWriter)
    if other is not None:
        other.close()
