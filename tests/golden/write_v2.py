"""Writes the golden log of a cluster's node: that of version 1, and one record of every kind that only clusters have.

    python -m tests.golden.write_v2 FOLDER

Everything in it is fixed, so that a second run gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cmdlog.wal.format.record import RecordKind, encode_empty, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.golden import write_v1

SHAPE = {"partitions": 1, "slots": [[0, 4096, 0]], "key_policy": {}}
MEMBER = {"node": 1, "incarnation": "0001020304050607", "peer": "127.0.0.1:7101", "client": "http://127.0.0.1:8101"}


def records() -> list[bytes]:
    """Those of version 1, then those of a cluster."""
    last = 3 + write_v1.BATCHES
    return [
        *write_v1.records(),
        encode_json(RecordKind.SHAPE, SHAPE, partition=CLUSTER_GROUP, term=1, index=4),
        encode_json(RecordKind.MEMBER, MEMBER, partition=CLUSTER_GROUP, term=1, index=5),
        encode_empty(partition=0, term=2, index=last),
        encode_empty(partition=0, term=2, index=last + 1, closed_txn=write_v1.TXN + (99 << 21)),
    ]


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    return write_v1.write(records())


if __name__ == "__main__":
    write_v1.save(write(), Path(sys.argv[1]))
