"""The bytes that name a call of a session."""

from __future__ import annotations

from procedures.idempotency.session_calls import ENDED, NAME_BYTES, SENT, NumberedNames, call_names, sent_name, split_names

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16


def test_what_is_sent_holds_the_name() -> None:
    """Session and number come first, the floor is left out of the name."""
    sent = [sent_name(ONE, 7, 3), sent_name(TWO, ENDED - 1, 0)]
    names = [each[:NAME_BYTES] for each in sent]
    assert [SENT.unpack(each) for each in sent] == [(ONE, 7, 3), (TWO, ENDED - 1, 0)]
    assert split_names(names) == ((ONE, TWO), (7, ENDED - 1))
    assert call_names([(ONE, 7), (TWO, ENDED - 1)]) == names
    assert split_names(()) == ((), ())


def test_names_in_columns_are_those_in_a_list() -> None:
    """Each, all, and a part of them; and their columns are what `split_names` finds."""
    calls = [(ONE, 7), (TWO, ENDED - 1), (ONE, 8)]
    names, listed = NumberedNames(*zip(*calls, strict=True)), call_names(calls)
    assert (len(names), list(names), names[1], names[-1]) == (3, listed, listed[1], listed[-1])
    assert list(names[:2]) == listed[:2]
    assert split_names(names) == split_names(listed)
    assert listed[2] in names
    assert bytes(16) not in names
