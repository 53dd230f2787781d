"""The failure set as the node shows it: in its status and in the manifests of its snapshots.

One rule: it only reads. A node that votes alone declares nobody failed, so what its fault log said at the start holds until it
stops; a member shows each new set once it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import structlog

from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_record import FaultRecord
from cmdlog.wal.files import Files
from replay.log.known_failures import carried_fault, known_faults

log = structlog.get_logger("cmdlog.node")


@dataclass(frozen=True, slots=True)
class Failures:
    """The newest record of the fault log; None: no node was ever declared failed, or `problem` says why that is unknown."""

    newest: FaultRecord | None = None
    carried: str | None = None  # the record as manifests carry it
    problem: str = ""

    @classmethod
    def of(cls, files: Files, directory: str, identity: Identity) -> Self:
        """Reads those of a directory. An unreadable fault log does not keep the node from starting: it votes alone."""
        try:
            records = known_faults(files, directory, identity)
        except WalError as error:
            log.warning("fault_log_unreadable", directory=directory, reason=full_text(error))
            return cls(problem=full_text(error))
        newest = records[-1] if records else None
        return cls(newest, carried_fault(identity.cluster_id, newest))

    @classmethod
    def with_newest(cls, cluster_id: bytes, record: FaultRecord) -> Self:
        """A record that is durable in the fault log now."""
        return cls(record, carried_fault(cluster_id, record))

    def status(self) -> dict[str, Any]:
        """sequence and nodes; problem where the fault log cannot be read."""
        if self.problem:
            return {"sequence": None, "nodes": [], "problem": self.problem}
        if self.newest is None:
            return {"sequence": 0, "nodes": []}
        return {"sequence": self.newest.sequence, "nodes": sorted(self.newest.failed)}
