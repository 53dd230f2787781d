"""A directory in which a fork was begun: what its marker says, how far each partition has come, and going on there.

One rule: it is gone on with for the very same fork only: of the same log, at the same places, with the same code. How far a
partition has come is a row in its own state file, in the transaction that it speaks of, so it is never wrong; it is taken out
before the file becomes that of a node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import apsw
import orjson

from cmdlog.wal.directory.instance import read_marker, write_marker
from cmdlog.wal.errors import NotEmpty, WrongDirectory
from cmdlog.wal.files import Files
from procedures.storage.state import PartitionState, rows_of
from replay.fork.rerun import ForkPlace, Missing
from replay.fork.tally import RerunProgress
from replay.recover.resume import OURS
from replay.state.trust import Trust, state_path

FORK: Final = "fork"  # what `creating.json` says has begun
_MAKE: Final = "CREATE TABLE IF NOT EXISTS _cmdlog_fork (id INTEGER PRIMARY KEY, told TEXT NOT NULL) STRICT"
_WRITE: Final = "INSERT INTO _cmdlog_fork VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET told = excluded.told"
_READ: Final = "SELECT told FROM _cmdlog_fork"
_DROP: Final = "DROP TABLE IF EXISTS _cmdlog_fork"


@dataclass(frozen=True, slots=True)
class ForkMarker:
    """What `creating.json` says: which fork it is."""

    places: str  # hash of where each partition leaves its log, what the log takes out in front of that, and which log it is
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

    def write(self, files: Files, out: str) -> None:
        """Durable on return."""
        write_marker(files, out, FORK, asdict(self))

    def __str__(self) -> str:
        at = f"at transaction {self.at}" if self.at else "from the start"
        until = "" if self.until is None else f" up to transaction {self.until}"
        skip = ", calls that do not fit left out" if self.missing == "skip" else ""
        return f"a fork of {self.directory} {at}{until} with code {self.code[:12]}{skip}"


def goes_on(files: Files, out: str, wanted: ForkMarker) -> bool:
    """Whether the directory holds this very fork, unfinished.

    Raises: WrongDirectory, when it holds another one, naming both; NotEmpty, when a marker does not say which.
    """
    marker = read_marker(files, out) if os.path.isdir(out) else None
    if marker is None or marker.pop("by", "") != FORK:
        return False
    if strange := sorted(set(os.listdir(out)) - OURS):
        raise NotEmpty(f"{out} is not empty: beside a fork that was broken off it holds {', '.join(strange[:5])}")
    try:
        found = ForkMarker(**marker)
    except TypeError:
        raise NotEmpty(f"{out} holds a fork that was broken off; remove it and begin again") from None
    if found == wanted:
        return True
    if replace(found, places=wanted.places) == wanted:
        raise WrongDirectory(
            f"{out} holds {found}, which was broken off; what the log says of the calls up to there has changed since: remove "
            "the directory and begin again, or name another one"
        )
    raise WrongDirectory(
        f"{out} holds {found}, which was broken off; wanted is {wanted}: finish that one, remove the "
        "directory, or name another one"
    )


def keep(state: PartitionState, done: RerunProgress) -> None:
    """Notes in the open transaction how far the partition has come."""
    state.connection.execute(_MAKE)
    state.connection.execute(_WRITE, (orjson.dumps(done.kept()).decode(),))


def done_of(state: PartitionState) -> RerunProgress | None:
    """How far an earlier run of the fork has come."""
    return _done(state.connection)


def all_done(trust: Trust, out: str, partitions: range) -> dict[int, RerunProgress]:
    """Partition -> how far an earlier run has come behind the fork; without those whose state file is not to be trusted."""
    found = {}
    for partition in partitions:
        if trust.doubt(partition):
            continue
        try:
            connection = apsw.Connection(state_path(out, partition), flags=apsw.SQLITE_OPEN_READONLY)
        except apsw.Error:
            continue
        try:
            if (done := _done(connection)) is not None:
                found[partition] = done
        finally:
            connection.close()
    return found


def forget(out: str, partitions: range) -> None:
    """The states become those of a node."""
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
