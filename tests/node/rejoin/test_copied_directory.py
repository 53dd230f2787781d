"""What a copied node's log begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cmdlog.node.member.rejoin.copied_directory import decode_lineage, first_records
from cmdlog.wal.errors import Foreign
from cmdlog.wal.fault_record import encode_fault, make_record
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import Snapshot
from tests.node.rejoin.copykit import LIFE, OfferedCopy

pytestmark = pytest.mark.slow  # the copy comes from a running node


def test_every_group_begins_where_its_state_ends(offer: OfferedCopy) -> None:
    """Committed up to there; its term is the highest that either node knew, its vote this node's own or none."""
    manifest = offer.admitting(LIFE)
    snapshots = {p: Snapshot("", p, place.index, 1, None, name=f"s{p}") for p, place in manifest.partitions.items()}
    records = [decode_record(data) for data in first_records(manifest, {0: (9, 1), 1: (1, 1)}, snapshots)]
    assert [(record.kind, int(record.partition)) for record in records] == [
        (RecordKind.CHECKPOINT, group) for group in (0, 1, CLUSTER_GROUP)
    ]
    groups = {int(record.partition): GroupState.from_checkpoint(record) for record in records}
    assert (groups[0].term, groups[0].vote) == (9, 1)
    assert (groups[1].term, groups[1].vote) == (manifest.groups[1].term, None)
    for partition, place in manifest.partitions.items():
        state = groups[partition]
        assert (state.last_index, state.last_checksum, state.commit) == (place.index, place.checksum, place.index)
        assert state.commit_term == place.term
        assert [mark["name"] for mark in state.snapshots] == [f"s{partition}"]
    assert {catalog.stated_block for catalog in groups[CLUSTER_GROUP].catalogs.values()} == {2}


def test_fault_records_of_another_cluster_are_refused(offer: OfferedCopy) -> None:
    """Those of this one are taken in their order."""
    cluster = offer.cluster.cluster_id
    record = make_record(cluster, None, failed=[3], epoch=1, term=2, author=1)
    assert decode_lineage(cluster, (encode_fault(cluster, record),)) == [record]
    for data in (encode_fault(bytes(16), record), encode_fault(cluster, replace(record, author=2))[:-1]):
        with pytest.raises(Foreign):
            decode_lineage(cluster, (data,))
