"""Archived segments that precede a log and do not join it: they show that the log did not begin there.

One rule: they are not part of the log, and nothing is read from them here; they show that something is missing in between. What
the archive dropped by its own rules leaves no name, so where there is no stray, nothing is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from replay.log.source import LogSource, open_source
from snapshot.archive_layout import ArchivedSegment, list_segments, prefix_of, run_before
from snapshot.recovery_points import list_points


def archived_of(files: Files, source: LogSource) -> tuple[list[ArchivedSegment], list[ArchivedSegment]]:
    """Those that end where the log begins, without a gap; and the other ones before them."""
    run, strays = _looked_up(files, source)
    return _looked_up(files, source) if strays else (run, strays)  # a running node may just have been removing one


def _looked_up(files: Files, source: LogSource) -> tuple[list[ArchivedSegment], list[ArchivedSegment]]:
    if not source.segments:
        return [], []
    own = f"log-{prefix_of(source.instance.identity)}-"  # the folder may hold another node's, too
    found = list_segments(files, source.directory, source.instance.identity)
    run = run_before(found, source.segments[0].header)
    first = first_block_of(run, source)
    return run, [one for one in found if one.first_block < first and one.name.startswith(own)]


def first_block_of(run: Sequence[ArchivedSegment], source: LogSource) -> int:
    """Where the log begins with these before it."""
    return run[0].first_block if run else int(source.segments[0].header.first_block)


def nearest_stray(files: Files, source: LogSource) -> ArchivedSegment | None:
    """The last one before the log that is not kept there by a recovery point; those may be apart from it.

    The log may already include its archived segments.
    """
    _, strays = archived_of(files, source)
    if not strays:
        return None
    points, bad = list_points(files, source.directory)
    pins = [] if bad else [(point.from_block, point.to_block) for point in points]
    left = [one for one in strays if not any(one.first_block <= to and one.last_block >= since for since, to in pins)]
    return left[-1] if left else None


def describe_strays(files: Files, directory: str) -> str:
    """The nearest of them, for an error of a log that does not reach back; else ""."""
    try:
        strays = archived_of(files, open_source(files, directory))[1]
    except WalError:
        return ""
    return describe_stray(strays[-1]) if strays else ""


def describe_stray(stray: ArchivedSegment) -> str:
    """Names the segment, and why it does not count."""
    return f"{stray.path} is not part of the log ({why_stray(stray)})"


def why_stray(stray: ArchivedSegment) -> str:
    """What keeps it from being a part of the log."""
    return stray.problem or stray.doubt or "what follows does not continue it"
