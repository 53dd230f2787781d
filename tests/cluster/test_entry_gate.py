"""The gates of committed entries: multi-partition calls run on all partitions or on none, batches wait for their code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cmdlog.cluster.entry_gate import CodeGate, HalfSkip, MultiCallGate
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.call_places import CallPlace, TermTable
from cmdlog.wal.format.control_record import skip_value
from cmdlog.wal.format.record import RecordKind, encode_empty, encode_json
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from cmdlog.wal.skips import VOID
from procedures.migration.stated_change import RunMigration, StatedChange
from tests.cluster.call_model import Model, run_by_gate, run_by_recovery

TERM = 7
HISTORIES = 150
HISTORIES_MANY = 10_000


def txn(number: int, bits: int = MULTI_PARTITION) -> int:
    """The transaction id of the call with this number."""
    return make_txn_id(millis=number, counter=0, partition=bits)


def batch(partition: int, index: int, *txns: int, everywhere: Sequence[int] = (), term: int = TERM) -> bytes:
    """The record of a batch with these calls."""
    return encode_batch(
        partition=partition,
        term=term,
        index=index,
        catalog=1,
        txn_ids=txns,
        procedures=[0] * len(txns),
        params=[b"[]"] * len(txns),
        places=[CallPlace(TERM, at) for at in everywhere],
    )


class Gate:
    """Three partitions, each of which gets its next entry by name; what may be run comes back as (partition, index)."""

    def __init__(self, *ends: int) -> None:
        self.ends = dict(enumerate(ends or (0, 0, 0)))
        self.gate = MultiCallGate({p: TermTable.beginning(end, TERM) for p, end in self.ends.items()})
        self.left_out: list[tuple[int, int, int]] = []

    def single(self, partition: int, number: int = 1, *, calls: int = 1) -> list[tuple[int, int]]:
        return self.add(partition, batch(partition, self.next(partition), *(txn(number + n, partition) for n in range(calls))))

    def multi(self, partition: int, number: int, *everywhere: int) -> list[tuple[int, int]]:
        return self.add(partition, batch(partition, self.next(partition), txn(number), everywhere=everywhere))

    def skip(self, partition: int, *everywhere: int) -> list[tuple[int, int]]:
        value = skip_value(everywhere[partition], 0, "hung", everywhere)
        return self.add(
            partition, encode_json(RecordKind.SKIP, value, partition=partition, term=TERM, index=self.next(partition))
        )

    def term(self, partition: int, term: int) -> list[tuple[int, int]]:
        """A leader of that term begins."""
        return self.add(partition, encode_empty(partition=partition, term=term, index=self.next(partition)))

    def next(self, partition: int) -> int:
        return self.ends[partition] + 1

    def add(self, partition: int, *records: bytes) -> list[tuple[int, int]]:
        placed = list(enumerate(records, self.next(partition)))
        self.ends[partition] += len(records)
        released, left_out = self.gate.add(partition, placed)
        self.left_out += left_out
        assert len({group for group, _ in released}) == len(released)
        assert all(entries for _, entries in released)
        return [(group, index) for group, entries in released for index, _ in entries]


def test_calls_of_one_partition_pass_at_once() -> None:
    """Batches of any size and entries without calls wait for nobody."""
    gate = Gate()
    assert gate.single(0) == [(0, 1)]
    assert gate.single(2, calls=5) == [(2, 1)]
    assert gate.term(0, TERM) == [(0, 2)]
    assert not gate.gate.waits


def test_a_call_on_all_partitions_is_released_by_its_last_commit() -> None:
    """No partition may run it while another one lacks it; then all may at once, in the order of the partitions."""
    gate = Gate()
    assert gate.multi(1, 5, 1, 1, 1) == []
    assert gate.multi(2, 5, 1, 1, 1) == []
    assert gate.gate.waits
    assert gate.multi(0, 5, 1, 1, 1) == [(0, 1), (1, 1), (2, 1)]
    assert not gate.gate.waits
    assert gate.left_out == []


def test_entries_after_a_waiting_call_do_not_overtake_it() -> None:
    """A partition keeps its order: what follows comes with the call, and after it."""
    gate = Gate()
    gate.multi(0, 5, 1, 2, 1)
    assert gate.single(0, 6) == []
    assert gate.single(1, 4) == [(1, 1)]
    assert gate.multi(1, 5, 1, 2, 1) == []
    assert gate.multi(2, 5, 1, 2, 1) == [(0, 1), (0, 2), (1, 2), (2, 1)]


def test_two_waiting_calls_are_released_one_by_one() -> None:
    """The second waits for the partition that lacks it, also when the first one has passed."""
    gate = Gate()
    for partition in (0, 1):
        assert gate.multi(partition, 5, 1, 1, 1) + gate.multi(partition, 6, 2, 2, 2) == []
    assert gate.multi(2, 5, 1, 1, 1) == [(0, 1), (1, 1), (2, 1)]
    assert gate.gate.waits
    assert gate.multi(2, 6, 2, 2, 2) == [(0, 2), (1, 2), (2, 2)]


def test_a_state_that_holds_the_call_lacks_nothing() -> None:
    """After a start, a partition whose state is behind gets the call that the others had run before."""
    gate = Gate(0, 5, 9)
    assert gate.multi(0, 5, 1, 5, 8) == [(0, 1)]
    assert gate.multi(0, 6, 2, 6, 9) == []
    assert gate.multi(1, 6, 2, 6, 9) == [(0, 2), (1, 6)]


def test_a_younger_state_is_no_proof_that_it_has_run_the_call() -> None:
    """It may have passed the place in a later term, without the call: whoever guesses by its age runs half a call."""
    gate = Gate()
    gate.gate = MultiCallGate({0: TermTable(), 1: TermTable(9, [(1, TERM), (5, TERM + 1)]), 2: TermTable.beginning(9, TERM)})
    assert gate.multi(0, 5, 1, 4, 8) == [(0, 1)]
    assert gate.left_out == []
    assert gate.multi(0, 6, 2, 5, 9) == [(0, 2)]
    assert gate.left_out == [(0, 2, VOID)]


@pytest.mark.parametrize("place", [1, 4])
def test_a_later_term_at_or_before_the_place_makes_a_call_void(place: int) -> None:
    """The group can never have it; it is passed over, told to the site first, with what waited behind it."""
    gate = Gate()
    gate.multi(0, 5, 1, place, 1)
    gate.multi(2, 5, 1, place, 1)
    assert gate.single(0, 6) == []
    assert gate.term(1, TERM + 2) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert gate.left_out == [(0, 1, VOID), (2, 1, VOID)]
    assert not gate.gate.waits


def test_entries_of_the_same_or_an_earlier_term_decide_nothing() -> None:
    """The leader's next entries may still bring the call."""
    gate = Gate()
    gate.multi(0, 5, 1, 3, 1)
    assert gate.add(1, batch(1, 1, txn(1, 1), term=TERM - 1)) == [(1, 1)]
    assert gate.single(1, 2) == [(1, 2)]
    assert gate.gate.waits


