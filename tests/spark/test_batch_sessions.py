"""The sessions of many batches at once are those of each, and what one batch may not hold is found among many."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.session_columns import ENDED, SESSION, SESSIONS, decode_sessions, encode_sessions
from procedures.idempotency.session_calls import sent_name
from replay.spark.reading.batch_sessions import BatchSessions

NONE = bytes(16)


def section_of(sessions: list[tuple[bytes, int]], ordinals: list[int], distances: list[int], *, wide: bool = True) -> bytes:
    """A section as its header says, whatever it says: (session, base), with columns of 1 byte, or 8 of numbers."""
    columns = struct.pack(f"<{len(ordinals)}B{len(distances)}{'Q' if wide else 'B'}", *ordinals, *distances)
    heads = b"".join(SESSION.pack(session, base, 0) for session, base in sessions)
    size = SESSIONS.bytes + len(heads) + len(columns)
    return SESSIONS.pack(size, len(sessions), 1, 8 if wide else 1) + heads + columns


def together(*sections: tuple[bytes, int]) -> BatchSessions:
    """(section, calls) each in a record of its own, after some other bytes."""
    at = np.array([3 * (number + 1) for number in range(len(sections))])
    raws = [b"-" * int(skip) + section + b"after" for skip, (section, _) in zip(at, sections, strict=True)]
    counts = np.array([count for _, count in sections])
    return BatchSessions(raws, at, counts, np.array([bool(section) for section, _ in sections]))


def names_of(found: BatchSessions) -> list[bytes]:
    """As `Batch.key_list` gives them."""
    names = [name.tobytes() for name in found.names()]
    return [name if of else name[:16] for name, of in zip(names, found.in_session().tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(60))
def test_many_batches_are_read_as_one_by_one(seed: int) -> None:
    """Batches of one session and of several, with columns of every width, of sessions that end, and without any session."""
    chance = random.Random(seed)
    sections, names = list[tuple[bytes, int]](), list[bytes]()
    for _ in range(chance.randrange(1, 12)):
        count, width = chance.randrange(1, 30), chance.choice((0, 8, 20, 40))
        several, begin = chance.choice((1, 3, 300)), chance.randrange(1, 1 << 40)
        keys = list[bytes]()
        for at in range(count):
            of = chance.randrange(several)
            sent = sent_name(struct.pack("<QQ", 7, of + 1), begin + at if width == 0 else 1 + chance.randrange(1 << width), 0)
            keys.append(NONE if several > 1 and chance.random() < 0.2 else sent)
        ended = [b"e" * 16] if chance.random() < 0.2 else []
        if chance.random() < 0.2:
            keys, ended = [NONE] * count, []
        _, section = encode_sessions(keys, ended)
        sections.append((section, count))
        names += [NONE] * count if not section else decode_sessions(section, count).names(count)
    found = together(*sections)
    assert found.fits.all()
    assert found.sizes.tolist() == [len(section) for section, _ in sections]
    assert found.first_bad() is None
    assert names_of(found) == names


@pytest.mark.parametrize(
    ("sessions", "ordinals", "distances"),
    [
        ([(b"a" * 16, 5), (b"a" * 16, 9)], [1, 2], [0, 0]),  # named twice
        ([(b"b" * 16, 5), (b"a" * 16, 9), (b"b" * 16, 7)], [1, 2], [0, 0]),
        ([(b"a" * 16, 5), (b"b" * 16, 9)], [1, 3], [0, 0]),  # a third session
        ([(b"a" * 16, ENDED - 1)], [1, 1], [0, 1]),  # the number of no call
        ([(b"a" * 16, 1 << 63)], [1, 1], [0, 1 << 63]),  # more than 64 bits
        ([(b"a" * 16, 5)], [1, 1], [0, (1 << 64) - 1]),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_one_batch_may_not_hold_is_found_among_many(
    sessions: list[tuple[bytes, int]], ordinals: list[int], distances: list[int], place: int
) -> None:
    """The batch is named, wherever it is."""
    bad = section_of(sessions, ordinals, distances)
    with pytest.raises(BadRecord):
        decode_sessions(bad, 2)
    good = section_of([(b"a" * 16, 5), (b"b" * 16, ENDED - 1)], [1, 2, 0], [ENDED - 6, 0, 9])
    decode_sessions(good, 3)
    sections = [(good, 3), (b"", 2), (good, 3)]
    assert together(*sections).first_bad() is None
    sections[place] = (bad, 2)
    assert together(*sections).first_bad() == place


def test_header_that_its_columns_do_not_fill_is_found() -> None:
    """Too short, of a width that there is not, or of no session."""
    good = section_of([(b"a" * 16, 5)], [1], [0])
    for damaged in (
        good[:7],
        SESSIONS.pack(len(good) + 1, 1, 1, 8),
        SESSIONS.pack(len(good), 1, 8, 1),
        SESSIONS.pack(17, 0, 1, 8),
    ):
        raws = [good, damaged, good]
        found = BatchSessions(raws, np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.int64), np.ones(3, dtype=np.bool_))
        assert found.fits.tolist() == [True, False, True]
