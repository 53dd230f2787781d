"""A cluster's id, its nodes and a chain of fault records, for tests."""

from __future__ import annotations

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.fault_record import FaultRecord, make_record

CLUSTER = b"cluster-number-1"


def node(number: int, cluster: bytes = CLUSTER) -> Identity:
    """The identity of a node of the cluster."""
    return Identity(cluster, number, b"life-%03d" % number)


def chain(count: int) -> list[FaultRecord]:
    """The first records of a cluster."""
    records: list[FaultRecord] = []
    for number in range(count):
        records.append(make_record(CLUSTER, records[-1] if records else None, failed={number}, epoch=0, term=1, author=1))
    return records
