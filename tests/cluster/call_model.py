"""Generated histories of groups whose leaders change, with calls on all partitions that some groups lose, and who judges them.

One rule: the truth is what the groups have committed at the end; each judge begins with states of any age, and sees the rest in
any order of the groups.
"""

from __future__ import annotations

import random
from typing import Final

from cmdlog.cluster.entry_gate import MultiCallGate
from cmdlog.wal.format.batch import encode_batch, places_of
from cmdlog.wal.format.call_places import CallPlace, TermTable
from cmdlog.wal.format.record import RecordKind, encode_empty, peek_record
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from cmdlog.wal.skips import VOID
from replay.log.log_fold import MultiCall
from replay.log.split_calls import PartitionSpan, find_parted

PARTITIONS: Final = 3
STEPS: Final = 24


class Model:
    """One history: the committed log of every group, as records from index 1 on."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.logs: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        self.tails: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}  # of the present leader, not committed
        self.terms = dict.fromkeys(range(PARTITIONS), 1)
        self.calls: dict[int, list[CallPlace]] = {}  # TxnId -> places
        for number in range(1, STEPS):
            self._step(number)
        for partition in self.logs:  # the last leader: what is not committed is lost, and everything is decided
            self._commit(partition)
            self._change_leader(partition)
            self._commit(partition)
        self.truth = {txn: all(self._holds(p, place) for p, place in enumerate(at)) for txn, at in self.calls.items()}
        self.executed = {(p, place.index) for txn, run in self.truth.items() if run for p, place in enumerate(self.calls[txn])}
        assert rng is self.rng

    def _step(self, number: int) -> None:
        rng, choice = self.rng, self.rng.random()
        if choice < 0.35:
            self._place_call(number)
        elif choice < 0.6:
            partition = rng.randrange(PARTITIONS)
            self._place(partition, make_txn_id(millis=number, counter=0, partition=partition), ())
        elif choice < 0.85:
            for partition in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
                self._commit(partition, rng.randint(0, len(self.tails[partition])))
        else:
            self._change_leader(rng.randrange(PARTITIONS))

    def _place_call(self, number: int) -> None:
        txn_id = make_txn_id(millis=number, counter=0, partition=MULTI_PARTITION)
        places = [CallPlace(self.terms[p], self._next(p)) for p in range(PARTITIONS)]
        self.calls[txn_id] = places
        for partition in range(PARTITIONS):
            self._place(partition, txn_id, places)

    def _place(self, partition: int, txn_id: int, places: list[CallPlace] | tuple[()]) -> None:
        self.tails[partition].append(
            encode_batch(
                partition=partition, term=self.terms[partition], index=self._next(partition), catalog=1, txn_ids=[txn_id],
                procedures=[0], params=[b"[]"], places=places,
            )
        )  # fmt: skip

    def _next(self, partition: int) -> int:
        return len(self.logs[partition]) + len(self.tails[partition]) + 1

    def _commit(self, partition: int, count: int | None = None) -> None:
        tail = self.tails[partition]
        count = len(tail) if count is None else count
        self.logs[partition] += tail[:count]
        del tail[:count]

    def _change_leader(self, partition: int) -> None:
        """Some of what the leader before has not committed is in the next one's log."""
        tail = self.tails[partition]
        del tail[self.rng.randint(0, len(tail)) :]
        self.terms[partition] += self.rng.randint(1, 2)
        tail.append(encode_empty(partition=partition, term=self.terms[partition], index=self._next(partition)))

    def _holds(self, partition: int, place: CallPlace) -> bool:
        log = self.logs[partition]
        return place.index <= len(log) and peek_record(log[place.index - 1]).term == place.term

    def table(self, partition: int, upto: int) -> TermTable:
        """The terms of the group's first entries."""
        table = TermTable()
        for index, record in enumerate(self.logs[partition][:upto], 1):
            table.add(index, peek_record(record).term)
        return table

    def starts(self) -> dict[int, int]:
        """Where states may be: each of another age."""
        return {partition: self.rng.randint(0, len(log)) for partition, log in self.logs.items()}


def run_by_gate(model: Model) -> set[tuple[int, int]]:
    """The entries of calls on all partitions that a node runs, or has in its states, whatever it hears first."""
    rng, starts = model.rng, model.starts()
    gate = MultiCallGate({p: model.table(p, upto) for p, upto in starts.items()})
    run = {(p, index) for p, index in model.executed if index <= starts[p]}
    void: set[tuple[int, int]] = set()
    fed = {p: max(0, upto - rng.randint(0, 3)) for p, upto in starts.items()}  # consensus begins a little before
    while waiting := [p for p, log in model.logs.items() if fed[p] < len(log)]:
        partition = rng.choice(waiting)
        count = rng.randint(1, 4)
        entries = list(enumerate(model.logs[partition][fed[partition] : fed[partition] + count], fed[partition] + 1))
        fed[partition] += count
        released, left_out = gate.add(partition, entries)
        void |= {(p, index) for p, index, position in left_out if position == VOID}
        for p, passed in released:
            run |= {(p, index) for index, data in passed if index > starts[p] and _is_call(data) and (p, index) not in void}
    assert not gate.waits
    return run


def run_by_recovery(model: Model) -> set[tuple[int, int]]:
    """The entries that a recovery runs which has the logs after some states."""
    starts = model.starts()
    spans = {}
    for partition, log in model.logs.items():
        placed = [(index, peek_record(data)) for index, data in enumerate(log, 1) if index > starts[partition] and _is_call(data)]
        calls = {txn: MultiCall(at[partition].index, tuple(at)) for txn, at in model.calls.items()}
        held = {index for index, _ in placed}
        spans[partition] = PartitionSpan(
            calls={
                txn: call for txn, call in calls.items() if call.index in held and model._holds(partition, call.places[partition])
            },
            passed=starts[partition], terms=model.table(partition, len(log)),
        )  # fmt: skip
    found = find_parted(spans)
    assert not any(call.is_loss for call in found)
    dropped = {(p, index) for call in found for p, index in call.held.items()}
    run = {(p, call.index) for p, span in spans.items() for call in span.calls.values()} - dropped
    return run | {(p, index) for p, index in model.executed if index <= starts[p]}


def _is_call(data: bytes) -> bool:
    record = peek_record(data)
    return record.kind is RecordKind.BATCH and bool(places_of(record))
