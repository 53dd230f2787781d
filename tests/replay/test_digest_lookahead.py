"""Digests in front of their batches: the order stays, nothing is lost, and what has no digest does not hold up the rest."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.record import Record, RecordKind, decode_record, encode_digest, encode_json
from cmdlog.wal.ids import BlockNumber, Lsn
from replay.fork.digest_lookahead import digests_first

Records = list[tuple[Lsn, Record]]


def entry(partition: int, index: int, at: int) -> tuple[Lsn, Record]:
    """Some entry of a partition."""
    return Lsn(BlockNumber(at), 0), decode_record(
        encode_json(RecordKind.SCHEMA, {"n": at}, partition=partition, term=1, index=index)
    )


def digest(partition: int, index: int, at: int) -> tuple[Lsn, Record]:
    """The digest of that entry."""
    raw = encode_digest(partition=partition, term=1, index=index, rows_digest=0, catalog=1, result_hashes=b"")
    return Lsn(BlockNumber(at), 0), decode_record(raw)


@pytest.mark.parametrize("seed", range(20))
def test_each_digest_comes_before_its_entry_and_the_rest_keeps_its_order(seed: int) -> None:
    """Whatever the order of the log: entries as they stand there, and every digest that is there in front of its entry."""
    rng = random.Random(seed)
    log: Records = []
    due: list[tuple[int, int]] = []
    for at in range(60):
        partition = rng.randrange(3)
        log.append(entry(partition, at, at))
        if rng.random() < 0.9:
            due.append((partition, at))
        while due and rng.random() < 0.5:
            partition, index = due.pop(0)
            log.append(digest(partition, index, 100 + at))
    got = list(digests_first(iter(log), lambda _lsn, _record: True))
    assert [record for _, record in got if record.is_entry] == [record for _, record in log if record.is_entry]
    assert sorted(record.raw for _, record in got) == sorted(record.raw for _, record in log)
    told = {(record.partition, record.index) for _, record in log if record.kind is RecordKind.DIGEST}
    seen: set[tuple[int, int]] = set()
    for _, record in got:
        if record.kind is RecordKind.DIGEST:
            seen.add((record.partition, record.index))
        else:
            assert (record.partition, record.index) in seen or (record.partition, record.index) not in told


def test_entry_without_a_digest_holds_up_no_more_than_the_limits() -> None:
    """By number and by bytes, and not at all if nobody waits for it."""
    log: Records = [entry(0, at, at) for at in range(100)]
    for limits in ({"held_max": 5}, {"held_bytes_max": 5 * len(log[0][1].raw)}):
        read = 0

        def counted() -> Records:
            nonlocal read
            read += 1
            return []

        given = digests_first(((lsn, record) for lsn, record in log if counted() is not None), lambda _l, _r: True, **limits)
        assert next(given) == log[0]
        assert read == 6
        assert list(given) == log[1:]
    assert next(digests_first(iter(log[:1]), lambda _lsn, _record: False)) == log[0]
