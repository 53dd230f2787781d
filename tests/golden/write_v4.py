"""Writes the golden log of a node with client sessions: that of version 3, and batches with a section of each shape.

    python -m tests.golden.write_v4 FOLDER

Everything in it is fixed, so that a second run gives the same bytes.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

from cmdlog.wal.format.batch import NO_KEY, encode_batch
from cmdlog.wal.ids import make_txn_id
from tests.golden import write_v1, write_v3

PARTITION: Final = 2
FIRST: Final = make_txn_id(millis=1_700_000_000_000, counter=3, partition=PARTITION)
ONE, TWO, ENDING = b"session-one-----", b"session-two-----", b"session-ending--"
KEY: Final = bytes(range(16))
Call = tuple[bytes, int, int] | bytes  # session, number, floor; or a key

CALLS: Final[tuple[tuple[tuple[Call, ...], tuple[bytes, ...]], ...]] = (
    (((ONE, 1, 0), (ONE, 2, 0), (ONE, 3, 1)), ()),  # one session whose numbers count on
    (((ONE, 9, 3), (ONE, 4, 3)), ()),  # numbers in columns of 1, 2 and 8 bytes
    (((ONE, 70, 4), (ONE, 900, 4)), ()),
    (((ONE, 71, 4), (ONE, 1 << 40, 4)), ()),
    (((TWO, 5, 0), NO_KEY, (ONE, 72, 6), KEY), ()),  # several, beside a key and a call without a name
    ((NO_KEY, NO_KEY), (ENDING,)),  # one that ends
)
"""Calls and ended sessions of each batch."""


def batch(index: int) -> bytes:
    """The batch of this index, from 1; every other one has a column of TxnIds, every third one is compressed."""
    calls, ended = CALLS[index - 1]
    first = FIRST + (index << 21)
    return encode_batch(
        partition=PARTITION, term=1, index=index, catalog=1, procedures=[0] * len(calls), ended=ended,
        txn_ids=[first + 5120 * at for at in range(len(calls))] if index % 2 else range(first, first + 1024 * len(calls), 1024),
        params=[b"[%d,%d]" % (index, at) for at in range(len(calls))],
        keys=[call if isinstance(call, bytes) else struct.pack("<16sQQ", *call) for call in calls],
        compress=index % 3 == 0,
    )  # fmt: skip


def records() -> list[bytes]:
    """Those of version 3, then those with sessions."""
    return [*write_v3.records(), *map(batch, range(1, 1 + len(CALLS)))]


def write() -> dict[str, bytes]:
    """File name -> content of the golden directory."""
    return write_v1.write(records())


if __name__ == "__main__":
    write_v1.save(write(), Path(sys.argv[1]))
