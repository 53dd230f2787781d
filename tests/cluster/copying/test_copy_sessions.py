"""Copies under way: one of a node, so many at once, over once, and shown with what is left."""

from __future__ import annotations

import pytest

from cmdlog.cluster.copying.copy_sessions import ENDED_KEPT, SILENT_S, CopySession, CopySessions
from cmdlog.cluster.copying.copy_values import CopyRefused, RefusalCode
from cmdlog.cluster.copying.held_files import HeldFiles
from tests.cluster.copying.copykit import peer

LINK, OTHER = object(), object()


def session(number: int = 1, *, node: int = 2, life: bytes = b"new life", link: object = LINK, size: int = 1000) -> CopySession:
    """A copy that began at 0."""
    return CopySession(bytes([number]) * 16, peer(life, node), HeldFiles("."), size, 0.0, 0.0, link)


def table(*under_way: CopySession, copies_max: int = 2) -> CopySessions:
    """With these."""
    sessions = CopySessions(copies_max=copies_max)
    for one in under_way:
        sessions.add(one)
    return sessions


def code_of(refused: pytest.ExceptionInfo[CopyRefused]) -> str:
    """Why."""
    return refused.value.code


def test_copy_is_found_by_whichever_connection_its_recipient_has() -> None:
    """The newest one has it from then on."""
    one = session()
    sessions = table(one)
    assert sessions.find(one.copy, one.peer, OTHER, 5.0) is one
    assert (one.link, one.heard_s) == (OTHER, 5.0)
    sessions.leave(LINK)
    assert one.link is OTHER
    sessions.leave(OTHER)
    assert one.link is None


@pytest.mark.parametrize(("node", "life"), [(3, b"new life"), (2, b"old life")])
def test_copy_of_another_is_refused(node: int, life: bytes) -> None:
    """Of another node, or of another life of the same."""
    one = session()
    with pytest.raises(CopyRefused) as refused:
        table(one).find(one.copy, peer(life, node), LINK, 0.0)
    assert code_of(refused) == RefusalCode.WRONG_RECIPIENT


def test_life_that_copies_by_another_connection_is_refused_a_second_copy() -> None:
    """Two processes of one disk; a connection that is gone, or the same one, is replaced."""
    one = session()
    with pytest.raises(CopyRefused) as refused:
        table(one).check_room(one.peer, OTHER)
    assert code_of(refused) == RefusalCode.ALREADY_COPYING
    assert table(one).check_room(one.peer, LINK) == [one]
    one.link = None
    assert table(one).check_room(one.peer, OTHER) == [one]


def test_next_life_of_a_node_replaces_the_copy_of_the_last() -> None:
    """Whatever connection that one still has."""
    one = session()
    assert table(one).check_room(peer(b"next one"), OTHER) == [one]


def test_no_more_copies_than_allowed() -> None:
    """A copy that is replaced makes room for the new one."""
    one, two = session(1, node=2), session(2, node=3)
    sessions = table(one, two)
    with pytest.raises(CopyRefused, match="nodes 2, 3") as refused:
        sessions.check_room(peer(node=4), LINK)
    assert code_of(refused) == RefusalCode.BUSY
    assert sessions.check_room(two.peer, LINK) == [two]


def test_copy_is_over_once_and_says_why() -> None:
    """Afterwards a request gets the reason; much later, that it is unknown."""
    one = session()
    sessions = table(one)
    assert sessions.remove(one, RefusalCode.CANCELLED, "by an operator")
    assert not sessions.remove(one, RefusalCode.UNKNOWN_COPY, "silence")
    assert len(sessions) == 0
    with pytest.raises(CopyRefused, match="by an operator") as refused:
        sessions.find(one.copy, one.peer, LINK, 0.0)
    assert code_of(refused) == RefusalCode.CANCELLED
    for number in range(ENDED_KEPT):
        later = session(number + 2)
        sessions.add(later)
        sessions.remove(later, RefusalCode.CANCELLED, "")
    with pytest.raises(CopyRefused) as refused:
        sessions.find(one.copy, one.peer, LINK, 0.0)
    assert code_of(refused) == RefusalCode.UNKNOWN_COPY


def test_silent_copies_are_those_of_which_nothing_was_read() -> None:
    """For the whole time, not a moment less."""
    one = session()
    sessions = table(one)
    assert sessions.silent(SILENT_S) == []
    assert sessions.silent(SILENT_S + 0.1) == [one]
    one.note_sent(1, 30.0)
    assert sessions.silent(SILENT_S + 0.1) == []
    assert sessions.of_node(2) == sessions.all() == [one]
    assert sessions.of_node(3) == []


def test_status_says_how_much_is_left() -> None:
    """At the rate of the last seconds."""
    one = session(size=10_000)
    assert (one.status(0.0)["left_s"], one.status(0.0)["percent"]) == (None, 0.0)
    for second in range(1, 6):
        one.note_sent(1000, float(second))
    shown = one.status(5.0)
    assert (shown["node"], shown["bytes"], shown["sent_bytes"], shown["percent"]) == (2, 10_000, 5000, 50.0)
    assert (shown["rate"], shown["left_s"], shown["age_s"], shown["connected"]) == (1000, 5.0, 5.0, True)


def test_rate_is_that_of_the_last_seconds() -> None:
    """A slow beginning is forgotten, and a copy that rests gets slower."""
    one = session(size=1 << 20)
    one.note_sent(10, 50.0)
    for tenth in range(1, 101):
        one.note_sent(100, 50.0 + tenth / 10)
    assert one.rate(60.0) == pytest.approx(1000, rel=0.05)
    assert one.rate(70.0) < 600


def test_empty_copy_is_complete() -> None:
    """Nothing of nothing."""
    assert session(size=0).status(1.0)["percent"] == 100.0
