"""The book of peers: what is pinned stays, what is refused is named, and nothing counts before it is durable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from cmdlog.cluster.transport.peer_book import (
    FORMER_MAX,
    PeerBook,
    PeerRecord,
    PeerRefused,
    begin_book,
    newer_records,
    read_peers,
)
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart, RefusalReason
from cmdlog.raft.wire.secure_frames import EARLIER_MAX, Peer
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, WalError, Wedged
from cmdlog.wal.format.checked_json import encode_checked
from tests.wal.sim.simfiles import Fault, SimCrash, SimFiles

ME = Identity(bytes(range(16)), 1, b"life-of1")
TWO = NodeId(2)
FIRST, SECOND, THIRD = Peer(TWO, b"life-one"), Peer(TWO, b"life-two"), Peer(TWO, b"lifethre")
START, NEXT = ProcessStart(4, b"process4"), ProcessStart(5, b"process5")
PATH = "/cluster/peers.json"


def after_cut(files: SimFiles) -> SimFiles:
    """The disk after a power cut that keeps only what was synced."""
    return files.power_cut(random.Random(0), "none")


def reopened(files: SimFiles, identity: Identity = ME) -> PeerBook:
    """After a power cut."""
    return PeerBook.open(after_cut(files), "/", identity)


def refusal(call: Callable[[], object]) -> RefusalReason:
    """Why a peer was refused."""
    with pytest.raises(PeerRefused) as refused:
        call()
    assert refused.value.kind == refused.value.reason.name.lower()
    return refused.value.reason


def test_the_first_incarnation_is_pinned_for_good() -> None:
    """Over power cuts, and again by the same one."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    book.pin(FIRST)
    book.pin(FIRST)
    book = reopened(files)
    assert book.records[TWO].incarnation == FIRST.incarnation
    assert refusal(lambda: book.pin(SECOND)) is RefusalReason.UNKNOWN_INCARNATION
    assert refusal(lambda: book.acquaint(SECOND, START)) is RefusalReason.UNKNOWN_INCARNATION
    assert book.confirmed == frozenset()


def test_a_confirmation_is_kept() -> None:
    """It comes with the peer's start, and is new once."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    book.pin(FIRST)
    assert book.acquaint(FIRST, START)
    assert not book.acquaint(FIRST, NEXT)
    book = reopened(files)
    assert book.confirmed == {TWO}
    assert book.records[TWO].start == NEXT


def test_an_admitted_incarnation_takes_the_place_of_the_pinned_one() -> None:
    """It has to confirm again; the one before is stale from then on, and never comes back."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    book.acquaint(FIRST, START)
    book.admit(TWO, SECOND.incarnation)
    book.admit(TWO, SECOND.incarnation)
    book = reopened(files)
    assert book.confirmed == frozenset()
    assert refusal(lambda: book.pin(FIRST)) is RefusalReason.STALE_INCARNATION
    assert refusal(lambda: book.pin(THIRD)) is RefusalReason.UNKNOWN_INCARNATION
    assert book.acquaint(SECOND, ProcessStart(1, b"process1"))  # another disk counts from the beginning
    with pytest.raises(ValueError, match="never comes back"):
        book.admit(TWO, FIRST.incarnation)


def test_a_node_that_was_never_met_can_be_admitted() -> None:
    """The cluster knows its incarnation before it calls."""
    book = PeerBook.open(SimFiles(), "/", ME)
    book.admit(TWO, SECOND.incarnation)
    assert refusal(lambda: book.pin(FIRST)) is RefusalReason.UNKNOWN_INCARNATION
    book.pin(SECOND)


def test_former_incarnations_are_bounded() -> None:
    """The newest are known by name."""
    book = PeerBook.open(SimFiles(), "/", ME)
    for number in range(FORMER_MAX + 5):
        book.admit(TWO, b"life%4d" % number)
    assert len(book.records[TWO].former) == FORMER_MAX


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (ProcessStart(4, b"another!"), RefusalReason.DUPLICATE),
        (ProcessStart(3, b"process3"), RefusalReason.EARLIER_START),
        (ProcessStart(3, b"process4"), RefusalReason.EARLIER_START),
    ],
)
def test_a_copy_is_known_by_its_start(start: ProcessStart, reason: RefusalReason) -> None:
    """The same number from another process, or a lower one, is another directory with the same identity."""
    files = SimFiles()
    PeerBook.open(files, "/", ME).acquaint(FIRST, START)
    book = reopened(files)
    assert refusal(lambda: book.check(FIRST, start)) is reason
    assert refusal(lambda: book.acquaint(FIRST, start)) is reason
    book.check(FIRST, START)
    book.check(FIRST, NEXT)


