"""The groups of a node as a copy of it begins with them.

One rule: nothing that is not committed leaves the node. What is committed is the same on every node, so the copy may vote again
from there on; votes and terms that only this node has given are left out, but for the term itself, below which nobody may vote.

A partition begins at the place of its snapshot, with the configuration that was in force there. The cluster group begins with the
fold of this node's own log up to the newest entry that was handed out: its state is in the log alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import orjson

from cmdlog.raft import RaftCore
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.call_places import TermTable
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState, GroupStates, LoggedCatalog, Stated
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn
from snapshot.manifest import Manifest

FIRST_BLOCK = 1  # of the log that a copy begins with: there it says which code versions it knows
BEHIND_BLOCK = 1 << 40  # an offset after every record of a block

Records = Iterable[tuple[Lsn, Record]]


class ReadableLog(Protocol):
    """The open log of a node."""

    def first_blocks(self) -> Sequence[int]: ...
    def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]: ...


class GroupNotCopied(WalError):
    """The node's log does not say what consensus says of a group."""

    hint = "copy from another node; `cmdlog log verify` checks this one"


@dataclass(frozen=True, slots=True)
class GroupReach:
    """A group of consensus at one moment: what this node can give of it, and others can add."""

    term: int
    base: int  # entries after it are here
    handed: int  # the newest entry that is committed and durable here
    handed_term: int
    configurations: tuple[Stated, ...]  # ascending; of term 0 where consensus holds the entry no more
    terms: TermTable = field(default_factory=TermTable)  # of the partition's committed entries

    @classmethod
    def of(cls, core: RaftCore, terms: TermTable | None = None) -> GroupReach:
        """Under the driver's lock."""
        log = core.log
        configurations = tuple(
            Stated(int(at), log.term_at(at) or 0, orjson.loads(of.to_bytes())) for at, of in log.configurations
        )
        known = TermTable() if terms is None else terms.upto(log.handed)
        return cls(core.term, log.base, log.handed, log.term_at(log.handed) or log.base_term, configurations, known)

    def configuration_at(self, index: int) -> Stated:
        """The configuration in force in a log that ends at `index`: stated at its entry, or, if that comes later, there."""
        found = next((stated for stated in reversed(self.configurations) if stated.index <= index), None)
        return found or replace(self.configurations[0], index=index, term=0)


def partition_state(reach: GroupReach, snapshot: Manifest) -> GroupState:
    """A partition's group at the place of its snapshot, with the terms before it: by these who reads the copy's log judges which
    calls on all partitions this one has (`cmdlog.wal.format.call_places`).
    """
    return GroupState(
        term=max(reach.term, snapshot.term),
        commit=snapshot.index,
        commit_term=snapshot.term,
        last_index=snapshot.index,
        last_term=snapshot.term,
        last_checksum=snapshot.checksum,
        closed_txn=snapshot.txn_id,
        last_txn=snapshot.txn_id,
        configurations=[reach.configuration_at(snapshot.index)],
        terms=reach.terms.upto(snapshot.index),
    )


def cluster_state(log: ReadableLog, reach: GroupReach, *, last_txn: int) -> GroupState:
    """The cluster group up to `reach.handed`. Hold an anchor at the log's first block meanwhile. `last_txn`: the highest
    transaction id that the node knows of any group; the copy must never give it again.

    Raises: GroupNotCopied; Corrupt, Recycled, BadRecord.
    """
    state = fold_upto(_records_since(log, reach.handed), reach.handed)
    if (state.last_index, state.last_term) != (reach.handed, reach.handed_term):
        said = f"the log ends the cluster group at entry {state.last_index} of term {state.last_term}"
        raise GroupNotCopied(f"{said}, where consensus has handed out entry {reach.handed} of term {reach.handed_term}")
    state.term, state.vote = max(reach.term, state.last_term), None
    state.commit, state.commit_term = state.last_index, state.last_term
    state.last_txn = max(state.last_txn, last_txn)
    state.snapshots = []
    state.configurations = state.configurations[-1:]
    state.catalogs = {
        version: LoggedCatalog(catalog.index, catalog.value, stated_block=FIRST_BLOCK)
        for version, catalog in state.catalogs.items()
    }
    return state


def fold_upto(records: Records, upto: int) -> GroupState:
    """The cluster group as these records say it, without entries after `upto`.

    A checkpoint counts where it comes first. Later ones repeat what the records before them said, and may state entries after
    `upto`. Raises: BadRecord.
    """
    groups = GroupStates()
    begun = False
    for lsn, record in records:
        if record.partition != CLUSTER_GROUP:
            continue
        if record.kind is RecordKind.CHECKPOINT:
            if begun:
                continue
        elif record.index > upto:
            continue
        begun = True
        groups.observe(lsn, record)
    return groups.state(CLUSTER_GROUP)


def _records_since(log: ReadableLog, upto: int) -> Records:
    """From the newest segment on whose head states nothing of the cluster group after `upto`; else from the oldest."""
    first_blocks = log.first_blocks()
    for first_block in reversed(first_blocks):
        head = log.read(Lsn(BlockNumber(first_block), -1), Lsn(BlockNumber(first_block), BEHIND_BLOCK))
        if any(_states_cluster(record) and record.index <= upto for _, record in head):
            return log.read(Lsn(BlockNumber(first_block), -1))
    return log.read(Lsn(BlockNumber(first_blocks[0]), -1))


def _states_cluster(record: Record) -> bool:
    return record.kind is RecordKind.CHECKPOINT and record.partition == CLUSTER_GROUP
