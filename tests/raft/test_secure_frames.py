"""The wire between nodes: what goes in comes out, and whatever is damaged, foreign, old or impossible does not."""

from __future__ import annotations

from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import (
    ENTRY_KINDS,
    MessageKind,
)
from cmdlog.raft.wire.layout import FIXED, HEAD, KEPT_BYTES_MAX, NUMBER_MAX, Addressed, BadFrame, FrameFault
from cmdlog.raft.wire.secure_frames import (
    EARLIER_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HELLO,
    HELLO_BYTES_MAX,
    LENGTH,
    LINK,
    MAC_BYTES,
    PROCESS_BYTES,
    FrameCutter,
    FrameSealer,
    Hello,
    Link,
    Opener,
    Peer,
    Seal,
    Secret,
    decode_hello,
    make_links,
)
from cmdlog.wal.ids import Index, PartitionId
from tests.raft.wirekit import (
    BEAT,
    CLUSTER,
    GROUP,
    LINK_HEADS,
    LINK_WHOLE,
    ME,
    MESSAGES,
    PEER,
    SECRET,
    THIRD,
    append,
    fault_of,
    meta_of,
    one_frame,
    opened,
    sealed_by_hand,
)

LINKS = pytest.mark.parametrize("link", [LINK_HEADS, LINK_WHOLE], ids=["heads", "whole"])
ANY_MESSAGE = pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{type(m[1]).__name__}")

# -- round trips ---------------------------------------------------------------------------------------------------------


@LINKS
@ANY_MESSAGE
def test_every_kind_comes_out_as_it_went_in(message: Addressed, link: Link) -> None:
    """The same values, of the same types, with either seal."""
    (got,), counted = opened(one_frame([message], link), link)
    assert got == message
    assert repr(got) == repr(message)
    assert not counted


@LINKS
def test_many_messages_share_a_frame(link: Link) -> None:
    """All of them, in their order."""
    assert opened(one_frame(MESSAGES, link), link) == (MESSAGES, {})


def test_the_list_of_messages_has_every_kind() -> None:
    """A kind that is added has to be added to these tests."""
    assert {message.kind for _, message in MESSAGES} == set(MessageKind)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.binary(max_size=9), st.sampled_from(ENTRY_KINDS), st.integers(0, 3)), max_size=12),
    st.integers(1, NUMBER_MAX),
    st.integers(0, NUMBER_MAX),
    st.sampled_from([LINK_HEADS, LINK_WHOLE]),
)
@settings(deadline=None)
def test_any_columns_come_out_as_they_went_in(rows: list[tuple[bytes, int, int]], first: int, commit: int, link: Link) -> None:
    """Whatever sizes, kinds and rising terms the entries have."""
    terms = sorted(term for _, _, term in rows)
    message = append([data for data, _, _ in rows], first=first, terms=terms, kinds=bytes(kind for _, kind, _ in rows))
    sent: Addressed = (GROUP, replace(message, commit=Index(commit)))
    assert opened(one_frame([sent], link), link) == ([sent], {})


def test_entries_are_joined_and_summed_once_for_all_followers() -> None:
    """The bytes for the second follower are the very object of the first one."""
    encoder = SECRET.encoder(Seal.WHOLE)
    sent = append([b"x" * 100] * 5)
    meta, bulk = encoder.encode(GROUP, sent)
    again, same = encoder.encode(GROUP, replace(sent, receiver=THIRD))
    assert same is bulk
    assert again == meta


def test_an_encoder_keeps_the_last_entries_of_a_group() -> None:
    """Entries that are encoded anew are not taken for the kept ones, and the older ones are let go."""
    encoder = SECRET.encoder(Seal.HEADS)
    for number in range(5):
        _, bulk = encoder.encode(GROUP, append([b"%d" % number]))
        assert bulk == b"%d" % number
        assert [columns.bulk for columns in encoder._kept.values()] == [bulk]
        assert encoder._kept_bytes == len(bulk)