def test_a_later_start_that_a_peer_has_met_is_known_until_it_takes_this_one() -> None:
    """Over restarts. That the peer calls says nothing: it has judged the incarnation alone by then."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    book.note_later(TWO)
    assert book.records == {}
    book.acquaint(FIRST, START)
    book.note_later(TWO)
    book = reopened(files)
    assert book.records[TWO].met_later
    assert not book.met[TWO].met_later
    assert not book.records[TWO].newer(book.records[TWO]).met_later
    book.acquaint(FIRST, START)
    assert book.records[TWO].met_later
    book.acquaint(FIRST, START, takes_us=True)
    assert not book.records[TWO].met_later


def test_every_start_of_a_directory_has_another_number() -> None:
    """Also when the power goes right after it."""
    files, starts = SimFiles(), list[ProcessStart]()
    for _ in range(4):
        starts.append(PeerBook.open(files, "/", ME).start)
        files = after_cut(files)
    assert [start.number for start in starts] == [1, 2, 3, 4]
    assert len({start.process for start in starts}) == 4


def test_an_old_copy_never_counts_further_than_what_was_met() -> None:
    """However often it is started again; the directory of which it is a copy goes on."""
    peer = Identity(ME.cluster_id, TWO, FIRST.incarnation)
    files = SimFiles()
    PeerBook.open(files, "/", peer)
    copy = files.kill()
    met = PeerBook.open(SimFiles(), "/", ME)
    met.acquaint(FIRST, PeerBook.open(files, "/", peer).start)
    for _ in range(5):
        start = PeerBook.open(copy, "/", peer).start
        assert refusal(lambda: met.acquaint(FIRST, start)) is RefusalReason.DUPLICATE  # noqa: B023
    later = [PeerBook.open(files, "/", peer).start for _ in range(EARLIER_MAX)][-1]
    met.check(FIRST, later)
    assert later.earlier[0] == met.records[TWO].start.process  # type: ignore[union-attr]
    met.acquaint(FIRST, later)
    assert met.records[TWO].start.earlier == ()  # type: ignore[union-attr]


def test_a_start_that_says_nothing_of_the_one_that_was_met_is_taken() -> None:
    """It was started very often meanwhile: a hello names only so many starts."""
    book = PeerBook.open(SimFiles(), "/", ME)
    book.acquaint(FIRST, START)
    book.acquaint(FIRST, ProcessStart(6, b"process6"))
    book.acquaint(FIRST, ProcessStart(8, b"process8", (b"another!",)))


def test_the_starts_of_a_directory_are_named_without_a_gap() -> None:
    """As many as a hello holds."""
    files, starts = SimFiles(), list[ProcessStart]()
    for _ in range(EARLIER_MAX + 2):
        starts.append(PeerBook.open(files, "/", ME).start)
    assert starts[0].earlier == ()
    assert starts[-1].earlier == tuple(start.process for start in starts[1:-1])
    assert [starts[-1].process_of(number) for number in (1, 2, EARLIER_MAX + 2, EARLIER_MAX + 3)] == [
        None, starts[1].process, starts[-1].process, None,
    ]  # fmt: skip


def test_a_book_that_begins_with_what_another_has_met_refuses_what_that_refuses() -> None:
    """Also that book's own node. The disk itself is met by nobody, and its first start is the first."""
    book = PeerBook.open(SimFiles(), "/", ME)
    book.acquaint(FIRST, NEXT)
    made, files = Identity(ME.cluster_id, 3, b"lifethre"), SimFiles()
    begin_book(files, "/", made, {**book.met, NodeId(3): PeerRecord(b"an older")})
    copied = reopened(files, made)
    assert (copied.start.number, copied.start.earlier, copied.confirmed) == (1, (), frozenset())
    assert refusal(lambda: copied.check(FIRST, START)) is RefusalReason.EARLIER_START
    assert refusal(lambda: copied.check(book.me, ProcessStart(1, b"another!"))) is RefusalReason.DUPLICATE
    copied.check(book.me, book.start)
    assert NodeId(3) not in copied.records


