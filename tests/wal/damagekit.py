"""Logs to damage, and what opening them says."""

from __future__ import annotations

import pytest

from cmdlog.wal.errors import WalError
from cmdlog.wal.format.segment import segment_name
from cmdlog.wal.log import Log
from tests.wal.logkit import (
    LOG,
    append,
    at,
    numbers_in,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import SimFiles


def seg(sequence: int) -> str:
    """The path of a segment."""
    return f"{LOG}/{segment_name(sequence)}"


def sealed() -> SimFiles:
    """Records 1 to 3 acknowledged in segment 1, then idle: the last block is a seal. Killed, not closed."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1, 2, 3])
    log.run_background_work()
    return files.kill()


def several(*, closed: bool = True) -> SimFiles:
    """Three segments in use, nothing recycled, closed in order."""
    files = sim()
    log, source = open_log(files)
    log.anchors.set("all", at(1))
    append(log, source, range(1, 13))
    assert source.acknowledged == list(range(1, 13))
    if closed:
        log.close()
    files = files.kill()
    assert files.exists(seg(3))
    assert not files.exists(seg(4))
    return files


def refused(files: SimFiles, kind: type[WalError]) -> WalError:
    """Opening raises `kind` and changes nothing in the log's folder."""
    before = len(files.trace)
    with pytest.raises(kind) as caught:
        open_log(files)
    changes = [operation for operation in files.trace[before:] if not operation.path.endswith("LOCK")]
    assert changes == []
    return caught.value


def opened(files: SimFiles) -> tuple[Log, list[int]]:
    """The log and all that it holds."""
    log, _ = open_log(files, first_generation=9000)
    return log, numbers_in(log)
