"""The gate of multi-partition calls: on all partitions or on none, in each partition's order."""

from __future__ import annotations

import random

import pytest

from cmdlog.cluster.multi_calls import MultiCallGate, PartedEntry
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import KIND_OFFSET, RecordKind, decode_record, encode_empty, encode_json
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from replay.log.split_calls import PartitionSpan, find_parted

TERM = 7


def txn(number: int, bits: int = MULTI_PARTITION) -> int:
    """The transaction id of the call with this number."""
    return make_txn_id(millis=number, counter=0, partition=bits)


def batch(partition: int, index: int, *txns: int) -> bytes:
    """The record of a batch with these calls."""
    return encode_batch(
        partition=partition,
        term=TERM,
        index=index,
        catalog=1,
        txn_ids=txns,
        procedures=[0] * len(txns),
        params=[b"[]"] * len(txns),
    )


class Gate:
    """Three partitions, each of which gets its next entry by name; what may be run comes back as (partition, index)."""

    def __init__(self, *upto: int) -> None:
        self.run_upto = dict(enumerate(upto or (0, 0, 0)))
        self.gate = MultiCallGate(self.run_upto)
        self.ends = dict.fromkeys(self.run_upto, 0)
        self.told: list[tuple[int, Skip]] = []

    def single(self, partition: int, number: int = 1, *, calls: int = 1) -> list[tuple[int, int]]:
        return self.add(partition, batch(partition, self.next(partition), *(txn(number + n, partition) for n in range(calls))))

    def multi(self, partition: int, number: int) -> list[tuple[int, int]]:
        return self.add(partition, batch(partition, self.next(partition), txn(number)))

    def skip(self, partition: int, index: int) -> list[tuple[int, int]]:
        return self.add(partition, self.skip_record(partition, self.next(partition), index))

    @staticmethod
    def skip_record(partition: int, at: int, index: int) -> bytes:
        return encode_json(RecordKind.SKIP, {"index": index, "position": 0}, partition=partition, term=TERM, index=at)

    def next(self, partition: int) -> int:
        return self.ends[partition] + 1

    def add(self, partition: int, *records: bytes) -> list[tuple[int, int]]:
        placed = list(enumerate(records, self.next(partition)))
        self.ends[partition] += len(records)
        released, skips = self.gate.add(partition, placed)
        self.told += skips
        assert len({group for group, _ in released}) == len(released)
        assert all(entries for _, entries in released)
        return [(group, index) for group, entries in released for index, _ in entries]

    def parted(self) -> list[tuple[int, list[tuple[int, int]]]]:
        return [(call.txn_id, list(call.places)) for call in self.gate.parted()]


def test_calls_of_one_partition_pass_at_once() -> None:
    """Batches of any size and entries without calls wait for nobody."""
    gate = Gate()
    assert gate.single(0) == [(0, 1)]
    assert gate.single(2, calls=5) == [(2, 1)]
    assert gate.add(0, encode_empty(partition=0, term=TERM, index=2)) == [(0, 2)]
    assert not gate.gate.waits
    assert gate.parted() == []


def test_a_call_on_all_partitions_is_released_by_its_last_commit() -> None:
    """No partition may run it while another one lacks it; then all may at once, in the order of the partitions."""
    gate = Gate()
    assert gate.multi(1, 5) == []
    assert gate.multi(2, 5) == []
    assert gate.gate.waits
    assert gate.multi(0, 5) == [(0, 1), (1, 1), (2, 1)]
    assert not gate.gate.waits
    assert gate.parted() == []


def test_entries_after_a_waiting_call_do_not_overtake_it() -> None:
    """A partition keeps its order: what follows comes with the call, and after it."""
    gate = Gate()
    gate.multi(0, 5)
    assert gate.single(0, 6) == []
    assert gate.single(1, 4) == [(1, 1)]
    assert gate.multi(1, 5) == []
    assert gate.multi(2, 5) == [(0, 1), (0, 2), (1, 2), (2, 1)]


def test_entries_before_a_waiting_call_pass() -> None:
    """Entries that come together are parted where the call begins."""
    gate = Gate()
    assert gate.add(0, batch(0, 1, txn(3, 0)), batch(0, 2, txn(5)), batch(0, 3, txn(6, 0))) == [(0, 1)]
    assert gate.multi(1, 5) == []
    assert gate.multi(2, 5) == [(0, 2), (0, 3), (1, 1), (2, 1)]


