"""Writes the golden log of a member of a cluster: that of version 5, and calls on all partitions that name their places.

    python -m tests.golden.write_v6 FOLDER

Everything in it is fixed, so that a second run gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.call_places import CallPlace
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from tests.golden import write_v1, write_v5

PARTITION: Final = 4
TERM: Final = 3
CALLS: Final = (
    (CallPlace(3, 1), CallPlace(3, 40), CallPlace(2, 7), CallPlace(9, 300), CallPlace(3, 1)),  # of five partitions
    tuple(CallPlace(TERM, 2) for _ in range(5)),  # without any distances
)


def batch(index: int) -> bytes:
    """The call on all partitions at this index of the last one; the second is compressed."""
    txn_id = make_txn_id(millis=1_700_000_000_000 + index, counter=0, partition=MULTI_PARTITION)
    return encode_batch(
        partition=PARTITION, term=TERM, index=index, catalog=1, procedures=[0], txn_ids=range(txn_id, txn_id + 1024, 1024),
        params=[b"[%d]" % index], keys=[bytes(range(16))] if index == 1 else None, places=CALLS[index - 1],
        compress=index == 2, requests="sent",
    )  # fmt: skip


def records() -> list[bytes]:
    """Those of version 5, then the calls, and a skip of the second on all partitions."""
    skip = skip_value(2, 0, "hung", [place.index for place in CALLS[1]])
    return [
        *write_v5.records(), *map(batch, range(1, 1 + len(CALLS))),
        encode_json(RecordKind.SKIP, skip, partition=PARTITION, term=TERM, index=3),
    ]  # fmt: skip


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    return write_v1.write(records())


if __name__ == "__main__":
    write_v1.save(write(), Path(sys.argv[1]))
