"""`faults/`: which nodes the cluster has declared failed, as a chain of records. FORMAT.md "Fault log".

One rule: a record is durable in both copies before anything acts on it, and sequence numbers never start again. A record states
the *entire* failure set, so the newest one alone says how things stand; it carries its predecessor's checksum, so that two which
follow the same one differently are a fork, however far apart their ends are.

A failed node loses its vote by a configuration entry of every group; then a FAULTS entry of the cluster group states the set, and
each node writes it here, before it acts on any later entry. So every node writes the very same record, and who was away takes
over those of the others (`adopt`). A node that is to be filled again states so first (`mark_rejoining`): from that moment until
the others have committed a set without it, its log counts for nothing.

Two orders distinguish an old copy of a directory from a node that lags, for who reads the logs of a dead cluster
(`replay.plan.authority`): a node has a mark about itself before it sends it, and it has the record that lists it, in its log at
least, before another is written without it.

Two equal files, each synced before the other is touched, of full length from the start: writing needs no space that could be
missing. What still fails is raised to the caller, who then must not act on the declaration, and this log is wedged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, WalError, Wedged
from cmdlog.wal.fault_record import (
    FAULT_COPY,
    BadFaultLog,
    Demotions,
    FaultCopy,
    FaultRecord,
    decode_copy,
    encode_copy,
    encode_fault,
    first_conflict,
    follows_all,
    is_of,
    make_record,
)
from cmdlog.wal.files import Files

__all__ = ["FaultLog", "FaultLogForked", "FaultRecord", "make_record", "read_faults"]

FAULTS_FOLDER: Final = "faults"
COPY_NAMES: Final = ("copy-1", "copy-2")
COPY_BYTES: Final = 256 << 10  # ten of the largest records fit; written whole, which happens when a node fails, not more often
RECORDS_KEPT_MAX: Final = 256  # a node that missed more than these is filled again
_READS_MAX: Final = 4  # of a running node's copies, of which one may be under way


class FaultLogForked(WalError):
    """Two records that cannot be in one history, or that cannot be compared."""

    hint = (
        "one cluster was split into two, or a node was restored from an old copy; `cmdlog recover --plan` names the directories"
    )


def read_faults(files: Files, directory: str, identity: Identity | None = None) -> tuple[FaultRecord, ...]:
    """The records of a node, ascending; beside a running one too, nothing is changed. None at all: it never had a declaration.

    Raises: Corrupt when neither copy can be read, Foreign, NewerFormat.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            copies = _read_copies(files, directory, identity)
        except Corrupt:
            if attempt >= _READS_MAX:
                raise
        else:
            return _best(copies).records if copies else ()