def test_a_book_is_read_where_nobody_runs_its_directory() -> None:
    """And where there is none, nothing is known."""
    files = SimFiles()
    assert read_peers(files, "/", ME) == {}
    PeerBook.open(files, "/", ME).acquaint(FIRST, START)
    assert read_peers(files, "/", ME) == {TWO: PeerRecord(FIRST.incarnation, confirmed=True, start=START)}


def forget(value: dict[str, Any], *names: str) -> None:
    """As a program writes it that does not know these."""
    for name in names:
        del value[name]


def test_an_adopted_directory_is_confirmed_by_nobody() -> None:
    """Its peers have pinned the life before; what it has pinned of them stays."""
    files = SimFiles()
    PeerBook.open(files, "/", ME).acquaint(FIRST, START)
    book = reopened(files, ME.succeeded())
    assert book.confirmed == frozenset()
    assert book.records[TWO].incarnation == FIRST.incarnation


# -- the file ------------------------------------------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], None], *, checksum: bool = True) -> SimFiles:
    """A disk whose book was changed."""
    files = SimFiles()
    PeerBook.open(files, "/", ME).acquaint(FIRST, START)
    value = orjson.loads(files.read_file(PATH))
    sum_ = value.pop("checksum")
    change(value)
    files.write_file_atomic(PATH, encode_checked(value) if checksum else orjson.dumps({**value, "checksum": sum_}))
    return files


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (edited(lambda value: value.update(starts=0), checksum=False), Corrupt),
        (edited(lambda value: value.update(format=2)), NewerFormat),
        (edited(lambda value: value.update(node_id=3)), Foreign),
        (edited(lambda value: value.update(incarnation="00" * 8)), Foreign),
    ],
    ids=["changed", "newer", "another node's", "another life's"],
)
def test_a_book_that_is_not_ours_is_refused(files: SimFiles, error: type[WalError]) -> None:
    """It would confirm what nobody has confirmed."""
    with pytest.raises(error):
        PeerBook.open(files, "/", ME)


def test_a_torn_book_is_corrupt() -> None:
    """It is written atomically, so a part of one is damage."""
    files = SimFiles()
    PeerBook.open(files, "/", ME)
    files.write_file_atomic(PATH, b'{"format": 1')
    with pytest.raises(Corrupt, match="JSON"):
        PeerBook.open(files, "/", ME)


def test_a_crash_at_any_operation_keeps_what_was_promised() -> None:
    """Whatever `pin`, `acquaint` and `admit` returned is there after it; and the number of starts never falls."""
    count = SimFiles()
    story(count, [])
    for stop in range(1, len(count.trace) + 1):
        files, done = SimFiles(), list[str]()
        files.crash_at(stop)
        with pytest.raises(SimCrash):
            story(files, done)
        book = reopened(files)
        assert book.start.number > ("open" in done)
        record = book.records.get(TWO)
        if "admit" in done:
            assert record is not None
            assert (record.incarnation, record.former) == (SECOND.incarnation, (FIRST.incarnation,))
        elif "acquaint" in done:
            assert record is not None
            assert record.confirmed or record.incarnation == SECOND.incarnation
        elif "pin" in done:
            assert record is not None


def story(files: SimFiles, done: list[str]) -> None:
    """Every change once; what returned is in `done`."""
    book = PeerBook.open(files, "/", ME)
    done.append("open")
    for name, call in (
        ("pin", lambda: book.pin(FIRST)),
        ("acquaint", lambda: book.acquaint(FIRST, START)),
        ("admit", lambda: book.admit(TWO, SECOND.incarnation)),
    ):
        call()
        done.append(name)


