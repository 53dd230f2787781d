"""Entries of the log for a follower that is far back: those that consensus means, and an answer to every question."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.cluster.entry_records import entry_of
from cmdlog.member.entry_reader import EntryReader, EntryRequest, read_entries
from cmdlog.raft.messages import KIND_EMPTY, KIND_NORMAL, Entries
from cmdlog.raft.ready import EntriesWanted
from cmdlog.wal.format.record import decode_record, encode_empty
from cmdlog.wal.ids import Index
from cmdlog.wal.log import Log
from tests.waiting import PATIENCE_S
from tests.wal.logkit import NODE, create, generations
from tests.wal.sim.simfiles import SimFiles


class Blocks:
    """A source that gives one block after the other."""

    pending_bytes, waits, lax = 0, True, False

    def __init__(self, blocks: Iterable[list[bytes]]) -> None:
        self._blocks = list(blocks)

    def take_records(self, bytes_max: int) -> list[bytes]:
        """The next block."""
        return self._blocks.pop(0) if self._blocks else []

    def written(self, block: int) -> None:
        """Nobody asks."""

    durable = failed = written


def entry(index: int, term: int, group: int = 0, closed: int = 1) -> bytes:
    """An entry that is told from others by its place."""
    return encode_empty(partition=group, term=term, index=index, closed_txn=closed)


@pytest.fixture
def wal() -> Log:
    """Entries 1 to 3 of term 1, of which 2 and 3 were replaced by 2 to 4 of term 2; and another group's."""
    files = SimFiles()
    create(files)
    log = Log.open(files, NODE, generation=generations(2000))
    blocks = [
        [entry(1, 1), entry(2, 1), entry(1, 1, group=1)],
        [entry(3, 1), entry(2, 1, group=1)],
        [entry(2, 2), entry(3, 2)],
        [entry(4, 2, closed=0), entry(3, 1, group=1)],
    ]
    count = len(blocks)
    log.start(Blocks(blocks), threads=0)  # type: ignore[arg-type]
    for _ in range(count):
        log.run_turn()
    return log


def request(first: int, terms: list[int], *, block: int | None = 1, bytes_max: int = 1 << 20) -> EntryRequest:
    """A question about these entries of group 0."""
    return EntryRequest(0, EntriesWanted(Index(first), Index(first + len(terms) - 1), bytes_max), terms, block)


def test_it_reads_the_entries_that_consensus_means(wal: Log) -> None:
    """Replaced ones have other terms, and other groups' are passed over."""
    found = read_entries(wal, request(1, [1, 2, 2, 2]))
    assert found is not None
    assert (found.first, found.terms) == (1, [1, 2, 2, 2])
    assert found.kinds == bytes([KIND_NORMAL] * 3 + [KIND_EMPTY])
    assert found.payloads == [entry(1, 1), entry(2, 2), entry(3, 2), entry_of(decode_record(entry(4, 2, closed=0)))[1]]


def test_it_reads_as_many_as_are_wanted_and_one_at_least(wal: Log) -> None:
    """The limit of bytes ends a read after the entry that passes it."""
    found = read_entries(wal, request(1, [1, 2, 2], bytes_max=1))
    assert found is not None
    assert len(found) == 1
    found = read_entries(wal, request(2, [2]))
    assert found is not None
    assert found.terms == [2]


@pytest.mark.parametrize("asked", [request(5, [2]), request(2, [7]), request(1, [1], block=None)], ids=["gone", "term", "place"])
def test_what_the_log_does_not_hold_is_none(wal: Log, asked: EntryRequest) -> None:
    """Then the follower needs a copy."""
    assert read_entries(wal, asked) is None


def test_every_question_is_answered(wal: Log) -> None:
    """Also one whose block the log has not: consensus waits for each of them."""
    answers: queue.SimpleQueue[Entries | None] = queue.SimpleQueue()
    reader = EntryReader(wal)
    reader.start(cast(Any, SimpleNamespace(ask=lambda _group, report: answers.put(report.keywords["entries"]))))
    reader.ask(request(1, [1]))
    reader.ask(request(1, [1], block=None))
    first, second = answers.get(timeout=PATIENCE_S), answers.get(timeout=PATIENCE_S)
    reader.stop()
    assert first is not None
    assert second is None