class FaultLog:
    """The open log of a node. One writer: who holds the directory's lock. Not thread-safe."""

    def __init__(self, files: Files, directory: str, copy: FaultCopy) -> None:
        self._files, self._copy = files, copy
        self._paths = [os.path.join(directory, FAULTS_FOLDER, name) for name in COPY_NAMES]
        self._wedged: Exception | None = None

    @classmethod
    def open(cls, files: Files, directory: str, identity: Identity) -> FaultLog:
        """Opens for writing, makes the files where there are none, heals a bad copy from the other; durable on return.

        Raises: Corrupt when no copy is valid, Foreign, NewerFormat, DiskFull, WriteFailed.
        """
        copies = _read_copies(files, directory, identity)
        best = _best(copies) if copies else FaultCopy(identity, 0, ())
        log = cls(files, directory, replace(best, identity=identity))
        log._prepare(whole_first=next((path for path, copy in copies.items() if copy == best), log._paths[0]))
        return log

    @property
    def records(self) -> tuple[FaultRecord, ...]:
        """What is kept, ascending; older ones have fallen off the front."""
        return self._copy.records

    @property
    def newest(self) -> FaultRecord | None:
        return self.records[-1] if self.records else None

    @property
    def failed(self) -> frozenset[int]:
        """The failure set as this node knows it."""
        return self.newest.failed if self.newest is not None else frozenset()

    def append(
        self,
        *,
        failed: Iterable[int],
        epoch: int = 0,
        term: int,
        demotions: Demotions = (),
        reason: str = "",
    ) -> FaultRecord:
        """Adds the next record, of this node's authorship; both copies are durable on return.

        Raises: DiskFull, WriteFailed, Wedged, TooLarge; nothing may act on the declaration then.
        """
        identity = self._copy.identity
        record = make_record(
            identity.cluster_id, self.newest, failed=failed, epoch=epoch, term=term,
            author=identity.node_id, demotions=demotions, reason=reason,
        )  # fmt: skip
        self._save([*self.records, record])
        return record

    def adopt(self, records: Sequence[FaultRecord]) -> int:
        """Takes over what others have written after our newest record; durable on return. Returns how many were new.

        A mark that this node wrote about itself and that nobody else took over gives way only to records that end with this node
        in the failure set: its log may be half filled. Raises: FaultLogForked naming both records; those of `append`.
        """
        _check_chain(self._copy.identity, records)
        ours, node = list(self.records), self._copy.identity.node_id
        if records and node in records[-1].failed:
            ours = self._without_own_marks(records)
        joined = self._joined(ours, records)
        if joined and joined[-1] != self.newest:
            before = {record.checksum for record in self.records}
            self._save(joined)
            return sum(record.checksum not in before for record in joined)
        return 0

    def mark_rejoining(self, *, term: int) -> FaultRecord:
        """Adds a record that lists this node beside the newest set.

        Call it before anything is discarded: durable on return, and from then on this node's log counts for nothing. A mark that
        is there already is returned: a caller that was interrupted calls it again. Raises: those of `append`.
        """
        newest, node = self.newest, self._copy.identity.node_id
        if newest is not None and newest.is_self_mark and newest.author == node:
            return newest
        return self.append(failed={*self.failed, node}, term=term, reason="is filled again")

    def _without_own_marks(self, lineage: Sequence[FaultRecord]) -> list[FaultRecord]:
        """Our records without the marks at the end that the others do not have: they took another record in their place."""
        known, ours = {record.checksum for record in lineage}, list(self.records)
        beyond = lineage[-1].sequence if lineage else 0
        node = self._copy.identity.node_id
        while ours and ours[-1].is_self_mark and ours[-1].author == node and ours[-1].sequence <= beyond:
            if ours[-1].checksum in known or first_conflict(ours[-1:], lineage) is None:
                break
            ours.pop()
        return ours

    def _joined(self, ours: Sequence[FaultRecord], theirs: Sequence[FaultRecord]) -> list[FaultRecord]:
        conflict = first_conflict(ours, theirs)
        if conflict is None and ours and theirs and theirs[0].sequence > ours[-1].sequence + 1:
            conflict = ours[-1], theirs[0]
        if conflict is not None:
            told = " and ".join(f"record {r.sequence} with checksum {r.checksum:08x} by node {r.author}" for r in conflict)
            raise FaultLogForked(f"fault logs contradict each other: {told}, the first one in {os.path.dirname(self._paths[0])}")
        last = ours[-1].sequence if ours else 0
        return [*ours, *(record for record in theirs if record.sequence > last)]

    def _save(self, records: Sequence[FaultRecord]) -> None:
        if self._wedged is not None:
            raise Wedged(f"the fault log refuses writes after: {self._wedged}")
        identity = self._copy.identity
        kept, size = list(records[-RECORDS_KEPT_MAX:]), FAULT_COPY.bytes
        sizes = [len(encode_fault(identity.cluster_id, record)) for record in kept]
        while size + sum(sizes) > COPY_BYTES:
            del kept[0], sizes[0]
        copy = FaultCopy(identity, self._copy.revision + 1, tuple(kept))
        self._write(copy, self._paths)
        self._copy = copy

    def _write(self, copy: FaultCopy, paths: Sequence[str]) -> None:
        """One after the other, each durable before the next is touched."""
        data = encode_copy(copy)
        try:
            for path in paths:
                file = self._files.open(path)
                try:
                    file.pwrite(data, 0)
                    file.fdatasync()
                finally:
                    file.close()
        except Exception as error:
            self._wedged = error
            raise

    def _prepare(self, *, whole_first: str) -> None:
        """Writes both copies again, the good one first and with the bytes it has: after that both are durable and equal.

        A copy that reads well may be in the page cache alone (the process died before its sync, or the sync failed). If the other
        were then overwritten and the power went, both would be torn.
        """
        folder = os.path.dirname(whole_first)
        if not self._files.exists(folder):
            self._files.mkdir(folder)
        self._files.fsync_dir(os.path.dirname(folder))  # also where it is there: who made it may have died before this
        for path in sorted(self._paths, key=lambda path: path != whole_first):
            if self._whole_length(path):
                self._write(self._copy, [path])
            else:
                self._files.write_file_atomic(path, encode_copy(self._copy).ljust(COPY_BYTES, b"\0"))
        self._files.fsync_dir(folder)

    def _whole_length(self, path: str) -> bool:
        """Whether the space for every later write is there."""
        if not self._files.exists(path):
            return False
        file = self._files.open(path, read_only=True)
        try:
            return file.size() >= COPY_BYTES
        finally:
            file.close()


def _read_copies(files: Files, directory: str, identity: Identity | None) -> dict[str, FaultCopy]:
    """The valid copies by path. Empty only where no file is at all."""
    found: dict[str, FaultCopy] = {}
    bad: tuple[str, str] | None = None
    for name in COPY_NAMES:
        path = os.path.join(directory, FAULTS_FOLDER, name)
        try:
            data = files.read_file(path)
            found[path] = decode_copy(data)
        except FileNotFoundError:
            continue
        except BadFaultLog as error:
            if error.newer:
                raise NewerFormat(f"{path} is of a newer format") from error
            bad = path, error.reason
        except Corrupt as error:
            bad = path, error.what
        else:
            if identity is not None and not identity.owns(found[path].identity):
                raise Foreign(f"{path} is the fault log of {found[path].identity}; this directory belongs to {identity}")
    if bad is not None and not found:
        raise Corrupt(f"no copy of the fault log can be read ({bad[1]})", path=bad[0])
    return found


def _best(copies: dict[str, FaultCopy]) -> FaultCopy:
    return max(copies.values(), key=lambda copy: copy.revision)


def _check_chain(identity: Identity, records: Sequence[FaultRecord]) -> None:
    """What came from elsewhere is whole and of this cluster. Raises: Foreign, FaultLogForked."""
    for record in records:
        if not is_of(identity.cluster_id, record):
            raise Foreign(f"fault record {record.sequence} of node {record.author} is not of this cluster, or has changed")
    if not follows_all(records):
        raise FaultLogForked(f"fault records {records[0].sequence} to {records[-1].sequence} that were given are no chain")