def test_a_failed_sync_wedges_the_book() -> None:
    """Nothing is pinned, and no later write is believed."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fsync"}))
    with pytest.raises(WalError):
        book.pin(FIRST)
    assert book.records == {}
    with pytest.raises(Wedged):
        book.pin(FIRST)


def test_a_full_disk_changes_nothing() -> None:
    """When there is space again, the peer is pinned."""
    files = SimFiles()
    book = PeerBook.open(files, "/", ME)
    capacity, files.capacity_bytes = files.capacity_bytes, 0
    with pytest.raises(WalError):
        book.pin(FIRST)
    assert book.records == {}
    files.capacity_bytes = capacity
    book.pin(FIRST)
    assert book.records[TWO].incarnation == FIRST.incarnation


# -- two books -----------------------------------------------------------------------------------------------------------

LIFE, LATER = FIRST.incarnation, SECOND.incarnation


@pytest.mark.parametrize(
    "record", [PeerRecord(LIFE), PeerRecord(LATER, confirmed=True, start=START, former=(LIFE,))], ids=["pinned", "met"]
)
def test_a_record_comes_as_it_was(record: PeerRecord) -> None:
    """Through JSON and back."""
    assert PeerRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "changed",
    [
        {"incarnation": "6c"}, {"former": ["6c"]}, {"start": [4]}, {"start": [-1, START.process.hex()]}, {"start": [4, "00"]},
        {"start": ["4", START.process.hex()]}, {"incarnation": 7},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(changed: dict[str, Any]) -> None:
    """It may come from another node."""
    with pytest.raises((TypeError, ValueError)):
        PeerRecord.from_json({**PeerRecord(LIFE, start=START).to_json(), **changed})


@pytest.mark.parametrize(
    ("ours", "theirs", "known"),
    [
        (PeerRecord(LIFE, start=START), PeerRecord(LIFE, start=NEXT), PeerRecord(LIFE, start=NEXT)),
        (PeerRecord(LIFE, start=NEXT), PeerRecord(LIFE, start=START), PeerRecord(LIFE, start=NEXT)),
        (PeerRecord(LIFE), PeerRecord(LIFE, start=START), PeerRecord(LIFE, start=START)),
        (PeerRecord(LIFE, start=START), PeerRecord(LIFE), PeerRecord(LIFE, start=START)),
        (PeerRecord(LIFE, start=NEXT), PeerRecord(LATER, former=(LIFE,)), PeerRecord(LATER, former=(LIFE,))),
        (PeerRecord(LATER, former=(LIFE,)), PeerRecord(LIFE, start=NEXT), PeerRecord(LATER, former=(LIFE,))),
        (PeerRecord(LIFE, start=START), PeerRecord(LATER, start=NEXT), PeerRecord(LIFE, start=START)),
        (
            PeerRecord(LIFE, former=(b"z-life-z",)),
            PeerRecord(LIFE, former=(LATER,)),
            PeerRecord(LIFE, former=(LATER, b"z-life-z")),
        ),
    ],
    ids=["later start", "earlier start", "no start", "no other start", "later life", "earlier life", "other life", "former"],
)
def test_the_newer_of_two_records_counts(ours: PeerRecord, theirs: PeerRecord, known: PeerRecord) -> None:
    """A start of another life says nothing of this one. Of lives without an order ours is kept."""
    assert ours.newer(theirs) == known


def test_two_processes_of_one_start_are_two_copies_of_which_ours_counts() -> None:
    """As a peer that has met one refuses the other."""
    other = ProcessStart(4, b"another!")
    found = PeerRecord(LIFE, start=START).newer(PeerRecord(LIFE, start=other)).start
    assert found is not None
    assert found.process == START.process


def test_nobody_has_confirmed_what_another_book_says() -> None:
    """The peer has pinned the life of that book's own node."""
    confirmed = PeerRecord(LIFE, confirmed=True)
    assert not confirmed.newer(confirmed).confirmed


def test_former_lives_of_both_books_are_bounded() -> None:
    """The newest of the record that counts stay."""
    many = tuple(b"life%4d" % number for number in range(FORMER_MAX))
    found = PeerRecord(LIFE, former=many).newer(PeerRecord(LIFE, former=(LATER,)))
    assert found.former == many


def test_nodes_that_one_book_knows_are_known() -> None:
    """Ascending."""
    two, three = PeerRecord(LATER), PeerRecord(LIFE, start=START)
    assert list(newer_records({NodeId(3): three}, {TWO: two}).items()) == [(2, two), (3, three)]
