"""The numbers of the log, as different types, and the layout of a transaction id.

One rule: no clock here. A `TxnId` is 63 bits, so that it is a positive 64-bit integer everywhere (SQL, Spark, JSON as text):

    bit 62 ............ 21 | 20 ...... 10 | 9 ....... 0
    milliseconds since 1970 | counter      | partition

42 bits of milliseconds last until 2109; 11 bits of counter give 2,048 ids per millisecond and partition, after which the clock
borrows from the next millisecond (a hybrid logical clock may run ahead of real time, see `cmdlog.node.clock`). The partition in
the low bits makes ids unique over the cluster without coordination. FORMAT.md "Transaction id".

The types are those of consensus (`cmdlog.raft`), where index, term and node meet in one signature. Elsewhere these numbers are
plain ints under these names, and two of them in one call go by keyword: wrapping would cost a
function call for every number of every record.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

PartitionId = NewType("PartitionId", int)
Term = NewType("Term", int)
Index = NewType("Index", int)
TxnId = NewType("TxnId", int)
BlockNumber = NewType("BlockNumber", int)

COUNTER_BITS = 11
PARTITION_BITS = 10
MILLIS_SHIFT = COUNTER_BITS + PARTITION_BITS
COUNTER_MAX = (1 << COUNTER_BITS) - 1
MILLIS_MAX = (1 << 42) - 1

PARTITIONS_MAX = 1000  # the ids above are reserved for the two streams below and for later ones
CLUSTER_GROUP = PartitionId(1022)  # the stream of membership, catalog and environment
MULTI_PARTITION = PartitionId(1023)  # the partition bits of a transaction that enters every partition


class Lsn(NamedTuple):
    """Position of a record in *this node's* log: the block's number and the record's byte offset in the block's body."""

    block: BlockNumber
    offset: int


def make_txn_id(*, millis: int, counter: int, partition: int) -> TxnId:
    """Packs the three fields; the caller keeps each within its bits."""
    return TxnId(millis << MILLIS_SHIFT | counter << PARTITION_BITS | partition)


def txn_millis(txn_id: int) -> int:
    """Milliseconds since 1970 that the transaction's clock showed."""
    return txn_id >> MILLIS_SHIFT


def txn_partition(txn_id: int) -> PartitionId:
    """Partition that the id was given on, or MULTI_PARTITION."""
    return PartitionId(txn_id & (1 << PARTITION_BITS) - 1)


def txn_tick(txn_id: int) -> int:
    """The id without its partition: milliseconds and counter as one number, the unit of the hybrid clock."""
    return txn_id >> PARTITION_BITS
