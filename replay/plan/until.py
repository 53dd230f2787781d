"""Checks that the moment at which a recovery is to stop exists.

One rule: what has not happened is refused, not rounded. A moment after the newest transaction would silently be the newest
state, which a user takes for the requested one; one before the first transaction would be nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cmdlog.wal.files import Files
from cmdlog.wal.ids import MILLIS_SHIFT, PARTITION_BITS
from replay.errors import BadUntil, UntilBeyond
from replay.log.archive_reach import time_of
from replay.log.evidence import NodeEvidence
from replay.log.scan import Scan
from replay.log.source import LogSource
from replay.plan.node_plan import Plan
from snapshot.archive.segment_copy import transactions_of
from snapshot.recovery_points import list_points

MILLIS_MASK: Final = (1 << MILLIS_SHIFT) - 1


def parse_until(text: str) -> int:
    """The highest TxnId that `--until` lets through: a TxnId, or an RFC 3339 time. Raises: BadUntil."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadUntil(f"{text!r} is neither a transaction id nor a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise BadUntil(f"{text!r} has no time zone; write 2026-01-31T12:00:00Z")
    millis = int(moment.timestamp() * 1000)
    return ((millis + 1) << MILLIS_SHIFT) - 1


def parse_first(text: str) -> int:
    """The lowest TxnId at or after a moment. Raises: BadUntil."""
    return int(text) if text.isdecimal() else parse_until(text) + 1 - (1 << MILLIS_SHIFT)


def check_begin(source: LogSource, found: Scan, until: int) -> None:
    """There is a transaction at or before the moment. Raises: UntilBeyond."""
    if any(stream.base or stream.to_txn for stream in found.streams.values()):
        return
    records = source.read(from_block=source.first_blocks[0])
    first = next((min(txns) for _, record in records if (txns := transactions_of(record))), 0)
    if until < first:
        raise UntilBeyond(f"transaction {until} ({time_of(until)}) is before the first one, {first}, {time_of(first)}")


def check_newest(files: Files, directory: str, found: Scan, until: int) -> None:
    """The log has reached the moment, or a recovery point says so. A time means its whole millisecond.

    Raises: UntilBeyond.
    """
    _check_reached(until, max(found.groups.txn_id_max, _newest_point(files, directory)))


def check_newest_of_all(files: Files, evidence: Sequence[NodeEvidence], until: int) -> None:
    """One of the logs has reached the moment, or a recovery point of one of these nodes says so. Raises: UntilBeyond."""
    usable = [node for node in evidence if node.refused is None]
    calls = [group.last_txn for node in usable for group in node.groups.values()]
    _check_reached(until, max([*calls, *(_newest_point(files, node.directory) for node in usable)], default=0))


def check_begin_of_all(legs: Sequence[Plan], until: int) -> None:
    """Some partition has a snapshot or a transaction at or before the moment. Raises: UntilBeyond."""
    if not any(part.from_index or part.to_txn for leg in legs for part in leg.partitions):
        raise UntilBeyond(f"transaction {until} ({time_of(until)}) is before the first one")


def _newest_point(files: Files, directory: str) -> int:
    points, _ = list_points(files, directory)
    return max((point.txn_id for point in points), default=0)


def _check_reached(until: int, newest: int) -> None:
    mask = MILLIS_MASK if until & MILLIS_MASK == MILLIS_MASK else (1 << PARTITION_BITS) - 1
    if until > newest | mask:
        there = f"the newest restorable moment is transaction {newest}, {time_of(newest)}" if newest else "there is none yet"
        raise UntilBeyond(f"transaction {until} ({time_of(until)}) was not reached: {there}")