def test_a_call_that_names_no_places_passes() -> None:
    """Logs from before, and those of a node that voted alone: there all partitions have it."""
    gate = Gate()
    assert gate.multi(0, 5) == [(0, 1)]


def test_a_skip_on_one_partition_is_one_on_all() -> None:
    """Its places are told to all sites, wherever the call and the entry of the skip are."""
    gate = Gate()
    for partition in range(3):
        gate.multi(partition, 5, 1, 1, 1)
    assert gate.skip(1, 1, 1, 1) == [(1, 2)]
    assert gate.left_out == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]


def test_half_a_skip_is_finished_by_the_next_leader() -> None:
    """A leader that dies between the commits of its skips leaves partitions without one."""
    gate = Gate()
    for partition in range(3):
        gate.multi(partition, 5, 1, 1, 1)
    gate.skip(1, 1, 1, 1)
    assert gate.gate.half_skips() == [HalfSkip((1, 1, 1), [0, 2])]
    gate.skip(2, 1, 1, 1)
    assert gate.gate.half_skips() == [HalfSkip((1, 1, 1), [0])]
    gate.skip(0, 1, 1, 1)
    assert gate.gate.half_skips() == []


def test_a_skip_of_one_partitions_call_concerns_that_partition() -> None:
    """Nothing is to be finished elsewhere."""
    gate = Gate()
    gate.single(0, 3, calls=2)
    gate.add(0, encode_json(RecordKind.SKIP, skip_value(1, 1, "hung"), partition=0, term=TERM, index=2))
    assert gate.left_out == [(0, 1, 1)]
    assert gate.gate.half_skips() == []


