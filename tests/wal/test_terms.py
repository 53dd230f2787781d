"""A term is raised with the first block that is written in it; wherever that block is lost, the term is not given again."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.log import Log
from tests.wal.logkit import NODE, ListSource, create, generations, hard_state
from tests.wal.sim.simfiles import SimCrash, SimFiles


class OneBlock(ListSource):
    """Gives one block: the hard state of a new term, and an entry of it."""

    def __init__(self, term: int, index: int) -> None:
        super().__init__()
        self.block = [
            hard_state(term, 7),
            encode_json(RecordKind.SCHEMA, {"statements": []}, partition=0, term=term, index=index),
        ]

    def take_records(self, bytes_max: int) -> list[bytes]:
        taken, self.block = self.block, []
        if taken:
            self.taken.append([1])
            self.unwritten.append([1])
        return taken


def run(files: SimFiles, terms: list[int]) -> None:
    """A start as the node makes it: a term above all that the directory knows, written with the first entry."""
    log = Log.open(files, NODE, generation=generations(2000 + 100 * len(terms)))
    state = log.recovered.groups.state(0)
    term = state.term + 1
    log.start(OneBlock(term, state.last_index + 1), threads=0)
    files.before = lambda operation: (
        terms.append(term) if operation.kind == "pwrite" and operation.path.endswith(".wal") else None
    )
    log.run_turn()
    log.close()


@pytest.mark.parametrize("power", [False, True])
def test_no_two_starts_write_entries_in_one_term(power: bool) -> None:
    """Crash after every operation of a start, and start again: if the first one may have written an entry, the next is of a
    higher term, also where the block was torn and cut.
    """
    whole = SimFiles()
    create(whole, initial=[hard_state(1, 7)])
    begin, done = len(whole.trace), list[int]()
    run(whole, done)
    for number in range(1, len(whole.trace) - begin + 1):
        files, first, second = SimFiles(number), list[int](), list[int]()
        create(files, initial=[hard_state(1, 7)])
        files.crash_at(number)
        with pytest.raises(SimCrash):
            run(files, first)
        left = files.power_cut(random.Random(number)) if power else files.kill()
        run(left, second)
        assert second
        assert not first or max(first) < min(second), f"after operation {number}"
