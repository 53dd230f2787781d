"""What every first member of a cluster begins with: the same entries in every log, which were never put to the vote.

One rule: they follow from the list of members and the shape alone, so that nodes which were made one by one agree on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cmdlog.raft import Configuration
from cmdlog.raft.configuration import nodes
from cmdlog.wal.format.record import RecordKind, encode_json, encode_record
from cmdlog.wal.ids import CLUSTER_GROUP

GENESIS_TERM: Final = 1
GENESIS: Final = (1, 2)  # entries that a partition's log, and the cluster group's, begins with


def genesis_last(group: int) -> int:
    """Index of the last entry that every first member has."""
    return GENESIS[group == CLUSTER_GROUP]


def genesis_records(voters: Iterable[int], shape: Mapping[str, Any], *, partitions: int) -> list[bytes]:
    """The first records of every member's log. `shape`: partitions, slots and key policy."""
    members = Configuration(voters=nodes(voters)).to_bytes()
    records = []
    for group in (CLUSTER_GROUP, *range(partitions)):
        records.append(encode_json(RecordKind.HARD_STATE, {"vote": None}, partition=group, term=GENESIS_TERM, index=0))
        records.append(encode_record(RecordKind.CONFIGURATION, members, partition=group, term=GENESIS_TERM, index=1))
    records.append(encode_json(RecordKind.SHAPE, shape, partition=CLUSTER_GROUP, term=GENESIS_TERM, index=2))
    return records
