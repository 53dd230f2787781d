"""Which fork an unfinished directory is for, and how far each of its partitions has got.

One rule: only the very same fork resumes it: of the same log, at the same places, with the same code. How far a partition is
has a row in its own state file, in the transaction that it speaks of, so it is never wrong; it is removed before the file
becomes that of a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import apsw
import orjson

from procedures.storage.state import PartitionState, rows_of
from procedures.storage.state_file import connect
from replay.fork.rerun import ForkPlace, Missing
from replay.fork.tally import RerunProgress
from replay.recover.new_directory import NodeRequest
from replay.state.trust import Trust, state_path

_MAKE: Final = "CREATE TABLE IF NOT EXISTS _cmdlog_fork (id INTEGER PRIMARY KEY, told TEXT NOT NULL) STRICT"
_WRITE: Final = "INSERT INTO _cmdlog_fork VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET told = excluded.told"
_READ: Final = "SELECT told FROM _cmdlog_fork"
_DROP: Final = "DROP TABLE IF EXISTS _cmdlog_fork"


@dataclass(frozen=True, slots=True)
class ForkMarker(NodeRequest):
    """Which fork it is."""

    by = "fork"

    places: str  # hash of where each partition leaves its log, what the log skips before that, and which log it is
    directory: str  # that is forked
    at: int
    until: int | None
    code: str  # hash of its bundle
    missing: Missing

    @classmethod
    def of(
        cls,
        places: Mapping[int, ForkPlace],
        skips: Mapping[int, Mapping[int, Sequence[int]]],
        incarnation: bytes,
        directory: str,
        *,
        at: int,
        until: int | None,
        code: str,
        missing: Missing,
    ) -> ForkMarker:
        """`places` is empty for a fork from the start. `skips`: partition -> index of a batch -> positions."""
        gone = [[p, [[index, list(found)] for index, found in sorted(of.items())]] for p, of in sorted(skips.items())]
        told = orjson.dumps([incarnation.hex(), [asdict(place) for _, place in sorted(places.items())], gone])
        return cls(hashlib.sha256(told).hexdigest(), directory, at, until, code, missing)

    def __str__(self) -> str:
        at = f"at transaction {self.at}" if self.at else "from the start"
        until = "" if self.until is None else f" up to transaction {self.until}"
        skip = ", skipping calls that do not fit" if self.missing == "skip" else ""
        return f"fork of {self.directory} {at}{until} with code {self.code[:12]}{skip}"


def save_progress(state: PartitionState, done: RerunProgress) -> None:
    """Notes in the open transaction how far the partition has got."""
    state.connection.execute(_MAKE)
    state.connection.execute(_WRITE, (orjson.dumps(done.kept()).decode(),))


def done_of(state: PartitionState) -> RerunProgress | None:
    """How far an earlier run of the fork has come."""
    return _done(state.connection)


def all_done(trust: Trust, out: str, partitions: range) -> dict[int, RerunProgress]:
    """Partition -> how far an earlier run has got after the fork point; without those whose state file is not to be trusted."""
    found = {}
    for partition in partitions:
        if trust.doubt(partition):
            continue
        try:
            connection = connect(state_path(out, partition))
        except apsw.Error:
            continue
        try:
            if (done := _done(connection)) is not None:
                found[partition] = done
        finally:
            connection.close()
    return found


def forget(out: str, partitions: range) -> None:
    """Removes the notes: the states become those of a node."""
    for partition in partitions:
        state = PartitionState.open(state_path(out, partition), partition=partition)
        try:
            state.connection.execute(_DROP)
        finally:
            state.close()


def _done(connection: apsw.Connection) -> RerunProgress | None:
    try:
        rows = rows_of(connection, _READ)
    except apsw.Error:  # there is no such table
        return None
    return RerunProgress.of_kept(orjson.loads(rows[0][0])) if rows else None
