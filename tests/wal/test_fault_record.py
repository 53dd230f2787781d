"""Fault records as bytes: what is written is read, damage is found, and pieces of two chains are told apart."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.fault_record import (
    BadFaultLog,
    FaultCopy,
    FaultRecord,
    decode_copy,
    decode_fault,
    encode_copy,
    encode_fault,
    first_conflict,
    make_record,
)
from tests.wal.faultkit import CLUSTER, chain, node

GOLDEN = (
    "434c464c01000000636c75737465722d6e756d6265722d316c6966652d3030310100000002000000020000000000000091000000978839e4"
    "010000000000000007000000000000000900000000000000010000000000000002000200090000003e35bb97020000000300000029000000"
    "000000000900000000000000000005000000000000000900000000000000fe036e6f20616e73776572020000000000000008000000000000"
    "000a00000000000000030000003e35bb97010000000000000093ef1dac02000000"
)
"""A copy of format version 1, never to be changed."""


def test_golden_copy_stays_readable() -> None:
    """What any released version wrote is read, and this one writes the same."""
    one = make_record(
        CLUSTER, None, failed={3, 2}, epoch=7, term=9, author=1, demotions=((1022, 5, 9), (0, 41, 9)), reason="no answer"
    )
    other = make_record(CLUSTER, one, failed={2}, epoch=8, term=10, author=3)
    assert decode_copy(bytes.fromhex(GOLDEN)) == FaultCopy(node(1), 2, (one, other))
    assert encode_copy(FaultCopy(node(1), 2, (one, other))).hex() == GOLDEN


def test_conflicts_are_found_at_equal_and_neighbouring_numbers() -> None:
    """Chains that share a piece, or do not touch, have none."""
    known = chain(5)
    other = make_record(CLUSTER, known[2], failed={9}, epoch=0, term=1, author=1)
    assert first_conflict(known, [other]) == (known[3], other)
    assert first_conflict(known[4:], [other]) == (known[4], other)
    assert first_conflict([other], known[4:]) == (other, known[4])
    assert first_conflict(known[:3], [other]) is None
    assert first_conflict(known[:2], known[3:]) is None


def fuzz(seed: int, rounds: int) -> int:
    """How many of the damaged inputs were found out."""
    chance, found = random.Random(seed), 0
    for _ in range(rounds):
        records: list[FaultRecord] = []
        for _ in range(chance.randrange(1, 5)):
            demotions = tuple((group, chance.randrange(99), 1) for group in range(chance.randrange(4)))
            failed = [chance.randrange(1 << 32) for _ in range(chance.randrange(4))]
            records.append(
                make_record(
                    CLUSTER, records[-1] if records else None, failed=failed, epoch=0, term=1, author=1, demotions=demotions
                )
            )
        data = encode_copy(FaultCopy(node(1), 1, tuple(records)))
        assert decode_copy(data).records == tuple(records)
        for bad in (damaged(data, chance), chance.randbytes(chance.randrange(200))):
            try:
                decode_copy(bad)
            except BadFaultLog:
                found += 1
        record = encode_fault(CLUSTER, records[-1])
        try:
            decode_fault(CLUSTER, damaged(record, chance))
        except BadFaultLog:
            found += 1
    return found


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a flip, a cut or a foreign stretch."""
    out, at = bytearray(data), chance.randrange(len(data))
    how = chance.randrange(3)
    if how == 0:
        out[at] ^= 1 << chance.randrange(8)
    elif how == 1:
        del out[at:]
    else:
        out[at : at + 8] = bytes(byte ^ chance.randrange(1, 256) for byte in out[at : at + 8])  # none is what it was
    return bytes(out)


def test_decoders_raise_their_own_errors_alone() -> None:
    """Every damage is found out."""
    assert fuzz(1, 300) == 900


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(10))
def test_decoders_raise_their_own_errors_alone_for_minutes(seed: int) -> None:
    """The same with more rounds; a failure names the seed."""
    assert fuzz(100 + seed, 20_000) == 60_000
