"""What every first member of a cluster begins with: the same entries in every log, which were never put to the vote.

One rule: they follow from the cluster file and the program alone, so that nodes which are made one by one agree on them. The file
has their digest: a node whose program gives others is refused before it writes anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from cmdlog.raft import Configuration
from cmdlog.raft.configuration import nodes
from cmdlog.wal.format.record import RecordKind, encode_commit_mark, encode_json, encode_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP

GENESIS_TERM: Final = 1


def has_begun(states: GroupStates) -> bool:
    """Whether this node has ever taken part: all first members had met it then."""
    return any(state.term > GENESIS_TERM for state in states.by_partition.values())


@dataclass(frozen=True, slots=True)
class Genesis:
    """What the cluster is made for."""

    voters: Collection[int]
    shape: Mapping[str, Any]  # partitions, slots, key_policy
    catalog: Mapping[str, Any]  # version 1 of the code
    environment: Mapping[str, Any]
    tables: Mapping[str, Any]  # what the SCHEMA entry says that makes those of a partition

    def records(self) -> list[bytes]:
        """The first records of every member's log."""
        members = Configuration(voters=nodes(self.voters)).to_bytes()
        stated = ((RecordKind.SHAPE, self.shape), (RecordKind.CATALOG, self.catalog), (RecordKind.ENVIRONMENT, self.environment))
        records = [*_beginning(CLUSTER_GROUP, members)]
        records += [_json(kind, value, group=CLUSTER_GROUP, index=index) for index, (kind, value) in enumerate(stated, 2)]
        records.append(encode_commit_mark(partition=CLUSTER_GROUP, term=GENESIS_TERM, commit=len(stated) + 1, closed_txn=0))
        tables = {**self.tables, "txn_id": 0}
        for partition in range(self.shape["partitions"]):
            records += _beginning(partition, members)
            records.append(_json(RecordKind.SCHEMA, tables, group=partition, index=2))
            records.append(encode_commit_mark(partition=partition, term=GENESIS_TERM, commit=2, closed_txn=0))
        return records

    def digest(self) -> str:
        """What two nodes compare to see that they begin with the same entries; hexadecimal."""
        return blake2b(b"".join(self.records()), digest_size=16, person=b"cmdlog genesis").hexdigest()


def _beginning(group: int, members: bytes) -> tuple[bytes, bytes]:
    """Term 1, in which nobody has voted, and the members."""
    return (
        encode_json(RecordKind.HARD_STATE, {"vote": None}, partition=group, term=GENESIS_TERM, index=0),
        encode_record(RecordKind.CONFIGURATION, members, partition=group, term=GENESIS_TERM, index=1),
    )


def _json(kind: RecordKind, value: Mapping[str, Any], *, group: int, index: int) -> bytes:
    return encode_json(kind, value, partition=group, term=GENESIS_TERM, index=index, compress=False)
