"""The sessions of a batch: every shape comes back as it was, small ones are small, damage is found."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.batch import BATCH, NO_KEY, batch_procedures, batch_span, decode_batch, encode_batch
from cmdlog.wal.format.record import RECORD, BadRecord, RecordKind, decode_record, encode_record
from cmdlog.wal.format.session_columns import ENDED, SESSION, SESSIONS, decode_sessions, encode_sessions
from procedures.idempotency.session_calls import sent_name

TICK = 1024


def session(number: int) -> bytes:
    """A fingerprint."""
    return bytes([number]) * 16


def batch_of(
    keys: list[bytes] | None,
    *,
    ended: tuple[bytes, ...] = (),
    txn_ids: list[int] | None = None,
    count: int = 0,
    compress: bool = False,
) -> bytes:
    """A record with these calls."""
    calls = len(keys) if keys is not None else count
    return encode_batch(
        partition=0, term=1, index=2, catalog=1, txn_ids=txn_ids or range(TICK, TICK * (calls + 1), TICK),
        procedures=list(range(calls)), params=[b"[%d]" % at for at in range(calls)], keys=keys, ended=ended,
        compress=compress,
    )  # fmt: skip


def test_one_session_counting_on_takes_forty_bytes() -> None:
    """Whatever the number of calls."""
    plain = len(batch_of(None, count=50))
    mine = [sent_name(session(1), 1000 + at, 900) for at in range(50)]
    assert len(batch_of(mine)) - plain == SESSIONS.bytes + SESSION.bytes == 40
    batch = decode_batch(decode_record(batch_of(mine)))
    assert batch.key_list() == [key[:24] for key in mine]
    assert batch.floors == {session(1): 900}


@pytest.mark.parametrize("seed", range(200))
def test_any_mixture_comes_back(seed: int) -> None:
    """Names, floors, transaction ids and procedures, with keys, calls without names, sessions that end, compressed or not."""
    chance = random.Random(seed)
    keys: list[bytes] = []
    floors: dict[bytes, int] = {}
    for _ in range(chance.randint(1, 40)):
        kind, of = chance.choice("nkss" if seed % 3 else "s"), session(chance.randint(1, 1 if seed % 5 == 0 else 9))
        if kind == "s":
            number = chance.choice([chance.randint(1, 50), chance.randint(1, 70_000), ENDED - 1])
            floor = max(0, number - chance.randint(1, 1024))
            floors[of] = max(floors.get(of, 0), floor)
            keys.append(sent_name(of, number, floor))
        else:
            keys.append(NO_KEY if kind == "n" else chance.randbytes(16))
    ended = tuple(session(50 + at) for at in range(chance.choice([0, 0, 2])))
    floors.update(dict.fromkeys(ended, ENDED))
    apart = [TICK * (1 + 3 * at) for at in range(len(keys))] if seed % 2 else None
    record = decode_record(batch_of(keys, ended=ended, txn_ids=apart, compress=seed % 4 > 1))
    batch = decode_batch(record)
    names = [key[:24] if len(key) == 32 else key for key in keys]
    assert (batch.key_list() or [NO_KEY] * len(keys)) == names
    assert batch.floors == floors
    assert list(batch_procedures(record)) == list(batch.procedures) == list(range(len(keys)))
    assert batch_span(record) == (batch.txn_ids[0], batch.last_txn, len(keys))


@pytest.mark.parametrize("calls", [2, 3, 255, 256, 700])
def test_a_call_of_each_session_comes_back(calls: int) -> None:
    """What many clients that wait for their own answers send; the ordinals are wider from 256 sessions on."""
    chance = random.Random(calls)
    sessions = [chance.randbytes(16) for _ in range(calls)]
    sent = [sent_name(of, 5 + 1000 * at, chance.randint(0, 5)) for at, of in enumerate(sessions)]
    batch = decode_batch(decode_record(batch_of(sent)))
    assert batch.key_list() == [key[:24] for key in sent]
    assert batch.floors == {key[:16]: int.from_bytes(key[24:], "little") for key in sent}
    width = 1 if calls < 256 else 2
    assert len(batch_of(sent)) - len(batch_of(None, count=calls)) - SESSIONS.bytes - calls * (SESSION.bytes + width + 1) < 8


def test_a_session_ends_in_a_batch_without_names() -> None:
    """The batch has no names then, and the floor all the same."""
    batch = decode_batch(decode_record(batch_of(None, ended=(session(7),), count=3)))
    assert batch.floors == {session(7): ENDED}
    assert batch.key_list() == [NO_KEY] * 3


@pytest.mark.parametrize("distance", [0xFF, 0x100, 0xFFFF, 0x10000])
def test_numbers_at_the_end_of_a_width_come_back(distance: int) -> None:
    """The greatest number that a column of this width holds, and the first that it does not."""
    sent = [sent_name(session(1), number, 2) for number in (5, 5 + distance)]
    assert [key[:24] for key in sent] == decode_batch(decode_record(batch_of(sent))).key_list()


def test_batch_of_another_format_is_refused() -> None:
    """Flags and bytes that this version does not know, with a good checksum: nothing of the batch is guessed."""
    raw = batch_of([sent_name(session(1), 5, 2)])
    payload = raw[RECORD.bytes :]
    places = {field.name: field.offset for field in BATCH.fields}
    for at, wrong in ((places["flags"] + 1, b"\1"), (places["reserved"], b"\1"), (len(payload), b"\0" * 8)):
        forged = encode_record(RecordKind.BATCH, payload[:at] + wrong + payload[at + len(wrong) :], partition=0, term=1, index=2)
        with pytest.raises(BadRecord, match=r"batch (flags|columns, text and places)"):
            decode_batch(decode_record(forged))


def test_damage_is_found() -> None:
    """Whatever byte of the headers differs: an error, or other sessions; never another length. So with what calls refer to."""
    _, raw = encode_sessions([sent_name(session(1), 5, 2), sent_name(session(2), 9, 2), NO_KEY], ())
    assert list(decode_sessions(raw, 3).numbers) == [5, 9, 0]
    for at in range(SESSIONS.bytes):
        for bit in range(8):
            broken = bytearray(raw)
            broken[at] ^= 1 << bit
            with pytest.raises(BadRecord):
                decode_sessions(bytes(broken), 3)
    columns = SESSIONS.bytes + 2 * SESSION.bytes
    ordinal, base, twice = (columns, b"\3"), (SESSIONS.bytes + 16, b"\xff" * 8), (SESSIONS.bytes + SESSION.bytes, session(1))
    for at, wrong in (ordinal, base, twice):
        with pytest.raises(BadRecord):
            decode_sessions(raw[:at] + wrong + raw[at + len(wrong) :], 3)
    with pytest.raises(BadRecord):
        decode_sessions(raw[:-1], 3)
    with pytest.raises(BadRecord):
        decode_sessions(raw, 4)
