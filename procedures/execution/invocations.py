"""What goes into an executor and what comes out: the calls of one batch, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from procedures.errors import BatchRefused
from procedures.execution.failure_trace import FailureTrace

CALLS_MAX: Final = 1 << 20  # of one batch; positions in it take 20 bits


@dataclass(slots=True)  # not frozen: one is made per batch or record, and freezing costs 1.5 us
class Invocations:
    """One batch, decoded."""

    index: int  # the partition's log index of the batch
    term: int
    checksum: int  # CRC-32C of the batch record
    catalog: int  # catalog version: which bundle the procedure numbers belong to
    txn_ids: Sequence[int]  # strictly increasing
    procedures: Sequence[int]  # number in Database.procedure_list of that catalog version
    params: Sequence[list[Any]]  # wire form, one list per call
    keys: Sequence[bytes] | None  # name per call (`idempotency.session_calls`), zeros = none; None = no call has one
    floors: Mapping[bytes, int] = field(default_factory=dict)  # of every session that the batch names
    skips: frozenset[int] = frozenset()  # positions killed by a logged skip record
    sent: Sequence[int] = ()  # hash of each request, 0: it is its parameters; () all are 0


@dataclass(slots=True)
class Applied:
    """How the calls of a batch ended."""

    index: int
    statuses: bytearray  # Status per call
    txn_ids: Sequence[int]  # that of the first execution for a repeated key
    bodies: list[bytes]  # JSON: result; {"code","message"} of an abort; {"type","message"} of a failure
    result_hashes: list[int]  # CRC-32C(status byte + body)
    rows_digest: int  # 64-bit, order-independent, of changed rows and known keys; 0 when switched off
    traces: Sequence[FailureTrace] = ()  # of calls that raised, beside their outcomes; a replay has none


def check_batch(batch: Invocations, *, procedures: int, after: int) -> None:
    """Raises: BatchRefused when it contradicts itself, its catalog of so many procedures, or the TxnId of the last one."""
    count = len(batch.txn_ids)
    named = count if batch.keys is None else len(batch.keys)
    if not len(batch.procedures) == len(batch.params) == named == count or not 0 < count < CALLS_MAX:
        lengths = sorted({len(batch.procedures), len(batch.params), named})
        raise BatchRefused(f"batch {batch.index}: {count} transaction ids, but columns of {lengths} calls")
    if not 0 <= min(batch.procedures) <= max(batch.procedures) < procedures:
        raise BatchRefused(
            f"batch {batch.index}: calls procedure number {max(batch.procedures)}, but catalog version {batch.catalog} "
            f"has {procedures}"
        )
    if batch.txn_ids[0] <= after:
        raise BatchRefused(f"batch {batch.index}: transaction {batch.txn_ids[0]} does not follow on {after}")
