"""The gate for messages: newer ones are skipped, impossible ones dropped and counted, whatever the garbage."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from cmdlog.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    MessageKind,
)
from cmdlog.raft.wire.layout import (
    ENTRIES_MAX,
    FIELD,
    FIXED,
    HEAD,
    MESSAGES_MAX,
    NUMBER_MAX,
    Addressed,
    BadFrame,
    FrameFault,
    MessageTooLarge,
    Tag,
)
from cmdlog.raft.wire.secure_frames import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HELLO_BYTES_MAX,
    FrameCutter,
    FrameSealer,
    Opener,
    Seal,
    decode_hello,
)
from cmdlog.wal.ids import Index, PartitionId
from tests.raft.wirekit import (
    BEAT,
    CLUSTER,
    GROUP,
    LINK_HEADS,
    ME,
    MESSAGES,
    PEER,
    SECRET,
    TERM,
    THIRD,
    append,
    fault_of,
    field,
    meta_of,
    one_frame,
    opened,
    sealed_by_hand,
)

ANY_MESSAGE = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m[1]).__name__)

# -- rolling upgrade -----------------------------------------------------------------------------------------------------


def test_an_unknown_kind_is_skipped_and_counted() -> None:
    """With its payloads; the messages around it are taken."""
    around = one_frame([BEAT])[FRAME_BYTES_MIN - 20 : -20]
    frame = sealed_by_hand(around + meta_of(999, b"what a newer version says", b"with payloads") + around, b"with payloads")
    assert opened(frame) == ([BEAT, BEAT], {FrameFault.UNKNOWN_KIND: 1})


@ANY_MESSAGE
def test_an_unknown_field_is_skipped(message: Addressed) -> None:
    """In every kind, alone or behind known ones: a newer version says more."""
    meta, bulk = SECRET.encoder(Seal.HEADS).encode(*message)
    more = field(777, b"news") + field(778, b"")
    grown = (len(meta) + len(more)).to_bytes(4, "little") + meta[4:] + more
    assert opened(sealed_by_hand(grown, bulk)) == ([message], {})


# -- impossible messages -------------------------------------------------------------------------------------------------


def fixed(kind: MessageKind, *values: int) -> bytes:
    """The fixed part."""
    return FIXED[kind].pack(*values)


def append_body(count: int, *fields: bytes, first: int = 1, commit: int = 0) -> bytes:
    """The body of an append."""
    return fixed(MessageKind.APPEND, first, 0, commit, TERM, count) + b"".join(fields)


def snapshot_body(*fields: bytes) -> bytes:
    """The body of a snapshot's manifest."""
    return fixed(MessageKind.INSTALL_SNAPSHOT, 9, 3) + b"".join(fields)


