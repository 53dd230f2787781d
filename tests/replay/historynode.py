"""One node of a made-up cluster: a real directory with log, fault log and snapshots, beside a plain list of what the log holds.

One rule: it does what it is told and judges nothing; whether a cluster may do it is `histories.History`'s business.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import orjson

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FAULTS_FOLDER, FaultLog
from cmdlog.wal.files import RealFile, RealFiles
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_digest, encode_json
from cmdlog.wal.group_state import GroupState, GroupStates, LoggedCatalog, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from snapshot.capture.seal import seal
from snapshot.catalog import free_path, temporary_path
from snapshot.manifest import IMAGE_NAME

SEGMENT_BYTES = 64 << 10  # default
SEGMENTS = 64
RESERVE_BYTES = 4096
BLOCK_SHARE = 4  # of a segment is the log's own limit for a block
NO_ACCOUNT = -1  # of a multi-partition call
CREATED = "2026-01-01T00:00:00Z"


class _QuickFile(RealFile):
    """Nobody cuts the power here."""

    __slots__ = ()

    def fdatasync(self) -> None:
        """Nothing."""

    def fsync(self) -> None:
        """Nothing."""


class QuickFiles(RealFiles):
    """The operating system without its syncs."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> RealFile:
        file = super().open(path, create=create, exclusive=exclusive, read_only=read_only)
        return _QuickFile(file.fd, path)

    def fsync_dir(self, path: str) -> None:
        """Nothing."""


class _Feed:
    """A `Source` of one block at a time."""

    def __init__(self) -> None:
        self.blocks: deque[list[bytes]] = deque()
        self.pending_bytes, self.waits, self.lax = 0, True, False

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        return self.blocks.popleft() if self.blocks else ()

    def written(self, block: int) -> None:
        """Nothing to do."""

    def durable(self, block: int) -> None:
        """Nothing to do."""

    def failed(self, error: WalError) -> None:
        raise error


@dataclass(frozen=True, slots=True)
class Entry:
    """A replicated entry; the same on every node that holds it."""

    group: int
    index: int
    term: int
    kind: RecordKind
    raw: bytes
    checksum: int
    value: Mapping[str, Any] | None = None  # of a JSON kind
    calls: tuple[tuple[int, int, int], ...] = ()  # of a batch: TxnId, account, amount (-1: the account is opened)
    catalog: int = 0  # version that a batch runs
    multi: int = 0  # TxnId of a multi-partition call, whose account is NO_ACCOUNT and whose amount is its number


@dataclass(frozen=True, slots=True)
class Did:
    """What a batch did: the content of its digest."""

    rows_digest: int
    catalog: int
    result_hashes: bytes


@dataclass(slots=True)
class Held:
    """One group on one node: the entries in (base, last]."""

    base: int = 0
    base_term: int = 0
    base_checksum: int = 0
    base_configuration: tuple[int, int, Mapping[str, Any]] | None = None  # index, term, value; in force at the base
    entries: list[Entry] = field(default_factory=list)
    term: int = 1  # the highest one seen
    commit: int = 0  # known committed here
    digested: int = 0  # digests are written up to here

    @property
    def last_index(self) -> int:
        return self.base + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    @property
    def last_checksum(self) -> int:
        return self.entries[-1].checksum if self.entries else self.base_checksum

    def place(self, index: int) -> tuple[int, int] | None:
        """(term, checksum) at the index, None when it is not held."""
        if index == self.base:
            return self.base_term, self.base_checksum
        if not self.base < index <= self.last_index:
            return None
        entry = self.entries[index - self.base - 1]
        return entry.term, entry.checksum

    def behind(self, index: int, upto: int | None = None) -> list[Entry]:
        """Entries in (index, upto]."""
        end = None if upto is None else max(0, upto - self.base)
        return self.entries[max(0, index - self.base) : end]

    def configuration(self, upto: int | None = None) -> tuple[int, int, Mapping[str, Any]]:
        """The newest configuration up to the index: index, term, value."""
        for entry in reversed(self.entries):
            if entry.kind is RecordKind.CONFIGURATION and (upto is None or entry.index <= upto):
                assert entry.value is not None
                return entry.index, entry.term, entry.value
        return self.base_configuration or (0, 0, {})


@dataclass(frozen=True, slots=True)
class Base:
    """Where a group of a copied node begins."""

    held: Held
    state: GroupState
    image: str = ""  # of a partition: the state there
    position: Mapping[str, Any] = field(default_factory=dict)


