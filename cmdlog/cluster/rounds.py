"""What is to be written for the rounds of consensus, and the blocks of the log that have it.

One rule: plain data of the driver (`cmdlog.cluster.replication`), under its lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cmdlog.raft.messages import KIND_CONFIGURATION
from cmdlog.raft.multi_raft import Round
from cmdlog.wal.format.block import RECORD_ALIGN


@dataclass(slots=True)
class WaitingRound:
    """What is to be written for one round, and what follows when it is durable."""

    number: int  # of the newest round that is durable with it
    records: deque[bytes]
    from_machine: bool = False  # it has what the machine gave: it is reported to it
    marks: dict[int, int] = field(default_factory=dict)  # group -> commit that its marks state


@dataclass(slots=True)
class BlockOfRounds:
    """A block that the log has taken."""

    rounds: list[WaitingRound] = field(default_factory=list)  # whose last record is in it
    records: list[bytes] = field(default_factory=list)  # until it is written


def taken_places(round_: Round) -> dict[int, int]:
    """Groups that got configurations in this round: where their next entry goes. Consensus placed them, not the machine."""
    written = ((record.group, record.entries) for record in round_.records)
    return {group: of.last + 1 for group, of in written if of is not None and KIND_CONFIGURATION in of.kinds}


def size_on_disk(record: bytes) -> int:
    return len(record) + RECORD_ALIGN
