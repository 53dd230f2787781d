"""What goes into an executor and what comes out: the calls of one batch, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from procedures.errors import BatchRefused
from procedures.execution.failure_trace import FailureTrace
from procedures.storage.state import PartitionState

CALLS_MAX: Final = 1 << 20  # of one batch; positions in it take 20 bits
NO_FLOORS: Final[Mapping[bytes, int]] = MappingProxyType({})
NO_SKIPS: Final[frozenset[int]] = frozenset()


class Invocations(NamedTuple):
    """One batch, decoded."""

    index: int  # type: ignore[assignment] # the partition's log index of the batch; a tuple has a method of that name
    term: int
    checksum: int  # CRC-32C of the batch record
    catalog: int  # catalog version: which bundle the procedure numbers belong to
    txn_ids: Sequence[int]  # strictly increasing
    procedures: Sequence[int]  # number in Database.procedure_list of that catalog version
    params: Sequence[list[Any]]  # wire form, one list per call
    keys: Sequence[bytes] | None  # name per call (`idempotency.session_calls`), zeros = none; None = no call has one
    floors: Mapping[bytes, int] = NO_FLOORS  # of every session that the batch names
    skips: frozenset[int] = NO_SKIPS  # positions killed by a logged skip record
    sent: Sequence[int] = ()  # hash of each request, 0: it is its parameters; () all are 0


class Applied(NamedTuple):
    """How the calls of a batch ended."""

    index: int  # type: ignore[assignment] # as above
    statuses: bytearray  # Status per call
    txn_ids: Sequence[int]  # that of the first execution for a repeated key
    bodies: list[bytes]  # JSON: result; {"code","message"} of an abort; {"type","message"} of a failure
    result_hashes: list[int]  # CRC-32C(status byte + body)
    rows_digest: int  # 64-bit, order-independent, of changed rows and known keys; 0 when switched off
    traces: Sequence[FailureTrace] = ()  # of calls that raised, beside their outcomes; a replay has none


def check_index(index: int, state: PartitionState) -> None:
    """Raises: BatchRefused when it is not the next entry."""
    if index != state.position.index + 1:
        raise BatchRefused(f"partition {state.partition} is at index {state.position.index}; entry {index} does not follow on it")


def check_batch(batch: Invocations, state: PartitionState, *, procedures: int) -> None:
    """Raises: BatchRefused when it does not follow on the state's position, or contradicts itself or its catalog."""
    if batch.index != state.position.index + 1:
        check_index(batch.index, state)
    count, after = len(batch.txn_ids), state.position.txn_id
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