def test_two_waiting_calls_are_released_one_by_one() -> None:
    """The second waits for the partition that lacks it, also when the first one has passed."""
    gate = Gate()
    for partition in (0, 1):
        assert gate.multi(partition, 5) + gate.multi(partition, 6) == []
    assert gate.multi(2, 5) == [(0, 1), (1, 1), (2, 1)]
    assert gate.gate.waits
    assert gate.multi(2, 6) == [(0, 2), (1, 2), (2, 2)]


def test_a_state_that_holds_the_call_already_lacks_nothing() -> None:
    """After a start, a partition whose state is behind gets the call that the others had run before."""
    gate = Gate(0, txn(5), txn(9))
    assert gate.multi(0, 5) == [(0, 1)]
    assert gate.parted() == []
    assert gate.multi(0, 6) == []
    assert gate.multi(1, 6) == [(0, 2), (1, 1)]


def test_a_state_that_ends_before_the_call_lacks_it() -> None:
    """A state that holds something just before the call is no proof that the partition has it."""
    gate = Gate(0, txn(5) - 1, txn(5))
    assert gate.multi(0, 5) == []
    assert gate.multi(1, 5) == [(0, 1), (1, 1)]


def test_a_parted_call_is_found_wherever_it_is() -> None:
    """A new leader gets the calls that some partition lacks, oldest first, with their places; and not those that all have."""
    gate = Gate()
    for partition in range(3):
        gate.multi(partition, 4)
    gate.single(1, 4)
    gate.multi(0, 5)
    gate.multi(1, 5)
    gate.single(0, 6)
    gate.multi(0, 7)
    assert gate.gate.parted() == [PartedEntry(txn(5), [(0, 2), (1, 3)]), PartedEntry(txn(7), [(0, 4)])]
    gate.multi(2, 5)
    assert gate.parted() == [(txn(7), [(0, 4)])]


def test_a_skipped_call_passes_with_what_waited_behind_it() -> None:
    """The skip is handed out before the call is: the site must know it first. The other places still wait for theirs."""
    gate = Gate()
    gate.multi(0, 5)
    gate.multi(1, 5)
    gate.single(1, 6)
    assert gate.skip(1, 1) == [(1, 1), (1, 2), (1, 3)]
    assert gate.told == [(1, Skip(3, 1, 0))]
    assert gate.gate.waits
    assert gate.skip(0, 1) == [(0, 1), (0, 2)]
    assert gate.told[1:] == [(0, Skip(2, 1, 0))]
    assert not gate.gate.waits


def test_a_skip_is_told_even_if_its_own_place_waits() -> None:
    """A second parted call holds back the entry of the skip, not the news of it."""
    gate = Gate()
    gate.multi(0, 5)
    gate.multi(0, 6)
    assert gate.skip(0, 1) == [(0, 1)]
    assert gate.told == [(0, Skip(3, 1, 0))]
    assert gate.skip(0, 2) == [(0, 2), (0, 3), (0, 4)]


def test_a_skip_that_comes_with_its_call_is_told() -> None:
    """A follower may get both at once."""
    gate = Gate()
    assert gate.add(0, batch(0, 1, txn(5)), gate.skip_record(0, 2, 1)) == [(0, 1), (0, 2)]
    assert gate.told == [(0, Skip(2, 1, 0))]
    assert gate.parted() == []


def test_half_a_skip_is_finished_by_the_next_leader() -> None:
    """A leader that dies between the commits of its skips leaves the places that still wait, and no others."""
    gate = Gate()
    gate.multi(0, 5)
    gate.multi(1, 5)
    gate.skip(0, 1)
    assert gate.parted() == [(txn(5), [(1, 1)])]
    gate.skip(1, 1)
    assert gate.parted() == []
    assert not gate.gate._skipped


def test_a_place_whose_skip_is_known_is_not_skipped_again() -> None:
    """It may still wait behind another call that is parted."""
    gate = Gate()
    gate.multi(0, 5)
    gate.multi(0, 6)
    gate.skip(0, 2)
    assert gate.parted() == [(txn(5), [(0, 1)])]


