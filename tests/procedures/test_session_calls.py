"""The bytes that name a call of a session."""

from __future__ import annotations

from procedures.idempotency.session_calls import ENDED, NAME_BYTES, SENT, call_names, sent_name, split_names

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16


def test_what_is_sent_holds_the_name() -> None:
    """Session and number come first, the floor is left out of the name."""
    sent = [sent_name(ONE, 7, 3), sent_name(TWO, ENDED - 1, 0)]
    names = [each[:NAME_BYTES] for each in sent]
    assert [SENT.unpack(each) for each in sent] == [(ONE, 7, 3), (TWO, ENDED - 1, 0)]
    assert split_names(names) == ((ONE, TWO), (7, ENDED - 1))
    assert call_names([(ONE, 7), (TWO, ENDED - 1)]) == names
    assert split_names(()) == ((), ())
