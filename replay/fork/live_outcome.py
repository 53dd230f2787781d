"""What a call of the log answered live. The log keeps only a hash of it, so the call is run again with its original code.

One rule: nothing is reported that the hash does not prove. It is optional in a report, so it is omitted where it would take long:
the partition is restored up to the call in a temporary folder, if that takes few enough calls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import orjson

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import Batch
from cmdlog.wal.group_state import LoggedCatalog
from procedures.errors import ProceduresError
from procedures.execution.executor import Applied, Invocations
from procedures.idempotency.known_outcome import KeyPolicy, Status
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing, Catalogs, PartitionEngine
from replay.errors import ReplayError
from replay.fork.tally import Difference
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import replay_into
from snapshot.errors import SnapshotError

CALLS_MAX: Final = 100_000  # before the call: some seconds


def with_live_outcome(
    files: Files, directory: str, found: Difference, batch: Batch, catalogs: Mapping[int, LoggedCatalog]
) -> Difference:
    """The difference with the live outcome, if it can be had and has the hash that the log holds."""
    try:
        applied = _run_again(files, directory, found, batch, catalogs)
    except (ReplayError, CatalogMissing, ProceduresError, SnapshotError, WalError):
        return found  # the fork is made all the same
    if applied is None or applied.result_hashes[0] != found.live_hash:
        return found
    return replace(found, live_status=Status(applied.statuses[0]).name, live_outcome=orjson.loads(applied.bodies[0]))


def _run_again(
    files: Files, directory: str, found: Difference, batch: Batch, catalogs: Mapping[int, LoggedCatalog]
) -> Applied | None:
    planned = make_plan(files, directory, PAST, until=found.txn_id - 1).only(found.partition)
    if planned.plan.calls > CALLS_MAX:
        return None
    with tempfile.TemporaryDirectory(prefix="cmdlog-call-") as scratch:
        paths = replay_into(files, scratch, planned)
        known = Catalogs()
        known.add_logged(batch.catalog, catalogs[batch.catalog].value)
        state = PartitionState.open(paths[found.partition], partition=found.partition)
        engine = PartitionEngine(state, known, digest_rows=False, policy=KeyPolicy(**planned.scan.groups.cluster.key_policy))
        try:
            return engine.executor.apply(_alone(found, batch, state.position.index + 1))
        finally:
            engine.close()


def _alone(found: Difference, batch: Batch, index: int) -> Invocations:
    """The call as a batch of its own."""
    at, keys = found.position, batch.key_list()
    return Invocations(
        index=index,
        term=batch.record.term,
        checksum=0,
        catalog=batch.catalog,
        txn_ids=[found.txn_id],
        procedures=[batch.procedures[at]],
        params=[batch.params()[at]],
        keys=None if keys is None else [keys[at]],
        floors=batch.floors,
        sent=batch.sent and [batch.sent[at]],
    )