def test_a_skip_of_a_call_that_was_released_leaves_nothing_behind() -> None:
    """A leader skips a call that hangs after it was committed everywhere: later calls wait for their partitions as ever."""
    gate = Gate()
    for partition in range(3):
        gate.multi(partition, 5)
    for partition in range(3):
        assert gate.skip(partition, 1) == [(partition, 2)]
    assert [partition for partition, _ in gate.told] == [0, 1, 2]
    assert gate.parted() == []
    assert not gate.gate._held
    assert not gate.gate._skipped
    assert gate.multi(0, 6) == []


# -- the cluster and a recovery of its logs -------------------------------------------------------------------------------


class History:
    """Calls on all of three partitions, the last of which some partitions may lack, between calls of single ones."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(3)}
        self.multi: dict[int, dict[int, int]] = {}  # TxnId -> partition -> index
        cut = {partition: self.rng.randrange(4, 10) for partition in self.lines}  # where each group's committed log ends
        for number in range(1, 10):
            everywhere = self.rng.random() < 0.5
            for partition, line in self.lines.items():
                if number < cut[partition] and (everywhere or self.rng.random() < 0.5):
                    self._place(partition, txn(number) if everywhere else txn(number, partition), everywhere=everywhere)
                    assert line

    def _place(self, partition: int, txn_id: int, *, everywhere: bool) -> None:
        line = self.lines[partition]
        line.append((len(line) + 1, batch(partition, len(line) + 1, txn_id)))
        if everywhere:
            self.multi.setdefault(txn_id, {})[partition] = len(line)

    def run_by_cluster(self) -> set[int]:
        """The calls on all partitions that a leader of these logs runs, after it has skipped what is parted."""
        gate = MultiCallGate(dict.fromkeys(self.lines, 0))
        fed, run = dict.fromkeys(self.lines, 0), set[tuple[int, int]]()

        def feed(partition: int) -> None:
            line = self.lines[partition]
            released, _ = gate.add(partition, line[fed[partition] : fed[partition] + 1])
            fed[partition] += 1
            run.update((group, index) for group, entries in released for index, _ in entries)

        waiting = [partition for partition, line in self.lines.items() for _ in line]
        self.rng.shuffle(waiting)
        for partition in waiting:
            feed(partition)
        left_out = {place for call in gate.parted() for place in call.places}
        for partition, index in sorted(left_out, key=lambda _: self.rng.random()):
            line = self.lines[partition]
            line.append((len(line) + 1, Gate.skip_record(partition, len(line) + 1, index)))
            feed(partition)
        assert not gate.waits
        held = {txn_id for txn_id, places in self.multi.items() if all(place in run for place in places.items())}
        return {txn_id for txn_id in held if not left_out & set(self.multi[txn_id].items())}

    def run_by_recovery(self, ends: dict[int, int]) -> set[int]:
        """The calls that a recovery runs, of logs that end there."""
        spans = {}
        for partition, line in self.lines.items():
            span = spans[partition] = PartitionSpan()
            for _, record in line[: ends[partition]]:
                if record[KIND_OFFSET] == RecordKind.SKIP:
                    span.skipped.add(Skip.from_record(decode_record(record)).batch)
            span.calls = {t: at[partition] for t, at in self.multi.items() if at.get(partition, 1000) <= ends[partition]}
        found = find_parted(spans)
        assert not any(call.is_loss for call in found)
        left = {call.txn_id for call in found}
        return {txn_id for span in spans.values() for txn_id in span.calls} - left


@pytest.mark.parametrize("seed", range(60))
def test_a_recovery_runs_the_calls_that_the_cluster_runs(seed: int) -> None:
    """Of the logs before the next leader skips anything, and after any of its skips: none are half a call, all the same ones."""
    history = History(seed)
    before = {partition: len(line) for partition, line in history.lines.items()}
    run = history.run_by_cluster()
    after = {partition: len(line) for partition, line in history.lines.items()}
    for _ in range(8):
        ends = {partition: history.rng.randint(before[partition], after[partition]) for partition in before}
        assert history.run_by_recovery(ends) == run