def test_an_encoder_keeps_a_bounded_number_of_bytes() -> None:
    """Whatever the number of groups."""
    encoder = SECRET.encoder(Seal.HEADS)
    large = bytes(KEPT_BYTES_MAX // 4)
    for group in range(12):
        encoder.encode(PartitionId(group), append([large]))
        assert encoder._kept_bytes <= KEPT_BYTES_MAX
        assert sum(len(columns.bulk) for columns in encoder._kept.values()) == encoder._kept_bytes


# -- damage --------------------------------------------------------------------------------------------------------------


@LINKS
@ANY_MESSAGE
def test_every_truncation_is_refused(message: Addressed, link: Link) -> None:
    """Cut anywhere, also with a length that agrees with the cut."""
    frame = one_frame([message], link)
    for size in range(len(frame)):
        assert fault_of(frame[:size], link) is FrameFault.LENGTH
        with pytest.raises(BadFrame):
            Opener(link, SECRET).open(LENGTH.pack(size) + frame[4:size])


@pytest.mark.slow
@LINKS
def test_every_flipped_bit_is_refused(link: Link) -> None:
    """In the length, the head, the meta, the checksums, the MAC and the payloads."""
    frame = one_frame([BEAT, (GROUP, append([b"payload one", b"payload two", b"three"]))], link)
    opener = Opener(link, SECRET)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            opener.open(bytes(damaged))
    assert opener.open(frame)
    assert sum(opener.faults.values()) == 8 * len(frame)


def same_checksum(payload: bytes) -> bytes:
    """Other bytes with the same CRC-32C: the payload plus the generator polynomial."""
    bits = int.from_bytes(payload[:8], "little") ^ int(f"{0x11EDC6F41:033b}"[::-1], 2) << 3
    return bits.to_bytes(8, "little") + payload[8:]


def test_payloads_with_a_forged_checksum_are_refused_where_the_link_is_sealed_whole() -> None:
    """Who sits on an unprotected link can keep a checksum right; the digest needs the secret. TLS is what else would see it."""
    payload = b"pay 10 to alice"
    forged = same_checksum(payload)
    assert forged != payload
    assert google_crc32c.value(forged) == google_crc32c.value(payload)
    for link in (LINK_HEADS, LINK_WHOLE):
        frame = one_frame([(GROUP, append([payload]))], link)
        frame = frame.replace(payload, forged)
        if link.seal is Seal.WHOLE:
            assert fault_of(frame, link) is FrameFault.MAC
        else:
            assert opened(frame, link)[0] == [(GROUP, append([forged]))]


def test_a_link_sealed_whole_wants_a_digest() -> None:
    """A peer that leaves it out has not proved its payloads."""
    body = FIXED[MessageKind.APPEND].pack(1, 0, 0, 1, 1)
    assert fault_of(sealed_by_hand(meta_of(MessageKind.APPEND, body, b"x"), b"x", link=LINK_WHOLE), LINK_WHOLE) is FrameFault.MAC


def test_a_frame_that_is_refused_counts_for_nothing() -> None:
    """Neither is its sequence used up, nor is any message of it taken, wherever the damage is."""
    frame = one_frame([BEAT, (GROUP, append([b"payload"]))])
    opener = Opener(LINK_HEADS, SECRET)
    with pytest.raises(BadFrame):
        opener.open(frame[:-1] + b"?")
    assert len(opener.open(frame)) == 2


# -- foreign, old, repeated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"cluster": bytes(16)}, FrameFault.CLUSTER),
        ({"sender": Peer(THIRD, b"life-of1")}, FrameFault.SENDER),
        ({"sender": Peer(ME, b"life-of0")}, FrameFault.SENDER),
        ({"receiver": Peer(THIRD, b"life-of2")}, FrameFault.RECEIVER),
        ({"receiver": Peer(PEER, b"life-of0")}, FrameFault.RECEIVER),
        ({"session": b"earlier!"}, FrameFault.SESSION),
        ({"seal": Seal.WHOLE}, FrameFault.SESSION),
    ],
)
def test_a_frame_of_another_link_is_refused_by_name(change: dict[str, object], fault: FrameFault) -> None:
    """Another cluster, node, life of a disk, connection or seal, even with the same secret. A wiped disk is another life."""
    foreign = replace(LINK_HEADS, **change)  # type: ignore[arg-type]
    assert fault_of(sealed_by_hand(meta_of(MessageKind.TIMEOUT_NOW, b""), link=foreign)) is fault