U32, U64 = (4).to_bytes(4, "little"), (4).to_bytes(8, "little")
HUGE = NUMBER_MAX + 1
IMPOSSIBLE: dict[str, tuple[int, bytes, bytes]] = {
    "no fixed part": (MessageKind.HEARTBEAT, b"", b""),
    "fixed part cut": (MessageKind.HEARTBEAT, bytes(15), b""),
    "commit too large": (MessageKind.HEARTBEAT, fixed(MessageKind.HEARTBEAT, HUGE, 1), b""),
    "field head cut": (MessageKind.TIMEOUT_NOW, bytes(7), b""),
    "field longer than its message": (MessageKind.TIMEOUT_NOW, field(777, b"abc", size=4), b""),
    "field of gigabytes": (MessageKind.TIMEOUT_NOW, field(777, b"", size=0xFFFFFFFF), b""),
    "field twice": (MessageKind.TIMEOUT_NOW, field(777, b"") * 2, b""),
    "campaign of no kind": (MessageKind.VOTE_REQUEST, fixed(MessageKind.VOTE_REQUEST, 9, 1, 1), b""),
    "vote of no kind": (MessageKind.VOTE_REPLY, fixed(MessageKind.VOTE_REPLY, 1, 2), b""),
    "campaign of a vote of no kind": (MessageKind.VOTE_REPLY, fixed(MessageKind.VOTE_REPLY, 0, 1), b""),
    "rejection of no kind": (MessageKind.APPEND_REPLY, fixed(MessageKind.APPEND_REPLY, 1, 255, 0, 0), b""),
    "first entry zero": (MessageKind.APPEND, append_body(0, first=0), b""),
    "payloads without entries": (MessageKind.APPEND, append_body(0), b"x"),
    "too many entries": (MessageKind.APPEND, append_body(ENTRIES_MAX + 1), b""),
    "entries of uneven size without sizes": (MessageKind.APPEND, append_body(2), b"xyz"),
    "sizes that end within a number": (MessageKind.APPEND, append_body(1, field(Tag.SIZES, b"abc")), b""),
    "fewer sizes than entries": (MessageKind.APPEND, append_body(2, field(Tag.SIZES, U32)), b"four"),
    "sizes beyond the payloads": (MessageKind.APPEND, append_body(1, field(Tag.SIZES, b"\xff" * 4)), b"four"),
    "more sizes than any message": (MessageKind.APPEND, append_body(1, field(Tag.SIZES, bytes(4 * (ENTRIES_MAX + 1)))), b""),
    "fewer kinds than entries": (MessageKind.APPEND, append_body(2, field(Tag.KINDS, b"\1")), b""),
    "entry of no kind": (MessageKind.APPEND, append_body(1, field(Tag.KINDS, b"\x63")), b""),
    "runs that end within one": (MessageKind.APPEND, append_body(1, field(Tag.TERM_RUNS, bytes(11))), b""),
    "run of no entries": (MessageKind.APPEND, append_body(1, field(Tag.TERM_RUNS, bytes(12))), b""),
    "run of gigabytes": (MessageKind.APPEND, append_body(1, field(Tag.TERM_RUNS, b"\xff" * 4 + bytes(8))), b""),
    "run of a term too large": (MessageKind.APPEND, append_body(4, field(Tag.TERM_RUNS, U32 + b"\xff" * 8)), b""),
    "runs of fewer entries": (MessageKind.APPEND, append_body(5, field(Tag.TERM_RUNS, U32 + U64)), b""),
    "append of too many": (MessageKind.APPEND, append_body(ENTRIES_MAX + 1), b""),
    "manifest without configuration": (MessageKind.INSTALL_SNAPSHOT, snapshot_body(), b""),
    "manifest of no configuration": (MessageKind.INSTALL_SNAPSHOT, snapshot_body(field(Tag.CONFIGURATION, b"[1")), b""),
    "read without contexts": (MessageKind.READ_REQUEST, b"", b""),
    "contexts that end within a number": (MessageKind.READ_REQUEST, field(Tag.CONTEXTS, bytes(9)), b""),
    "bundle without groups": (MessageKind.HEARTBEAT_REPLY_BUNDLE, field(Tag.TERMS, U64) + field(Tag.ROUNDS, U64), b""),
    "bundle of uneven columns": (
        MessageKind.HEARTBEAT_REPLY_BUNDLE,
        field(Tag.GROUPS, U32) + field(Tag.TERMS, U64) + field(Tag.ROUNDS, b""),
        b"",
    ),
    "bundle of terms too large": (
        MessageKind.HEARTBEAT_REPLY_BUNDLE,
        field(Tag.GROUPS, U32) + field(Tag.TERMS, b"\xff" * 8) + field(Tag.ROUNDS, U64),
        b"",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_message_is_dropped_and_counted(name: str) -> None:
    """It is authentic, so the peer has a defect; what else its frame says is still taken."""
    kind, body, bulk = IMPOSSIBLE[name]
    beat = one_frame([BEAT])[FRAME_BYTES_MIN - 20 : -20]
    assert opened(sealed_by_hand(beat + meta_of(kind, body, bulk) + beat, bulk)) == ([BEAT, BEAT], {FrameFault.MALFORMED: 1})


def test_a_term_that_no_election_reaches_is_impossible() -> None:
    """A term near the end of 64 bits could never be answered by a higher one."""
    frame = sealed_by_hand(meta_of(MessageKind.TIMEOUT_NOW, b"", term=HUGE))
    assert opened(frame) == ([], {FrameFault.MALFORMED: 1})


@pytest.mark.parametrize(
    "meta",
    [
        bytes(HEAD.size - 1),
        HEAD.pack(HEAD.size - 1, 0, 0, MessageKind.TIMEOUT_NOW, GROUP, TERM),
        HEAD.pack(HEAD.size + 1, 0, 0, MessageKind.TIMEOUT_NOW, GROUP, TERM),
        HEAD.pack(0xFFFFFFFF, 0, 0, MessageKind.TIMEOUT_NOW, GROUP, TERM),
        HEAD.pack(HEAD.size, 1, 0, MessageKind.TIMEOUT_NOW, GROUP, TERM),
        HEAD.pack(HEAD.size, 0xFFFFFFFF, 0, MessageKind.TIMEOUT_NOW, GROUP, TERM),
    ],
)
def test_parts_that_do_not_add_up_refuse_the_frame(meta: bytes) -> None:
    """Where one message ends is where the next one begins, so nothing of it can be believed."""
    assert fault_of(sealed_by_hand(meta)) is FrameFault.LENGTH


def test_bytes_behind_the_last_payload_refuse_the_frame() -> None:
    """They belong to no message."""
    assert fault_of(sealed_by_hand(meta_of(MessageKind.TIMEOUT_NOW, b""), b"more")) is FrameFault.LENGTH


# -- limits --------------------------------------------------------------------------------------------------------------


def test_messages_beyond_one_frame_go_into_the_next() -> None:
    """In order, whether the bytes or the number is the limit."""
    large = [(GROUP, append([bytes(FRAME_BYTES_MAX // 3)], first=number)) for number in (1, 2, 3, 4)]
    sealer, opener = FrameSealer(LINK_HEADS, SECRET, SECRET.encoder(Seal.HEADS)), Opener(LINK_HEADS, SECRET)
    frames = sealer.seal(large)
    assert [len(opener.open(frame)) for frame in frames] == [2, 2]
    assert max(map(len, frames)) <= FRAME_BYTES_MAX
    assert [len(opener.open(frame)) for frame in sealer.seal([BEAT] * (MESSAGES_MAX + 1))] == [MESSAGES_MAX, 1]
    half = ENTRIES_MAX // 2
    empty: list[Addressed] = [(GROUP, append([b""] * count, first=1)) for count in (half, half, 1, ENTRIES_MAX)]
    assert [len(opener.open(frame)) for frame in sealer.seal([*empty, BEAT])] == [2, 1, 2], "entries may be empty"
    assert sealer.seal([]) == []


@pytest.mark.parametrize(
    "message",
    [
        append([bytes(FRAME_BYTES_MAX)]),
        append([b""] * (ENTRIES_MAX + 1)),
    ],
    ids=["bytes", "entries"],
)
def test_a_message_that_no_peer_would_take_is_not_sent(message: Append) -> None:
    """It is our own limit that is set too high; no sequence is used up by it."""
    sealer, opener = FrameSealer(LINK_HEADS, SECRET, SECRET.encoder(Seal.HEADS)), Opener(LINK_HEADS, SECRET)
    with pytest.raises(MessageTooLarge):
        sealer.seal([BEAT, (GROUP, message)])
    assert [opener.open(frame) for frame in sealer.seal([BEAT])] == [[BEAT]]


def test_messages_beyond_the_limit_refuse_their_frame() -> None:
    """No program sends them, and each makes an object."""
    beat = meta_of(MessageKind.TIMEOUT_NOW, b"")
    assert fault_of(sealed_by_hand(beat * (MESSAGES_MAX + 1))) is FrameFault.LENGTH


def test_message_without_entries_passes_beside_one_with_too_many() -> None:
    """A limit of entries leaves out appends alone."""
    beat, full = meta_of(MessageKind.TIMEOUT_NOW, b""), meta_of(MessageKind.APPEND, append_body(ENTRIES_MAX))
    opened = Opener(LINK_HEADS, SECRET).open(sealed_by_hand(full * 2 + beat))
    assert [message.kind for _, message in opened] == [MessageKind.APPEND, MessageKind.TIMEOUT_NOW]


def test_a_message_for_another_node_is_not_sent() -> None:
    """A mistake of the caller: on this link it would be taken for this receiver's."""
    with pytest.raises(ValueError, match="on the link"):
        FrameSealer(LINK_HEADS, SECRET, SECRET.encoder(Seal.HEADS)).seal([(GROUP, Heartbeat(ME, THIRD, TERM, Index(0), 0))])


# -- garbage -------------------------------------------------------------------------------------------------------------


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Flips, a cut, a repeated stretch, a number at its end."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(out) + 1)
        way = chance.randrange(4)
        if way == 0:
            out[at : at + 1] = chance.randbytes(1)
        elif way == 1:
            del out[at : at + chance.randrange(9)]
        elif way == 2:
            out[at:at] = out[at : at + chance.randrange(40)]
        else:
            out[at : at + 4] = b"\xff" * 4
    return bytes(out)


def fuzz(seed: int, rounds: int) -> int:
    """Garbage, damaged frames, and damaged messages under the right seal. Returns how many messages were still understood."""
    chance = random.Random(seed)
    encoder = SECRET.encoder(Seal.HEADS)
    understood = 0
    attempts: list[Callable[[bytes, bytes], bytes]] = [
        lambda _meta, _bulk: chance.randbytes(chance.randrange(300)),
        lambda meta, bulk: mutated(sealed_by_hand(meta, bulk), chance),
        lambda meta, bulk: sealed_by_hand(mutated(meta, chance), bulk),
        lambda meta, bulk: sealed_by_hand(meta[:28] + mutated(meta[28:] + b"?", chance)[: len(meta) - 28], bulk),
    ]
    for _ in range(rounds):
        meta, bulk = encoder.encode(*chance.choice(MESSAGES))
        frame = chance.choice(attempts)(meta, bulk)
        opener = Opener(LINK_HEADS, SECRET)
        with suppress(BadFrame):
            understood += len(opener.open(frame))
        with suppress(BadFrame):
            assert all(len(part) <= HELLO_BYTES_MAX for part in FrameCutter().feed(frame))
        with suppress(BadFrame):
            decode_hello(frame, secret=SECRET, cluster=CLUSTER, receiver=PEER)
    return understood


@pytest.mark.slow
def test_garbage_is_refused_or_understood_and_nothing_else() -> None:
    """No other exception, whatever comes. A failure repeats with the seed."""
    assert fuzz(seed=1, rounds=3000) > 100


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_refused_or_understood_for_minutes(seed: int) -> None:
    """The same with more rounds."""
    assert fuzz(seed=100 + seed, rounds=100_000) > 1000


def test_a_frame_makes_no_more_than_a_small_multiple_of_its_size() -> None:
    """Counts that claim millions allocate nothing; the most that a short message can make are empty entries, to their limit."""
    bodies = [append_body(ENTRIES_MAX), append_body(0xFFFFFFFF), append_body(9, field(Tag.TERM_RUNS, b"\xff" * 12))]
    frames = [sealed_by_hand(meta_of(MessageKind.APPEND, body)) for body in bodies]
    frames.append(sealed_by_hand(meta_of(MessageKind.APPEND, append_body(ENTRIES_MAX)) * 1000))
    frames.append(sealed_by_hand(meta_of(MessageKind.READ_REQUEST, FIELD.pack(Tag.CONTEXTS, 0x7FFFFFFF))))
    opener = Opener(LINK_HEADS, SECRET)
    tracemalloc.start()
    try:
        for frame in frames:
            opener._sequence = 0
            opener.open(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * ENTRIES_MAX


def test_a_reply_is_a_hundred_bytes_or_so() -> None:
    """What a heartbeat or an acknowledgement costs on the network."""
    reply: Addressed = (PartitionId(1), AppendReply(ME, PEER, TERM, Index(9)))
    assert len(one_frame([reply])) < 160
