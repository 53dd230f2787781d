"""In which block an entry lies: what holds the log's oldest segment."""

from __future__ import annotations

import random

from cmdlog.cluster.entry_blocks import EntryBlocks
from cmdlog.wal.format.record import encode_commit_mark
from tests.cluster.entrykit import batch

GROUP = 2


def blocks_of(*added: tuple[int, int]) -> EntryBlocks:
    """Entries (block, index) of one group, in the order of the log."""
    blocks = EntryBlocks()
    for block, index in added:
        blocks.add(block, GROUP, index)
    return blocks


def asked(blocks: EntryBlocks, *indexes: int) -> list[int | None]:
    """The block of each."""
    return [blocks.block_of(GROUP, index) for index in indexes]


def test_an_entry_lies_in_the_block_that_has_it() -> None:
    """Also one between the first and the last of its block."""
    blocks = blocks_of((4, 7), (4, 8), (4, 9), (6, 10), (9, 11), (9, 12))
    assert asked(blocks, 7, 8, 9, 10, 11, 12) == [4, 4, 4, 6, 9, 9]


def test_an_entry_that_is_not_written_lies_nowhere() -> None:
    """Beyond the last one, and in a group that has none."""
    blocks = blocks_of((4, 7))
    assert asked(blocks, 8) == [None]
    assert blocks.block_of(GROUP + 1, 7) is None


def test_an_entry_before_the_first_one_is_held_by_its_block() -> None:
    """All that is after it lies there or later."""
    assert asked(blocks_of((4, 7), (5, 8)), 1, 6) == [4, 4]


def test_a_replaced_entry_lies_where_its_replacement_does() -> None:
    """What was replaced, and what was after it, is void; what is before it stays."""
    blocks = blocks_of((4, 7), (4, 8), (5, 9), (5, 10), (6, 11), (8, 8))
    assert asked(blocks, 7, 8, 9, 11) == [4, 8, None, None]
    blocks.add(8, GROUP, 9)
    blocks.add(9, GROUP, 10)
    assert asked(blocks, 7, 8, 9, 10, 11) == [4, 8, 8, 9, None]


def test_a_replacement_of_everything() -> None:
    """From the first one that is known, or from before it."""
    assert asked(blocks_of((4, 7), (5, 8), (6, 7)), 6, 7, 8) == [6, 6, None]
    assert asked(blocks_of((4, 7), (5, 8), (6, 6)), 5, 6, 7) == [6, 6, None]


def test_a_replacement_in_the_same_block() -> None:
    """A block may hold an entry and what replaces it."""
    assert asked(blocks_of((4, 7), (4, 8), (4, 7), (5, 8)), 7, 8) == [4, 5]


def test_groups_do_not_see_each_other() -> None:
    """Every group has its own indexes."""
    blocks = blocks_of((4, 7), (5, 8))
    blocks.add(6, GROUP + 1, 7)
    assert asked(blocks, 7, 8) == [4, 5]
    assert blocks.block_of(GROUP + 1, 7) == 6
    blocks.forget(GROUP + 1, 7)
    assert asked(blocks, 7, 8) == [4, 5]


def test_the_entries_of_a_block_are_found_among_its_records() -> None:
    """Notes are no entries, though they have an index too."""
    blocks = EntryBlocks()
    mark = encode_commit_mark(partition=GROUP, term=1, commit=9, closed_txn=0)
    blocks.add_block(3, [batch(7, group=GROUP), mark, batch(1, group=4)])
    blocks.add_block(4, [mark])
    assert asked(blocks, 9) == [None]
    blocks.add_block(5, [batch(8, group=GROUP)])
    assert asked(blocks, 7, 8, 9) == [3, 5, None]
    assert blocks.block_of(4, 1) == 3


def test_what_is_forgotten_holds_no_block() -> None:
    """What comes after it is still known, each in its own block."""
    blocks = blocks_of((4, 7), (5, 8), (5, 9), (6, 10))
    blocks.forget(GROUP, 8)
    assert asked(blocks, 1, 7, 8, 9, 10, 11) == [5, 5, 5, 5, 6, None]
    blocks.forget(GROUP, 10)
    assert asked(blocks, 9, 10, 11) == [6, 6, None]
    blocks.forget(GROUP + 1, 3)


def test_a_replacement_after_forgetting() -> None:
    """Nothing that was forgotten comes back."""
    blocks = blocks_of((4, 7), (5, 8), (6, 9))
    blocks.forget(GROUP, 8)
    blocks.add(7, GROUP, 9)
    assert asked(blocks, 8, 9, 10) == [5, 7, None]


def test_random_histories_agree_with_a_list() -> None:
    """The lists by halves say what a dictionary of all entries says, replacements included."""
    rng = random.Random(20)
    blocks, model, last = EntryBlocks(), dict[int, int](), 0
    for block in range(1, 300):
        if rng.random() < 0.15:
            last = rng.randint(max(0, last - 12), last)
        for _ in range(rng.randint(0, 4)):
            last += 1
            model = {index: at for index, at in model.items() if index < last} | {last: block}
            blocks.add(block, GROUP, last)
        for index in range(1, max(model, default=0) + 3):
            assert blocks.block_of(GROUP, index) == model.get(index)
