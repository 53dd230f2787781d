"""The caller's end of a link: every call is settled once, whatever happens to the connection."""

from __future__ import annotations

import pytest

from cmdlog.cluster.forwarding.call_link import FRAME_AIM_BYTES, LinkOver, WindowFull
from cmdlog.cluster.forwarding.call_rows import EARLY_WINDOW, AnswerRow, CallFrameKind, CallWindow, encode_answers
from tests.cluster.forwarding.callkit import OTHER, CallWire, Placer, a_key, calls


def test_calls_are_placed_and_answered() -> None:
    """With every field as it was; calls of one turn share a frame, their answers too, and a name is said once."""
    wire = CallWire()
    wire.open()
    wire.link.add(calls("a", "b", key=(key := a_key(1)), txn=99, slot=7, promise=1))
    wire.link.add(calls("c", name=OTHER))
    wire.carry()
    assert len(wire.placer.batches) == len(wire.seen) == 1
    first, _, other = zip(*wire.placer.batches[0], strict=True)
    assert first == (0, 7, 1, key, 99, b"a")
    assert other[0] == 1
    wire.link.add(calls("d", name=OTHER))
    wire.carry()
    assert [name.name for name in wire.placer.names] == [b"bump", b"other"]
    assert wire.answers.settled == {text: [("answered", (0, 7, text.encode(), b""))] for text in "abcd"}
    assert wire.link.under_way == wire.receiver.under_way == 0


def test_calls_wait_for_the_connection() -> None:
    """What is added before it is ready leaves with the first frame."""
    wire = CallWire()
    wire.link.add(calls("a"))
    wire.link.add(calls("b"))
    assert not wire.due
    wire.open()
    wire.carry()
    assert wire.placer.placed == [b"a", b"b"]
    assert set(wire.answers.settled) == {"a", "b"}


def test_link_that_is_over_says_what_was_sent() -> None:
    """Sent: it may have been placed. Not sent: it was not. A later call is refused, and nobody is told twice."""
    wire = CallWire(placer=Placer(waits=True))
    wire.open()
    wire.link.add(calls("answered"))
    wire.carry()
    wire.placer.release()
    wire.carry()
    wire.link.add(calls("placed"))
    wire.carry()
    wire.link.add(calls("written"))
    wire.run_due()
    wire.link.add(calls("unsent"))
    wire.cut()
    wire.run_due()
    assert {done: [kind for kind, _ in settled] for done, settled in wire.answers.settled.items()} == {
        "answered": ["answered"], "placed": ["lost"], "written": ["lost"], "unsent": ["unsent"],
    }  # fmt: skip
    assert wire.placer.placed == [b"answered", b"placed"]
    with pytest.raises(LinkOver):
        wire.link.add(calls("late"))
    wire.link.end("again")
    assert [len(settled) for settled in wire.answers.settled.values()] == [1] * 4
    assert wire.forgotten == 1


def test_connection_that_is_never_made_sends_nothing() -> None:
    """Whoever waits is told that nothing was sent."""
    wire = CallWire()
    wire.link.add(calls("a"))
    wire.link.end("nobody listens")
    assert wire.answers.of("a") == [("unsent", "nobody listens")]


@pytest.mark.parametrize("opened", [True, False])
def test_window_bounds_calls(opened: bool) -> None:
    """All or none, and answers make room; before the connection is ready an early window holds."""
    window = CallWindow(calls=3, params_bytes=1 << 20) if opened else EARLY_WINDOW
    wire = CallWire(window, Placer(waits=True))
    if opened:
        wire.open()
    texts = [str(number) for number in range(window.calls)]
    wire.link.add(calls(*texts[:-1]))
    with pytest.raises(WindowFull):
        wire.link.add(calls("x", "y"))
    wire.link.add(calls(texts[-1]))
    with pytest.raises(WindowFull):
        wire.link.add(calls("z"))
    if opened:
        wire.carry()
        assert wire.placer.placed == [text.encode() for text in texts]
        wire.placer.release(1)
        wire.carry()
        wire.link.add(calls("z"))


def test_window_bounds_bytes() -> None:
    """Of parameters under way; one call that is larger than the window passes alone."""
    wire = CallWire(CallWindow(calls=100, params_bytes=10), Placer(waits=True))
    wire.open()
    wire.link.add(calls("a" * 30))
    with pytest.raises(WindowFull):
        wire.link.add(calls("b"))
    wire.carry()
    wire.placer.release()
    wire.carry()
    wire.link.add(calls("b" * 5, "c" * 5))
    with pytest.raises(WindowFull):
        wire.link.add(calls("d"))


def test_many_bytes_take_several_frames() -> None:
    """In their order, and the names are in the first."""
    wire = CallWire(CallWindow(calls=100, params_bytes=64 << 20))
    wire.open()
    texts = [letter * (FRAME_AIM_BYTES // 2) for letter in "abcde"]
    wire.link.add(calls(*texts))
    wire.carry()
    assert len(wire.seen) > 2
    assert wire.placer.placed == [text.encode() for text in texts]
    assert len(wire.placer.names) == 1


def test_answer_that_nobody_waits_for_ends_the_link() -> None:
    """A second answer to one call, or one to a call that was not made: the called end has a defect."""
    wire = CallWire()
    wire.open()
    wire.link.add(calls("a"))
    wire.carry()
    answer = encode_answers([AnswerRow(1, 0, 7, b"again", b"")])
    wire.caller.data_received(wire.theirs.sealer.seal(CallFrameKind.ANSWERS, answer, 1))
    assert wire.caller.is_ending
    assert len(wire.answers.of("a")) == 1


def test_silent_link_is_ended_while_calls_wait() -> None:
    """A called end that says nothing for so many looks; one that gives signs of life is waited for, an idle one too."""
    wire = CallWire(placer=Placer(waits=True))
    wire.open()
    for _ in range(10):
        wire.link.check_life(3)
    assert not wire.caller.is_ending
    wire.link.add(calls("a"))
    for _ in range(10):
        wire.carry()
        wire.link.check_life(3)
    assert not wire.caller.is_ending, "receipts are signs of life"
    for _ in range(3):
        wire.link.check_life(3)
    assert wire.caller.is_ending


def test_garbage_from_the_called_end_ends_the_link() -> None:
    """And the call that waits is lost, not answered."""
    wire = CallWire(placer=Placer(waits=True))
    wire.open()
    wire.link.add(calls("a"))
    wire.carry()
    wire.caller.data_received(b"\x80\0\0\0" + bytes(124))
    assert wire.caller.is_ending
    wire.cut()
    assert [kind for kind, _ in wire.answers.of("a")] == ["lost"]