class HistoryNode:
    """A node. `held` is what its log says, whether it is up or not."""

    def __init__(
        self, folder: str, number: int, cluster_id: bytes, rng: random.Random, *, segment_bytes: int = SEGMENT_BYTES,
        initial: Sequence[Entry] = (),
    ) -> None:  # fmt: skip
        self.files, self.number, self._rng = QuickFiles(), number, rng
        self.directory = os.path.join(folder, f"node-{number}")
        self.identity = self._fresh(cluster_id)
        self._segment_bytes = segment_bytes
        self.up = True
        self.orderly = False  # it was stopped, and in good order
        self.silent = False  # its log was lost or discarded: neither its vote nor its copies count until it is made a voter anew
        self.copying = False  # it is being filled
        self.copied_from: dict[int, int] = {}  # group -> index of the demotion behind which a promotion counts
        self.held: dict[int, Held] = {}
        self._queue: list[bytes] = []
        for entry in initial:
            self.held[entry.group] = Held(entries=[entry])
        self._create([entry.raw for entry in initial])

    # -- the log -----------------------------------------------------------------------------------------------------------

    def group(self, group: int) -> Held:
        """The group, made on first sight."""
        return self.held.setdefault(group, Held())

    def take(self, entries: Sequence[Entry], *, say_cut: bool = False) -> None:
        """Appends entries; what stands at their place is void. `say_cut`: a TRUNCATION goes before them."""
        if not entries:
            return
        held, first = self.group(entries[0].group), entries[0].index
        assert held.base < first <= held.last_index + 1
        if first <= held.last_index:
            assert held.commit < first
            del held.entries[first - held.base - 1 :]
            held.digested = min(held.digested, first - 1)
            if say_cut:
                value = {"checksum": held.last_checksum}
                self.say(encode_json(RecordKind.TRUNCATION, value, partition=entries[0].group, term=held.last_term, index=first))
        for entry in entries:
            held.entries.append(entry)
            held.term = max(held.term, entry.term)
            self.say(entry.raw)

    def vote(self, group: int, term: int, candidate: int) -> None:
        """Gives its vote."""
        self.group(group).term = term
        self.say(encode_json(RecordKind.HARD_STATE, {"vote": candidate}, partition=group, term=term, index=0))

    def learn_commit(self, group: int, commit: int, closed_txn: int, did: Mapping[int, Did]) -> None:
        """Writes a commit mark, and the digests of what has been executed by that."""
        held = self.held[group]
        held.commit = max(held.commit, commit)
        for entry in held.behind(held.digested, held.commit):
            if entry.kind is RecordKind.BATCH:
                if (what := did.get(entry.index)) is None:  # a multi-partition call before it is not committed everywhere
                    break
                self.say(encode_digest(partition=group, term=entry.term, index=entry.index, rows_digest=what.rows_digest,
                                       catalog=what.catalog, result_hashes=what.result_hashes))  # fmt: skip
            held.digested = entry.index
        self.say(encode_commit_mark(partition=group, term=held.term, commit=commit, closed_txn=closed_txn))

    def say(self, record: bytes) -> None:
        """A record for the log; blocks are made of several."""
        self._queue.append(record)
        self._queue_bytes += len(record) + 8
        if self._queue_bytes > self._block_bytes:
            self.flush()

    def flush(self) -> None:
        """What was said is in the file."""
        queue, self._queue, self._queue_bytes = self._queue, [], 0
        self._block_bytes = self._rng.randrange(200, self._segment_bytes // BLOCK_SHARE)
        while queue:
            block, size = [queue.pop(0)], 0
            size = len(block[0])
            while queue and size + len(queue[0]) + 8 < self._segment_bytes // BLOCK_SHARE - 1024:
                size += len(queue[0]) + 8
                block.append(queue.pop(0))
            self._feed.blocks.append(block)
            while self._feed.blocks:
                self.wal.run_turn()

    # -- life --------------------------------------------------------------------------------------------------------------

    def stop(self, *, orderly: bool = True) -> None:
        """The process ends. A killed one leaves no seal and no note of how far its log is durable."""
        if not self.up:
            return
        self.flush()
        log = os.path.join(self.directory, "log")
        if not orderly:
            shutil.copytree(log, f"{log}.killed")
        self.wal.close()
        if not orderly:
            shutil.rmtree(log)
            os.rename(f"{log}.killed", log)
        self.up, self.orderly = False, orderly

    def start(self) -> None:
        """The process starts again on what is there."""
        assert not self.up
        self.up = True
        self._open()

    def copy_to(self, folder: str) -> str:
        """A copy of the whole directory, as an operator takes it while the node is down or just idle."""
        self.flush()
        target = os.path.join(folder, f"copy-{self.number}-{len(os.listdir(folder))}")
        shutil.copytree(self.directory, target)
        return target

    def lose_disk(self) -> None:
        """Another disk, empty, under the same number."""
        self._empty(self._fresh(self.identity.cluster_id), keep_faults=False)

    def discard(self) -> None:
        """Throws its log, snapshots and states away; the fault log stays."""
        self._empty(self.identity, keep_faults=True)

    def fill(self, bases: Mapping[int, Base], facts: Mapping[str, Any]) -> None:
        """Begins anew with what another node's log stood at: a checkpoint of every group, and the snapshots."""
        groups = GroupStates()
        groups.by_partition = {number: base.state for number, base in bases.items()}
        self._empty(self.identity, keep_faults=True, initial=groups)
        self.held = {number: base.held for number, base in bases.items()}
        for number, base in bases.items():
            if base.image:
                self.put_snapshot(number, base.image, base.position, facts, log_block=2)

    def put_snapshot(
        self, partition: int, image: str, position: Mapping[str, Any], facts: Mapping[str, Any], *, log_block: int | None = None
    ) -> str:
        """Seals a copy of the image as a snapshot of this node, with its mark in the log; returns its folder."""
        self.flush()
        temporary = temporary_path(self.directory, partition)
        os.mkdir(temporary)
        shutil.copyfile(image, os.path.join(temporary, IMAGE_NAME))
        final = free_path(self.files, self.directory, partition=partition, index=position["index"])
        block = int(self.wal.durable_block) if log_block is None else log_block
        who = {
            "cluster_id": self.identity.cluster_id.hex(),
            "node_id": self.number,
            "incarnation": self.identity.incarnation.hex(),
        }
        seal(self.files, temporary, final, {**position, **facts, **who, "log_block": block, "created": CREATED})
        mark = {"name": os.path.basename(final), **position, "log_block": block}
        self.say(encode_json(RecordKind.SNAPSHOT_MARK, mark, partition=partition, term=position["term"], index=position["index"]))
        return final

    def _create(self, initial: Sequence[bytes]) -> None:
        Log.create(self.files, self.directory, self.identity, segment_bytes=self._segment_bytes, segments=SEGMENTS,
                   reserve_bytes=RESERVE_BYTES, initial=initial)  # fmt: skip
        self._meet_witness()
        self._open()

    def _meet_witness(self) -> None:
        """A node of which no directory is given has met this one: else a log as it was made might be an emptied disk's."""
        folder = os.path.join(self.directory, "cluster")
        os.mkdir(folder)
        facts = self.identity.as_text()
        value = {
            "format": 1, **facts, "starts": 1,
            "peers": {"99": {"incarnation": "00" * 8, "confirmed": True, "start": None, "former": []}},
        }  # fmt: skip
        checksum = f"{google_crc32c.value(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)):08x}"
        with open(os.path.join(folder, "peers.json"), "wb") as file:
            file.write(orjson.dumps({**value, "checksum": checksum}))

    def _open(self) -> None:
        self._queue, self._queue_bytes, self._block_bytes = [], 0, 4 << 10
        self._feed = _Feed()
        self.wal = Log.open(self.files, self.directory)
        self.wal.start(self._feed, threads=0)
        self.faults = FaultLog.open(self.files, self.directory, self.identity)

    def _empty(self, identity: Identity, *, keep_faults: bool, initial: GroupStates | None = None) -> None:
        """The directory with nothing in it but, perhaps, the fault log; the log begins with `initial`."""
        self.stop()
        old = f"{self.directory}.old"
        os.rename(self.directory, old)
        self.identity, self.held, self.up = identity, {}, True
        records = initial.checkpoints(oldest_block=1) if initial else []
        Log.create(self.files, self.directory, self.identity, segment_bytes=self._segment_bytes, segments=SEGMENTS,
                   reserve_bytes=RESERVE_BYTES, initial=records)  # fmt: skip
        if keep_faults:
            faults = os.path.join(self.directory, FAULTS_FOLDER)
            os.rmdir(faults)
            os.rename(os.path.join(old, FAULTS_FOLDER), faults)
        shutil.rmtree(old)
        self._open()

    def _fresh(self, cluster_id: bytes) -> Identity:
        return Identity(cluster_id, self.number, self._rng.randbytes(8))


def base_of(source: Held, group: int, at: int, closed_txn: int, catalogs: Mapping[int, tuple[int, Mapping[str, Any]]]) -> Base:
    """The group as of an entry that is committed, for a node that begins there. `catalogs`: version -> index, value."""
    place = source.place(at)
    assert place is not None
    index, term, value = source.configuration(at)
    held = Held(base=at, base_term=place[0], base_checksum=place[1], base_configuration=(index, term, value),
                term=source.term, commit=at, digested=at)  # fmt: skip
    state = GroupState(
        term=source.term, commit=at, last_index=at, last_term=place[0], last_checksum=place[1], closed_txn=closed_txn,
        last_txn=closed_txn, configurations=[Stated(index, term, dict(value))],
    )  # fmt: skip
    if group == CLUSTER_GROUP:
        state.catalogs = {
            version: LoggedCatalog(stated_at, dict(content), stated_block=2)
            for version, (stated_at, content) in catalogs.items()
            if stated_at <= at
        }
    return Base(held, state)
