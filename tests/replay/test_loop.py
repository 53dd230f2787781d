"""Entries come with their digests: the order stays, nothing is lost, and what has no digest does not hold up the rest."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_digest, encode_json
from cmdlog.wal.ids import BlockNumber, Lsn
from procedures.idempotency.known_outcome import KeyPolicy
from replay import loop
from replay.errors import Divergence, DivergencePlace, EntryMissing
from replay.loop import EntryQueue, PartitionStopped, UncomparedBatches

AT = Lsn(BlockNumber(1), 0)


def entry(index: int, kind: RecordKind = RecordKind.BATCH) -> Record:
    """Some entry; nobody here decodes it."""
    return decode_record(encode_json(kind, {"n": index}, partition=0, term=1, index=index))


def digest(index: int, term: int = 1) -> Record:
    """The digest of that entry."""
    return decode_record(encode_digest(partition=0, term=term, index=index, rows_digest=0, catalog=1, result_hashes=b""))


class Listed:
    """A policy that lists what it is given."""

    def __init__(self, stop_at: int = 0) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.calls = 0
        self._stop_at = stop_at
        self._uncompared: UncomparedBatches[int] = UncomparedBatches()

    @property
    def awaits_digest(self) -> bool:
        """Some batch came without its digest."""
        return bool(self._uncompared)

    def apply_entry(self, _lsn: Lsn, record: Record, digest: Record | None) -> None:
        """Counts a call."""
        if record.index == self._stop_at:
            raise PartitionStopped(Divergence(DivergencePlace(0, record.index, 1, 0, "p", "a", "b")))
        self.calls += 1
        self.seen.append((record.index, digest is not None))
        if digest is None and record.kind is RecordKind.BATCH:
            self._uncompared.add(record, record.index)

    def compare_late(self, digest: Record) -> None:
        """Lists what it is of."""
        self.seen.append(("late", self._uncompared.pop(digest)))

    def change_key_policy(self, policy: KeyPolicy) -> None:
        """Lists it."""
        self.seen.append(("policy", policy.window_ms))


def queue(policy: Listed, *, to_index: int = 1000, voids: tuple[tuple[int, int, int], ...] = ()) -> EntryQueue:
    """The queue of partition 0, from its first entry on."""
    return EntryQueue(0, policy, after_index=0, to_index=to_index, voids=voids, progress=lambda _partition, _calls: None)


@pytest.mark.parametrize("seed", range(20))
def test_each_batch_comes_with_its_digest_and_in_order(seed: int) -> None:
    """Wherever digests are behind their batches: every entry once, ascending, with its digest unless the log has none."""
    rng, policy, due = random.Random(seed), Listed(), list[int]()
    one, digested = queue(policy, to_index=60), set[int]()
    for index in range(1, 61):
        one.put_entry(AT, entry(index))
        if rng.random() < 0.9:
            due.append(index)
        while due and rng.random() < 0.5:
            digested.add(due[0])
            one.put_digest(digest(due.pop(0)))
    one.finish()
    assert policy.seen == [(index, index in digested) for index in range(1, 61)]
    assert one.finished == (digested == set(range(1, 61)))


def test_entry_without_a_digest_holds_up_no_more_than_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; its digest is compared when it comes after all."""
    for name, value in (("WAITING_MAX", 5), ("WAITING_BYTES_MAX", 5 * len(entry(1).raw))):
        policy = Listed()
        one = queue(policy)
        with monkeypatch.context() as patch:
            patch.setattr(loop, name, value)
            for index in range(1, 6):
                one.put_entry(AT, entry(index))
            assert policy.seen == []
            one.put_entry(AT, entry(6))
        one.put_digest(digest(1, term=2))
        one.put_digest(digest(1))
        assert policy.seen == [(1, False), ("late", None), ("late", 1)]


def test_only_the_newest_uncompared_batches_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches whose digest never comes take no more memory than the limit says."""
    monkeypatch.setattr(loop, "UNCOMPARED_MAX", 2)
    found: UncomparedBatches[int] = UncomparedBatches()
    for index in (1, 2, 3):
        found.add(entry(index), index)
    assert (found.indexes, found.pop(digest(1)), found.pop(digest(2))) == ([2, 3], None, 2)


def test_key_policy_holds_from_its_place_in_the_log() -> None:
    """It waits behind the entries before it; where none waits it holds at once."""
    policy = Listed()
    one = queue(policy)
    one.put_key_policy(KeyPolicy(window_ms=1))
    one.put_entry(AT, entry(1))
    one.put_key_policy(KeyPolicy(window_ms=2))
    one.put_entry(AT, entry(2))
    one.put_digest(digest(2))
    assert policy.seen == [("policy", 1), (1, False), ("policy", 2), (2, True)]


def test_void_entries_and_those_out_of_range_are_left_out_and_a_gap_is_an_error() -> None:
    """What is before a place that voids it, what was applied, and what is after the end; a missing entry is named."""
    policy = Listed()
    one = queue(policy, to_index=2, voids=((2, 0, 1),))
    one.put_entry(AT, entry(1))
    after = Lsn(BlockNumber(2), 0)
    for index in (1, 1, 2, 3):
        one.put_entry(after, entry(index, RecordKind.SCHEMA))
    assert policy.seen == [(1, False), (2, False)]
    assert one.finished
    with pytest.raises(EntryMissing, match="entry 1 is not in the log, entry 2 is"):
        queue(Listed()).put_entry(AT, entry(2))


def test_partition_that_stops_is_given_nothing_more() -> None:
    """Neither what waits nor what comes."""
    policy = Listed(stop_at=2)
    one = queue(policy)
    for index in (1, 2, 3):
        one.put_entry(AT, entry(index))
    one.put_digest(digest(3))
    one.put_entry(AT, entry(4))
    one.put_digest(digest(4))
    one.finish()
    assert policy.seen == [(1, False)]
    assert one.finished
    assert isinstance(one.stopped, Divergence)
