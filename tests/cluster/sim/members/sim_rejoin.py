"""A simulated node that is made again from a copy, one step after the other; it may die after each, and in the middle of any.

One rule: record, votes, quarantine, first records and fault log are the product's (`cmdlog.member.rejoin`), and what they
leave on the disk decides what the next start does. Only the files travel otherwise: as bytes of simulated snapshots.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import google_crc32c
import orjson

from cmdlog.cluster.copying.copy_values import CopyManifest
from cmdlog.member.rejoin.copied_directory import (
    MADE_BY,
    begin_directory,
    bring_peers,
    decode_lineage,
    first_records,
    is_complete,
    read_votes,
)
from cmdlog.member.rejoin.quarantine_folder import quarantine_parts
from cmdlog.member.rejoin.rejoin_record import RejoinFile, RejoinReason, RejoinRecord, RejoinState
from cmdlog.wal.directory.instance import Identity, load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.log import Log
from tests.cluster.sim.list_images import decode_state, undisturbed, write_image
from tests.cluster.sim.sim_member import Machine, directory_of
from tests.wal.logkit import generations

if TYPE_CHECKING:
    from tests.cluster.sim.members.changing_cluster import ChangingCluster

CHUNKS: Final = 3  # of each file
BLOCK: Final = 2  # of the new log: where its first records are


@dataclass(frozen=True, slots=True)
class Copied:
    """What a source has given."""

    manifest: CopyManifest
    images: dict[int, bytes]  # by partition


class SimRejoin:
    """Of one process."""

    def __init__(self, world: ChangingCluster, node: int, machine: Machine) -> None:
        self.world, self.node, self.machine = world, node, machine
        self.directory, self.folder = directory_of(node), os.path.join(directory_of(node), "copying")
        self.done = False
        self._file = RejoinFile(machine.files, self.directory)
        self._steps = self._run()

    def step(self) -> None:
        """The next one. Raises: SimCrash."""
        with undisturbed(self.machine.files):
            self.done = next(self._steps, "done") == "done"

    @property
    def files(self) -> Files:
        return self.machine.files

    def _run(self) -> Iterator[str]:
        record = self._file.read_record()
        assert record is not None
        while record.state is not RejoinState.MADE:
            if record.state is RejoinState.WANTED:
                votes = read_votes(self.files, self.directory)
                record = record.drawn(record.incarnation or self.world.draw_incarnation(self.node), votes)
            elif record.state is RejoinState.COPYING:
                self._mark(record)
                standing = self.world.ask(self.node, record.incarnation, record.former)
                if standing == "removed":
                    self.world.retire(self.node)
                    return
                if standing == "over":
                    record = replace(record, state=RejoinState.WANTED, former=record.incarnation, incarnation=b"")
                elif standing == "admitted" and (yield from self._fetch(record)):
                    record = replace(record, state=RejoinState.FETCHED, quarantine=record.incarnation.hex())
            elif record.state is RejoinState.FETCHED:
                begin_directory(self.files, self.directory)
                yield "begun"
                quarantine_parts(self.files, self.directory, record.quarantine)
                self.machine.states, self.machine.captured = {}, {}
                record = replace(record, state=RejoinState.QUARANTINED)
            else:
                yield from self._make(record)
                record = replace(record, state=RejoinState.MADE)
            yield "before the record"
            self._file.write_record(record)
            yield record.state.value
        self._load()
        self._file.remove_record()
        self.world.happened["copied"] += 1

    def _mark(self, record: RejoinRecord) -> None:
        with suppress(WalError, OSError):
            identity = load_instance(self.files, self.directory).identity
            FaultLog.open(self.files, self.directory, identity).mark_rejoining(term=1)

    def _fetch(self, record: RejoinRecord) -> Generator[str, None, bool]:
        """Whether all of it is here; False when the source is gone."""
        source = self.world.begin_copy(self.node, record.incarnation)
        if source is None:
            yield "no source"
            return False
        member, copied = source
        for partition, data in copied.images.items():
            have, size = b"", len(data) // CHUNKS + 1
            while len(have) < len(data):
                if self.world.members.get(member.node) is not member or (member.node, self.node) in self.world.cut:
                    self.world.happened["source lost"] += 1
                    yield "source lost"
                    return False
                have += data[len(have) : len(have) + size]
                yield "chunk"
            assert google_crc32c.value(have) == google_crc32c.value(data)
            self._keep(f"p{partition}", have)
        self._keep("manifest", orjson.dumps(copied.manifest.to_json()))
        return True

    def _keep(self, name: str, data: bytes) -> None:
        if not self.files.exists(self.folder):
            self.files.mkdir(self.folder)
            self.files.fsync_dir(self.directory)
        self.files.write_file_atomic(os.path.join(self.folder, name), data)

    def _manifest(self) -> CopyManifest:
        return CopyManifest.from_json(orjson.loads(self.files.read_file(os.path.join(self.folder, "manifest"))))

    def _make(self, record: RejoinRecord) -> Iterator[str]:
        files, directory, manifest = self.files, self.directory, self._manifest()
        identity = Identity(self.world.cluster_id, self.node, record.incarnation)
        if is_complete(files, directory, identity):
            return
        groups = GroupStates()
        groups.by_partition = dict(manifest.groups)
        for name in ("snapshots", "faults"):
            if not files.exists(os.path.join(directory, name)):
                files.mkdir(os.path.join(directory, name))
        snapshots = {}
        for partition in manifest.partitions:
            state = decode_state(files.read_file(os.path.join(self.folder, f"p{partition}")))
            name = write_image(self.machine.files, directory, identity, state, groups=groups, block=BLOCK)
            snapshots[partition] = SimpleNamespace(name=name)
            yield "image"
        if records := decode_lineage(identity.cluster_id, manifest.faults):
            FaultLog.open(files, directory, identity).adopt(records)
        yield "faults"
        bring_peers(files, directory, identity, manifest, quarantine=record.quarantine)
        yield "peers"
        Log.create(
            files, directory, identity, segment_bytes=manifest.log.segment_bytes, segments=manifest.log.segments,
            reserve_bytes=manifest.log.reserve_bytes, initial=first_records(manifest, record.votes or {}, snapshots),  # type: ignore[arg-type]
            begun_by=MADE_BY, generation=generations(5_000_000 + 1000 * self.world.drawn),
        )  # fmt: skip
        yield "made"

    def _load(self) -> None:
        """The sites' files are as the snapshots."""
        images = {p: self.files.read_file(os.path.join(self.folder, f"p{p}")) for p in self._manifest().partitions}
        self.machine.states = {partition: decode_state(data) for partition, data in images.items()}
        self.machine.captured = {partition: decode_state(data) for partition, data in images.items()}


def wants_copy(files: Files, node: int) -> bool:
    """Whether the node is to be made again."""
    return RejoinFile(files, directory_of(node)).read_record() is not None


def wish_copy(files: Files, node: int, reason: RejoinReason) -> None:
    """The next start makes the node again."""
    directory = directory_of(node)
    for folder in (directory, os.path.join(directory, "cluster")):
        if not files.exists(folder):
            files.mkdir(folder)
            files.fsync_dir(os.path.dirname(folder))
    former = b""
    with suppress(WalError, OSError):
        former = load_instance(files, directory).identity.incarnation
    RejoinFile(files, directory).write_record(RejoinRecord(RejoinState.WANTED, reason, "simulated", former))
