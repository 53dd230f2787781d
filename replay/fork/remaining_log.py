"""The log after a fork: which records of log and archive it takes, and the places where the partitions leave the log.

One rule: every entry after those places is there, without a gap, or there is no fork: the error says where one could be made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT, Lsn
from replay.errors import ReplayError, UntilBeyond, UntilUnreachable
from replay.fork.rerun import ForkPlace
from replay.log.archive_reach import Reach, describe_strays
from replay.log.scan import Scan, scan
from replay.log.source import LogSource, fold_end, in_front, open_source
from replay.plan.planner import PAST, make_plan
from snapshot.archive_layout import list_segments, run_before

_MILLIS: Final = (1 << MILLIS_SHIFT) - 1


class RestUnreadable(UntilUnreachable):
    """Log and archive do not hold everything after the fork point."""

    hint = "fork at a later moment, or restore the named files from a backup"


@dataclass(frozen=True, slots=True)
class RemainingLog:
    """The log after the fork."""

    source: LogSource
    scan: Scan
    places: Mapping[int, ForkPlace]

    def records(self) -> Iterable[tuple[Lsn, Record]]:
        """From the first entry after the fork on, or from before it."""
        return self.scan.kept if self.scan.kept is not None else self.source.read(from_block=self.scan.from_block)

    def holds_digest(self, partition: int, indexes: frozenset[int]) -> bool:
        """Whether it holds a digest of one of these batches."""
        kind = RecordKind.DIGEST
        return any(r.kind is kind and r.partition == partition and r.index in indexes for _, r in self.records())

    @property
    def catalogs(self) -> dict[int, dict[str, Any]]:
        """Version -> value of its record."""
        return {version: catalog.value for version, catalog in self.scan.catalogs.items()}

    @property
    def slots(self) -> Any:
        """Which slots each partition has, as the log's newest configuration states."""
        return self.scan.groups.cluster.slots


@contextlib.contextmanager
def naming_other_moments(files: Files, directory: str, source: LogSource) -> Iterator[None]:
    """What cannot be read to its end is an error that names other moments. Raises: RestUnreadable."""
    try:
        yield
    except (Corrupt, UntilUnreachable) as error:
        raise _refusal(files, directory, source, error) from error


def _refusal(files: Files, directory: str, source: LogSource, error: Corrupt | UntilUnreachable) -> ReplayError:
    """What is after the fork cannot be read to the end; where it could be, for a fork at another moment."""
    ranges = _restorable(files, directory, source)
    strays = describe_strays(files, directory) if isinstance(error, UntilUnreachable) else ""
    hint = (
        f"restorable ranges: {ranges}; fork within the last of them, or restore the named files from a backup" if ranges else ""
    )
    return RestUnreadable(f"{error.message}{strays and f': {strays}'}", hint=hint, exit_code=error.exit_code)


def _restorable(files: Files, directory: str, source: LogSource) -> str:
    """From which moments to which log and archive are whole, in words; "" when none is known."""

    def can(moment: int) -> bool:
        with contextlib.suppress(ReplayError, Corrupt):
            make_plan(files, directory, PAST, until=moment)
            return True
        return False

    newest = source.checkpoint(source.first_blocks[-1]).txn_id_max
    return Reach(files, directory, source, newest).restorable(can)


def find_remaining_log(
    files: Files, directory: str, places: Sequence[ForkPlace], until: int | None, claims: Mapping[int, int] | None = None
) -> RemainingLog:
    """The log that holds everything after these places ([]: everything); it also states what is at the `claims`.

    Raises: UntilUnreachable, UntilBeyond.
    """
    for source in _sources(files, directory):
        those = {place.partition: place for place in places or map(ForkPlace, partitions_of(source))}
        indexes = {p: read_after(place) for p, place in those.items()}
        claimed = {p: {of.index, *((claims[p],) if claims and p in claims else ())} for p, of in those.items()}
        found = scan(source, indexes, claimed, until=until)
        if not all(_holds_all(place, found) for place in those.values()):
            continue
        if until is not None and until > found.groups.txn_id_max | _MILLIS:
            raise UntilBeyond(f"transaction {until} was not reached: the newest one is {found.groups.txn_id_max}")
        return RemainingLog(source, found, those)
    raise UntilUnreachable("log and archive do not hold everything after the fork point without a gap")


def _sources(files: Files, directory: str) -> Iterator[LogSource]:
    """The live log, then the live log with the archived segments before it."""
    source = open_source(files, directory)
    yield source
    if run := run_before(list_segments(files, directory, source.instance.identity), source.segments[0].header):
        yield in_front(files, source, run)


def partitions_of(source: LogSource) -> range:
    """Those that the newest configuration in the log names."""
    groups = source.checkpoint(source.first_blocks[-1])
    if CLUSTER_GROUP not in groups.by_partition:  # a first segment: its head is empty
        groups = fold_end(source)
    return range(groups.cluster.partitions)


def read_after(place: ForkPlace) -> int:
    """The entry after which the log is read: a batch that the fork cuts has a rest, also where a segment ends with it."""
    return place.index - 1 if place.calls >= 0 else place.index


def _holds_all(place: ForkPlace, found: Scan) -> bool:
    """Whether the log holds every entry after the place, and the very entry at it."""
    stream = found.streams[place.partition]
    if not (stream.base <= read_after(place) and place.index <= stream.last_index):
        return False
    return not place.term or stream.seen.get(place.index) == (place.term, place.checksum)
