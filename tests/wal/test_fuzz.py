"""Decoders under garbage: they give back what was encoded, or one of their own errors; never another one, never much memory."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.batch import NO_KEY, decode_batch, encode_batch
from cmdlog.wal.format.block import BadBlock, BlockFlag, check_body, decode_header, encode_block
from cmdlog.wal.format.record import (
    BadRecord,
    RecordKind,
    decode_body,
    decode_commit_mark,
    decode_digest,
    decode_record,
    encode_commit_mark,
    encode_digest,
    encode_json,
)
from cmdlog.wal.format.segment import decode_segment_header

TICK = 1 << 10


def a_block(chance: random.Random) -> bytes:
    """A valid block with records of every payload shape."""
    calls = chance.randrange(1, 6)
    first = chance.randrange(1, 1 << 50) << 10
    ids = range(first, first + calls * TICK, TICK)
    records = [
        encode_batch(
            partition=chance.randrange(1000),
            term=chance.randrange(1 << 40),
            index=chance.randrange(1 << 40),
            catalog=1,
            txn_ids=ids if chance.random() < 0.5 else list(ids),
            procedures=[chance.randrange(9) for _ in range(calls)],
            params=[b"[%d]" % chance.randrange(10**9) for _ in range(calls)],
            keys=[NO_KEY if chance.random() < 0.5 else chance.randbytes(16) for _ in range(calls)]
            if chance.random() < 0.5
            else None,
            compress=chance.random() < 0.3,
        ),
        encode_commit_mark(partition=1, term=1, commit=7, closed_txn=9),
        encode_digest(partition=1, term=1, index=7, rows_digest=5, catalog=1, result_hashes=chance.randbytes(4 * calls)),
        encode_json(
            RecordKind.CONFIGURATION, {"voters": [1], "text": "x" * chance.randrange(2000)}, partition=1, term=1, index=3
        ),
    ]
    block, _ = encode_block(
        records, flags=BlockFlag.NONE, generation=7, number=chance.randrange(1 << 40), durable_upto=3, chain=1, open_count=1
    )
    return block


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with flips, a cut, a repeated or a foreign stretch."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(out))
        how = chance.randrange(4)
        if how == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            del out[at:]
            out += bytes(1)
        elif how == 2:
            out[at : at + 8] = chance.randbytes(8)
        else:
            out[at:at] = out[at // 2 : at // 2 + chance.randrange(64)]
    return bytes(out)


def read_all(data: bytes) -> None:
    """Everything that a reader does with a block. Raises: BadBlock, BadRecord."""
    body = check_body(decode_header(data), data)
    for _, record in decode_body(body):
        read_payload(record.raw)


def read_payload(raw: bytes) -> None:
    """Everything that a reader does with a record. Raises: BadRecord."""
    record = decode_record(raw)
    if record.kind is RecordKind.BATCH:
        decode_batch(record).params()
        decode_batch(record).key_list()
    elif record.kind is RecordKind.COMMIT_MARK:
        decode_commit_mark(record)
    elif record.kind is RecordKind.DIGEST:
        decode_digest(record)
    else:
        record.json()


def forged(raw: bytes, chance: random.Random) -> bytes:
    """A damaged record under checksums that hold: what only the payload's own checks can find."""
    import google_crc32c

    out = bytearray(damaged(raw, chance))
    out[0:4] = len(out).to_bytes(4, "little")
    if len(out) >= 32:
        out[28:32] = bytes(4)
        crc = google_crc32c.extend(google_crc32c.value(bytes(out[:24])), bytes(out[32:]))
        out[24:28] = crc.to_bytes(4, "little")
    return bytes(out)


def fuzz(seed: int, rounds: int) -> int:
    """How many of the damaged inputs were found out."""
    chance = random.Random(seed)
    found = 0
    for _ in range(rounds):
        block = a_block(chance)
        read_all(block)
        records = [record.raw for _, record in decode_body(check_body(decode_header(block), block))]
        for read, data in (
            (read_all, damaged(block, chance)),
            (read_all, chance.randbytes(chance.randrange(300))),
            (read_payload, forged(chance.choice(records), chance)),
        ):
            try:
                read(data)
            except (BadBlock, BadRecord):
                found += 1
        try:
            decode_segment_header(damaged(block, chance))
        except (BadBlock, BadRecord, ValueError):
            found += 1
    return found


def test_decoders_raise_their_own_errors_alone() -> None:
    """A slice of `make fuzz`; most damage is found, and what is not was in bytes that nobody reads as more than data."""
    assert fuzz(1, 150) > 150 * 2


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(20))
def test_decoders_raise_their_own_errors_alone_for_minutes(seed: int) -> None:
    """The same with more rounds; a failure names the seed."""
    assert fuzz(100 + seed, 20_000) > 20_000 * 2
