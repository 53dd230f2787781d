"""What stands for an idempotency key, and how outcomes are packed: without a table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import NO_KEY, Fresh, key_fingerprint, key_time_ms
from procedures.idempotency.packed_outcomes import pack_fresh, unpack_outcome_at
from tests.procedures.sites import uuid7


@settings(max_examples=50, deadline=None)
@given(scope=st.text(max_size=20), text=st.text(max_size=40))
def test_fingerprints_are_never_empty_and_opaque_ones_say_so(scope: str, text: str) -> None:
    """Sixteen bytes, never all zeros; a key that is no UUIDv7 bears no time."""
    try:
        found = key_fingerprint(scope, text)
    except UnicodeEncodeError:
        return
    assert len(found) == 16
    assert found != NO_KEY
    assert key_time_ms(found) is None or "-7" in text


@given(milliseconds=st.integers(0, (1 << 43) - 1), tail=st.integers(0, (1 << 62) - 1))
def test_time_of_a_uuid7_is_in_its_fingerprint(milliseconds: int, tail: int) -> None:
    """The milliseconds of a UUIDv7 come out of its fingerprint, whatever its case."""
    text = uuid7(milliseconds, tail)
    assert key_time_ms(key_fingerprint("me", text)) == milliseconds
    assert key_time_ms(key_fingerprint("me", text.upper())) == milliseconds


def test_scopes_keep_keys_apart() -> None:
    """The same key of two credentials gives two fingerprints, and no join of scope and key is ambiguous."""
    assert key_fingerprint("a", "b") != key_fingerprint("b", "b")
    assert key_fingerprint("a", "bc") != key_fingerprint("ab", "c")


@given(outcomes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, (1 << 63) - 1), st.binary(max_size=50)), min_size=1))
def test_packed_outcomes_come_back(outcomes: list[tuple[int, int, bytes]]) -> None:
    """Every outcome of a packed row is found again at its position; a cut row is refused."""
    fresh = Fresh()
    for number, (status, txn_id, body) in enumerate(outcomes):
        fresh.add(b"%016d" % number, number * 7, status, txn_id, body)
    packed = pack_fresh(fresh)
    for number, (status, txn_id, body) in enumerate(outcomes):
        found = unpack_outcome_at(packed, number)
        assert (found.status, found.txn_id, found.body, found.request) == (status, txn_id, body, number * 7)
    with pytest.raises(StateRefused):
        unpack_outcome_at(packed[: 12 * len(outcomes)], 0)
