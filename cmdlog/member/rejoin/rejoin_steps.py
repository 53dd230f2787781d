"""The steps by which a node is made again.

One rule: each is durable before the next one, and done again after a crash. A record says which is next.

    WANTED       draw the new incarnation, keep the votes that can be read                 -> COPYING
    COPYING      mark the old fault log; be admitted; fetch; verify                        -> FETCHED
    FETCHED      move the old files into quarantine, `instance.json` first                 -> QUARANTINED
    QUARANTINED  make the directory of the copy                                            -> MADE
    MADE         remove `copying/`, and the record last
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Final

import structlog

from cmdlog.cluster.copying.copy_values import CopyManifest
from cmdlog.member.rejoin.admission import AdmissionWish, AskPauses, LifeOver, Neighbours, rest_until
from cmdlog.member.rejoin.copied_directory import CopyToMake, begin_directory, is_complete, make_directory, read_votes
from cmdlog.member.rejoin.copied_files import CopiedFiles, check_chains
from cmdlog.member.rejoin.copy_fetch import AdmissionLost, CopyFetch, in_order
from cmdlog.member.rejoin.quarantine_folder import new_quarantine_name, quarantine_parts
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import RejoinFile, RejoinRecord, RejoinState, write_tombstone
from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity, load_instance
from cmdlog.wal.directory.lock import DirectoryLock
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.errors import SnapshotDamaged

INCARNATION_BYTES: Final = 8
FETCHES_MAX: Final = 3  # of a copy that is whole by its checksums, and yet none that a node can be made of

log = structlog.get_logger("cmdlog.cluster")


class RejoinSteps:
    """Of one directory, whose lock the caller holds."""

    def __init__(self, ground: RejoinGround, owner: DirectoryLock) -> None:
        self._ground, self._owner = ground, owner
        self._file = RejoinFile(ground.files, ground.directory)
        self._copied = CopiedFiles(ground.files, ground.directory)
        self._fetches = 0  # copies that were of no use

    def make_node(self, record: RejoinRecord) -> None:
        """From wherever an earlier run was interrupted to a node that can be opened. Durable on return.

        Raises: MemberRemoved; CopyRefused; WalError; what the report of progress raises.
        """
        log.warning("node_is_copied", state=record.state.value, reason=record.reason.value, why=record.why)
        while record.state is not RejoinState.MADE:
            record = self._next(record)
            self._file.write_record(record)
        self._copied.remove_copy()
        self._file.remove_record()
        log.info("node_copied", incarnation=record.incarnation.hex(), reason=record.reason.value)

    def _next(self, record: RejoinRecord) -> RejoinRecord:
        if record.state is RejoinState.WANTED:
            return self._draw(record)
        if record.state is RejoinState.COPYING:
            return self._copy(record)
        if record.state is RejoinState.FETCHED:
            return self._quarantine(record)
        return self._make(record)

    def _draw(self, record: RejoinRecord) -> RejoinRecord:
        incarnation = record.incarnation or os.urandom(INCARNATION_BYTES)
        return record.drawn(incarnation, read_votes(self._ground.files, self._ground.directory))

    # -- the copy ----------------------------------------------------------------------------------------------------------

    def _copy(self, record: RejoinRecord) -> RejoinRecord:
        self._mark_rejoining(record)
        ground = self._ground
        neighbours = Neighbours(ground.node, ground.member.cluster.members, record.members)
        admission = AdmissionWish(ground, neighbours, record.incarnation)
        fetch, pauses = CopyFetch(ground, record, self._copied), AskPauses()
        while True:
            try:
                self._await_admission(admission, record)
                if (manifest := fetch.fetch_from(in_order(neighbours.members, leader=admission.leader))) is not None:
                    return self._verified(record, manifest)
                why = "no node gives a copy now"
            except AdmissionLost as lost:
                why = str(lost)
            except LifeOver:
                log.warning("incarnation_is_over", incarnation=record.incarnation.hex())
                return replace(record, state=RejoinState.WANTED, former=record.incarnation, incarnation=b"")
            except SnapshotDamaged as error:
                self._give_up_files(error)
                why = str(error)
            rest_until(ground, pauses.after(why), {"copy": "ABSENT", "why": why})

    def _await_admission(self, admission: AdmissionWish, record: RejoinRecord) -> None:
        """Raises: MemberRemoved, LifeOver."""
        tombstone = admission.wait_until_admitted(former=record.former, reason=record.reason)
        if tombstone is not None:
            write_tombstone(self._ground.files, self._ground.directory, tombstone)
            raise tombstone.error(self._ground.directory)

    def _give_up_files(self, error: SnapshotDamaged) -> None:
        """They are whole, and yet no snapshots that belong together: all are fetched again. Raises: `error`, after some times."""
        self._fetches += 1
        log.error("copy_unusable", why=str(error), fetches=self._fetches)
        self._copied.remove_copy()
        if self._fetches >= FETCHES_MAX:
            raise error

    def _mark_rejoining(self, record: RejoinRecord) -> None:
        """From here on what the old directory knows counts for nothing, for those who look at directories alone."""
        ground = self._ground
        try:
            instance = load_instance(ground.files, ground.directory)
            term = (record.votes or {}).get(CLUSTER_GROUP, (0, None))[0]
            FaultLog.open(ground.files, ground.directory, instance.identity).mark_rejoining(term=term)
        except WalError as error:
            if ground.files.exists(os.path.join(ground.directory, INSTANCE_NAME)):
                log.warning("old_fault_log_unreadable", why=full_text(error))

    def _verified(self, record: RejoinRecord, manifest: CopyManifest) -> RejoinRecord:
        """Raises: SnapshotDamaged when the files are whole, but no snapshots that belong together."""
        check_chains(self._ground.files, self._copied.folder, {p: place.index for p, place in manifest.partitions.items()})
        name = new_quarantine_name(self._ground.files, self._ground.directory, record.reason.value, time.time())
        return replace(record, state=RejoinState.FETCHED, quarantine=name)

    # -- the directory -----------------------------------------------------------------------------------------------------

    def _quarantine(self, record: RejoinRecord) -> RejoinRecord:
        ground = self._ground
        ground.report({"step": "copying", "copy": "COPYING", "why": "the directory is made of the copy"})
        begin_directory(ground.files, ground.directory)
        if moved := quarantine_parts(ground.files, ground.directory, record.quarantine):
            log.warning("old_files_quarantined", folder=record.quarantine, parts=moved)
        return replace(record, state=RejoinState.QUARANTINED)

    def _make(self, record: RejoinRecord) -> RejoinRecord:
        files, directory = self._ground.files, self._ground.directory
        identity = Identity(self._ground.member.cluster.cluster_id, self._ground.node, record.incarnation)
        if not is_complete(files, directory, identity):
            made = CopyToMake(identity, self._copied.read_manifest(), record.votes or {}, record.quarantine)
            make_directory(files, directory, self._owner, made, self._copied)
        return replace(record, state=RejoinState.MADE)
