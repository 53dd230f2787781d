"""Writes the golden log of a node that logs what callers sent: that of version 4, and batches that state it.

    python -m tests.golden.write_v5 FOLDER

Everything in it is fixed, so that a second run gives the same bytes.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.ids import make_txn_id
from tests.golden import write_v1, write_v4

PARTITION: Final = 3
FIRST: Final = make_txn_id(millis=1_700_000_000_000, counter=4, partition=PARTITION)
KEY: Final = bytes(range(16))
NUMBERED: Final = struct.pack("<16sQQ", b"session-one-----", 1, 0)
CALLS: Final = (
    ((KEY, 0), (NO_KEY, 0)),  # as they were sent
    ((KEY, 0xFEDCBA9876543210), (NO_KEY, 0), (NUMBERED, 1)),
    ((NUMBERED, 7),),
)
"""Name and hash of each call of each batch; 0: the parameters are what was sent."""


def batch(index: int) -> bytes:
    """The batch of this index, from 1; every other one has a column of TxnIds, every third one is compressed."""
    calls = CALLS[index - 1]
    first = FIRST + (index << 21)
    return encode_batch(
        partition=PARTITION, term=1, index=index, catalog=1, procedures=[0] * len(calls),
        txn_ids=[first + 5120 * at for at in range(len(calls))] if index % 2 else range(first, first + 1024 * len(calls), 1024),
        params=[b"[%d,%d]" % (index, at) + (b"%016x" % sent if sent else b"") for at, (_, sent) in enumerate(calls)],
        keys=[name for name, _ in calls], compress=index % 3 == 0, requests="sent",
    )  # fmt: skip


def records() -> list[bytes]:
    """Those of version 4, then those that state what was sent."""
    return [*write_v4.records(), *map(batch, range(1, 1 + len(CALLS)))]


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    return write_v1.write(records())


if __name__ == "__main__":
    write_v1.save(write(), Path(sys.argv[1]))
