"""The process that reads for the scrub: `python -m snapshot.background_process cmdlog.node.scrub.scrub_reader POLICY DIRECTORY`.

One rule: it takes time and disk that nobody else wants, and asks the disk, not the page cache: what is in memory may be whole
while the disk's sector is not. What it has read it forgets again, so that the log's readers keep their pages.

One order and one answer per line, as JSON: {"slice": …} -> `Scanned`, {"mend": …} -> {"path"} or {"error"}. It ends when its
input does. The sums of the log live here, between two orders: one process reads the log in one pass, from its begin to its end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from typing import Any

import orjson

from cmdlog.node.scrub.entry_sums import EntrySums
from cmdlog.node.scrub.file_scan import ScanGround, SliceOrder, scan_slice
from cmdlog.node.scrub.segment_mend import MendOrder, mend_from_archive
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.whole_line_stdout import answer
from snapshot.background_io import Breath, make_way


def forget_slice(order: SliceOrder) -> None:
    """Drops what the order is about to read, or has read, from the page cache, as far as it is on the disk."""
    at = order.at or {}
    path = os.path.join(order.path, at["name"]) if "name" in at else order.path
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, at.get("offset", 0), order.bytes_max, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _scanned(ground: ScanGround, value: dict[str, Any]) -> dict[str, Any]:
    order = SliceOrder(**value)
    forget_slice(order)
    found = scan_slice(ground, order)
    forget_slice(order)
    return {**asdict(found), "sums": ground.sums.take_changes()}


def _mended(ground: ScanGround, value: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"path": mend_from_archive(ground.files, ground.identity, MendOrder(**value))}
    except (WalError, OSError) as error:
        return {"error": str(error)}


def main() -> int:
    """Entry point of the process."""
    make_way(int(sys.argv[1]))
    files = RealFiles()
    ground = ScanGround(files, load_instance(files, sys.argv[2]).identity, EntrySums(), Breath())
    for line in sys.stdin.buffer:
        order = orjson.loads(line)
        said = _mended(ground, order["mend"]) if "mend" in order else _scanned(ground, order["slice"])
        answer(orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE))
    return 0
