"""What the driver keeps of a round until it is durable."""

from __future__ import annotations

from collections import deque

from cmdlog.cluster.rounds import BlockOfRounds, WaitingRound, size_on_disk
from cmdlog.wal.format.block import block_bytes


def test_records_fit_where_their_sizes_fit() -> None:
    """The sizes are no less than what the records take in a block."""
    records = [bytes(length) for length in (24, 25, 31, 32, 33, 1000)]
    header = block_bytes([])
    for record in records:
        assert block_bytes([record]) - header <= size_on_disk(record) + 512  # a block ends with its sector
    assert all(size_on_disk(record) > len(record) for record in records)


def test_block_ends_rounds_of_its_own() -> None:
    """Two blocks share nothing."""
    one, other = BlockOfRounds(), BlockOfRounds()
    one.rounds.append(WaitingRound(1, deque([b"record"])))
    one.records.append(b"record")
    assert (other.rounds, other.records) == ([], [])
    assert not one.rounds[0].from_machine
