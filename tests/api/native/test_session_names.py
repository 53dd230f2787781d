"""The header of a session's call, read in C: whatever it reads, the Python beside it reads alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cmdlog.api.gate import session_numbers
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.session_numbers import named_call, session_fingerprint
from cmdlog.api.native import steps
from procedures.idempotency.session_calls import SENT

pytestmark = pytest.mark.skipif(steps is None, reason="no C compiler")

UUID = b"0190b6f1-0000-7000-8000-000000000000"
WINDOW = 16
KEPT = {UUID: session_fingerprint("scope", UUID)}
NUMBERS = st.integers(0, 40) | st.sampled_from([2**63, 10**18 - 1, 10**18, 2**64 - 1, 2**64, 10**20])


@contextmanager
def without_steps() -> Iterator[None]:
    """The Python alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_numbers, "steps", None)
        yield


def read_in_python(value: bytes) -> bytes | None:
    """What goes to the log; None: it is refused."""
    with without_steps():
        try:
            return named_call("scope", value, WINDOW)
        except Problem:
            return None


@given(NUMBERS, NUMBERS | st.none(), st.sampled_from([b"; ", b";", b";\t ", b" ; "]))
def test_usual_header_is_read_in_c(number: int, floor: int | None, gap: bytes) -> None:
    """Every one that the Python takes, unless its numbers are longer than any client's."""
    value = UUID + b"%bnumber=%d" % (gap, number) + (b"" if floor is None else b"%bfloor=%d" % (gap, floor))
    expected = read_in_python(value)
    found = steps.name_session_call(value, KEPT, WINDOW)
    assert found == (expected if expected is not None and max(number, floor or 0) < 10**18 else None)
    if found is not None:
        assert SENT.unpack(found) == (KEPT[UUID], number, floor or 0)


@given(st.binary(max_size=3), st.integers(0, 70), st.integers(0, 6))
@example(b"", 36, 0)
@example(b"\0", 37, 1)
def test_changed_header_is_read_alike_or_not_at_all(change: bytes, at: int, cut: int) -> None:
    """In C there is no refusal: what it does not know is left to the Python."""
    usual = UUID + b"; number=17; floor=12"
    value = usual[:at] + change + usual[at + cut :]
    found = steps.name_session_call(value, KEPT, WINDOW)
    assert found is None or found == read_in_python(value)


def test_session_is_read_in_c_once_it_is_known() -> None:
    """The first call of a session, and one of other credentials, is read by the Python: with one result."""
    value = UUID + b"; number=3"
    assert steps.name_session_call(value, {}, WINDOW) is None
    assert steps.name_session_call(b"", KEPT, WINDOW) is None
    session_numbers._kept.clear()
    first = named_call("scope", value, WINDOW)
    assert session_numbers._kept == {"scope": KEPT}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_numbers, "_parts_of", None)
        assert named_call("scope", value, WINDOW) == first
    assert named_call("other", value, WINDOW) != first


def test_kept_fingerprints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the callers' credentials are."""
    monkeypatch.setattr(session_numbers, "FINGERPRINTS_MAX", 5)
    for number in range(40):
        assert session_fingerprint(f"scope{number % 3}", b"%08x-0000-7000-8000-000000000000" % number)
        assert sum(map(len, session_numbers._kept.values())) <= 5
    assert session_fingerprint("scope", b"no UUID") == b""
    session_numbers._kept.clear()
