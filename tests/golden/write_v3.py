"""Writes the golden log of a cluster whose members changed: that of version 2, a replaced member, one that left, a failure.

    python -m tests.golden.write_v3 FOLDER

Everything in it is fixed, so that a second run gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.golden import write_v1, write_v2

PLACES = {0: (1, 3), CLUSTER_GROUP: (1, 6)}
REPLACED = ClusterMember(
    1, b"life-two", "127.0.0.1:7101", "http://127.0.0.1:8101", MemberStage.ADMITTED, PLACES, (bytes(range(8)),)
)
LEFT = ClusterMember(2, b"life-one", "127.0.0.1:7102", "http://127.0.0.1:8102", MemberStage.REMOVED, forced=True, ended=PLACES)
FAULTS = FaultSet(1, (2,), 1, 1, 1, ((0, 3, 1), (CLUSTER_GROUP, 6, 1)), "silent for 30 s")


def records() -> list[bytes]:
    """Those of version 2, then those of changed members."""
    members, faults = RecordKind.MEMBER, RecordKind.FAULTS
    stated = ((members, REPLACED.to_json()), (members, LEFT.to_json()), (faults, FAULTS.to_json()))
    return [
        *write_v2.records(),
        *(
            encode_json(kind, value, partition=CLUSTER_GROUP, term=1, index=index, compress=False)
            for index, (kind, value) in enumerate(stated, 6)
        ),
    ]


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    return write_v1.write(records())


if __name__ == "__main__":
    write_v1.save(write(), Path(sys.argv[1]))