# -- the cluster and a recovery of its logs -------------------------------------------------------------------------------


def check_model(seed: int) -> bool:
    """One history; whether some call of it is void."""
    model = Model(seed)
    for _ in range(3):
        assert run_by_gate(model) == model.executed
        assert run_by_recovery(model) == model.executed
    return any(not run for run in model.truth.values())


def test_every_reader_runs_the_calls_that_the_cluster_runs() -> None:
    """Whatever is met first, from wherever the states begin: generated changes of leaders of single groups."""
    assert sum(check_model(seed) for seed in range(HISTORIES)) > HISTORIES // 4


@pytest.mark.sim
@pytest.mark.timeout(0)
def test_many_models() -> None:
    """As `make sim` runs them."""
    for seed in range(HISTORIES_MANY):
        check_model(seed)


def a_batch(index: int, catalog: int) -> tuple[int, bytes]:
    """A logged call of this version."""
    return index, encode_batch(
        partition=0, term=1, index=index, catalog=catalog, txn_ids=range(1024, 2048, 1024), procedures=[0], params=[b"[]"]
    )


def a_change(index: int, change: StatedChange) -> tuple[int, bytes]:
    """A logged change of tables."""
    return index, encode_json(RecordKind.SCHEMA, change.to_json(), partition=0, term=1, index=index)


def a_migration(index: int, catalog: int) -> tuple[int, bytes]:
    """One that runs a migration of this version's code."""
    return a_change(index, StatedChange(migrations=(RunMigration("0001_double"),), catalog=catalog, at=1024))


def test_known_code_passes() -> None:
    """Also of versions before the newest, and entries that need no code."""
    gate = CodeGate()
    assert gate.learn(2) == {}
    tables = a_change(3, StatedChange(("CREATE TABLE more (id INTEGER)",)))
    entries = [a_batch(1, 1), a_batch(2, 2), tables, a_migration(4, 2)]
    assert gate.add(0, entries) == entries
    assert not gate.waits


def test_unknown_code_is_waited_for() -> None:
    """By what is after it, too; other partitions do not wait; each version lets its own through."""
    gate = CodeGate()
    gate.learn(1)
    first, second, third, fourth = a_batch(1, 1), a_batch(2, 2), a_batch(3, 1), a_batch(4, 3)
    assert gate.add(0, [first, second, third]) == [first]
    assert gate.add(0, [fourth]) == []
    assert gate.add(1, [a_batch(1, 1)]) == [a_batch(1, 1)]
    assert gate.waits
    assert gate.learn(2) == {0: [second, third]}
    assert gate.waits
    assert gate.learn(3) == {0: [fourth]}
    assert not gate.waits
    assert gate.learn(4) == {}


def test_migration_waits_for_its_code() -> None:
    """A follower may have it committed first: no site can run it before. What needs no code passes."""
    gate = CodeGate()
    gate.learn(1)
    tables, migration, batch = a_change(1, StatedChange(("CREATE TABLE more (id INTEGER)",))), a_migration(2, 2), a_batch(3, 1)
    assert gate.add(0, [tables, migration, batch]) == [tables]
    assert gate.waits
    assert gate.learn(2) == {0: [migration, batch]}
    assert not gate.waits