def test_a_frame_without_the_secret_is_refused() -> None:
    """Everything else about it is right, checksums too."""
    stranger = Secret(b"another secret of 32 bytes......")
    (frame,) = FrameSealer(LINK_HEADS, stranger, stranger.encoder(Seal.HEADS)).seal([BEAT])
    assert fault_of(frame) is FrameFault.MAC


@pytest.mark.parametrize("name", ["sequence", "term", "group", "commit"])
def test_no_number_of_a_frame_can_be_replaced(name: str) -> None:
    """Sequence, term, group and whatever consensus decides by: with the checksum put right, the MAC still knows."""
    frame = bytearray(one_frame([BEAT]))
    meta_at = FRAME_BYTES_MIN - 20
    at = {"sequence": LENGTH.size + LINK.size, "term": meta_at + 20, "group": meta_at + 16, "commit": meta_at + HEAD.size}[name]
    frame[at] += 1
    crc_at = len(frame) - 20
    frame[crc_at : crc_at + 4] = google_crc32c.value(bytes(frame[:crc_at])).to_bytes(4, "little")
    assert fault_of(bytes(frame)) is FrameFault.MAC


def test_a_repeated_frame_is_refused() -> None:
    """At once, after others, and out of order."""
    sealer, opener = FrameSealer(LINK_HEADS, SECRET, SECRET.encoder(Seal.HEADS)), Opener(LINK_HEADS, SECRET)
    first, second, third = (frame for _ in range(3) for frame in sealer.seal([BEAT]))
    assert opener.open(first)
    assert opener.open(third)
    for old in (first, second, third):
        with pytest.raises(BadFrame) as refused:
            opener.open(old)
        assert refused.value.fault is FrameFault.SEQUENCE
    assert opener.faults[FrameFault.SEQUENCE] == 3


def test_a_frame_of_a_newer_layout_is_named() -> None:
    """Its checksum may be anywhere, so the version is told, not damage."""
    frame = bytearray(one_frame([BEAT]))
    frame[6] = 2
    assert fault_of(bytes(frame)) is FrameFault.VERSION
    frame[4:6] = b"HT"
    assert fault_of(bytes(frame)) is FrameFault.MAGIC


def test_a_short_secret_is_refused() -> None:
    """A guessable one protects nothing; and it is not shown in logs."""
    with pytest.raises(ValueError, match="16 to 64"):
        Secret(b"short")
    assert repr(SECRET) == "Secret()"


# -- the stream ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.integers(0, len(MESSAGES) - 1), max_size=5), st.data())
@settings(deadline=None)
def test_any_cut_gives_the_same_frames(chosen: list[int], data: st.DataObject) -> None:
    """However the stream comes in."""
    frames = [one_frame([MESSAGES[number]]) for number in chosen]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    cutter = FrameCutter()
    cutter.bytes_max = FRAME_BYTES_MAX
    pieces = [stream[low:high] for low, high in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [frame for piece in pieces for frame in cutter.feed(piece)] == frames


@pytest.mark.parametrize("size", [0, FRAME_BYTES_MIN - 1, HELLO_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_stranger_is_given_no_memory(size: int) -> None:
    """Before a peer has proved who it is, a frame is at most a hello; its length is judged before its bytes come."""
    cutter = FrameCutter()
    with pytest.raises(BadFrame) as refused:
        list(cutter.feed(LENGTH.pack(size)))
    assert refused.value.fault is FrameFault.LENGTH


# -- the beginning of a connection ---------------------------------------------------------------------------------------

CALL = Hello(CLUSTER, LINK_HEADS.sender, PEER, b"nonce of caller!", earlier=(b"process1", b"process2"))
ANSWER = Hello(CLUSTER, LINK_HEADS.receiver, ME, b"nonce of called!", echo=CALL.nonce)


def greeted(frame: bytes, *, receiver: NodeId = PEER, cluster: bytes = CLUSTER, echo: bytes = bytes(16)) -> Hello:
    """What is read from a hello."""
    return decode_hello(frame, secret=SECRET, cluster=cluster, receiver=receiver, echo=echo)


def test_two_hellos_make_the_links_of_both_directions() -> None:
    """Both ends compute the same, and frames of one direction are no frames of the other."""
    call = greeted(CALL.encode(SECRET))
    answer = greeted(ANSWER.encode(SECRET), receiver=ME, echo=CALL.nonce)
    assert (call, answer) == (CALL, ANSWER)
    there, back = make_links(call, answer, SECRET, Seal.WHOLE)
    assert (there.sender, there.receiver, back.sender, back.receiver) == (
        LINK_HEADS.sender,
        LINK_HEADS.receiver,
        LINK_HEADS.receiver,
        LINK_HEADS.sender,
    )
    assert opened(one_frame([BEAT], there), there)[0] == [BEAT]
    assert fault_of(one_frame([BEAT], there), back) is FrameFault.SENDER


def test_a_recorded_connection_cannot_be_played_again() -> None:
    """The caller's bytes, hello and all, are answered with a new number, and then its frames are of another session."""
    there, _ = make_links(CALL, ANSWER, SECRET, Seal.HEADS)
    recorded = one_frame([BEAT], there)
    again, _ = make_links(greeted(CALL.encode(SECRET)), replace(ANSWER, nonce=b"nonce of called?"), SECRET, Seal.HEADS)
    assert fault_of(recorded, again) is FrameFault.SESSION
    with pytest.raises(BadFrame) as refused:
        greeted(ANSWER.encode(SECRET), receiver=ME, echo=b"a later caller's")
    assert refused.value.fault is FrameFault.SESSION


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (replace(CALL, cluster=bytes(16)).encode(SECRET), FrameFault.CLUSTER),
        (replace(CALL, receiver=THIRD).encode(SECRET), FrameFault.RECEIVER),
        (replace(CALL, sender=Peer(PEER, b"life-of2")).encode(SECRET), FrameFault.RECEIVER),
        (CALL.encode(Secret(bytes(32))), FrameFault.MAC),
        (ANSWER.encode(SECRET), FrameFault.RECEIVER),
        (replace(CALL, echo=b"echo of nothing!").encode(SECRET), FrameFault.SESSION),
        (replace(CALL, version=0).encode(SECRET), FrameFault.VERSION),
        (one_frame([BEAT] * 12), FrameFault.MAGIC),
        (CALL.encode(SECRET)[:-1], FrameFault.LENGTH),
        (b"", FrameFault.LENGTH),
    ],
)
def test_a_hello_that_is_not_for_us_is_refused_by_name(frame: bytes, fault: FrameFault) -> None:
    """Another cluster, another node, our own one sent back to us, no secret, an answer to nothing."""
    with pytest.raises(BadFrame) as refused:
        greeted(frame)
    assert refused.value.fault is fault


def test_every_flipped_bit_of_a_hello_is_refused() -> None:
    """All of it is under its MAC."""
    frame = CALL.encode(SECRET)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            greeted(bytes(damaged))


def test_the_hello_of_a_newer_version_is_read() -> None:
    """It says a higher version and more than this program knows: so the newer node learns to speak the older one's."""
    newer = replace(CALL, version=2)
    longer = newer.encode(SECRET)[:-16] + b"more"
    longer = LENGTH.pack(len(longer) + 16) + longer[4:]
    mac = SECRET.mac(b"raft hello")
    mac.update(longer)
    assert greeted(longer + mac.digest()) == newer


def resealed(body: bytes) -> bytes:
    """A hello of these bytes, which has neither length nor MAC yet."""
    front = LENGTH.pack(LENGTH.size + len(body) + MAC_BYTES) + body
    mac = SECRET.mac(b"raft hello")
    mac.update(front)
    return front + mac.digest()


def test_a_hello_names_at_most_so_many_earlier_starts() -> None:
    """All of them come out; a count that the bytes cannot hold is refused."""
    many = replace(CALL, earlier=tuple(b"start%03d" % number for number in range(EARLIER_MAX)))
    assert greeted(many.encode(SECRET)) == many
    body = many.encode(SECRET)[LENGTH.size : -MAC_BYTES]
    at = HELLO.size - 2 - EARLIER_MAX * PROCESS_BYTES
    with pytest.raises(BadFrame) as refused:
        greeted(resealed(body[:at] + (EARLIER_MAX + 1).to_bytes(2, "little") + body[at + 2 :]))
    assert refused.value.fault is FrameFault.LENGTH
