"""The called end of a link: calls are placed once and in order, and answered once."""

from __future__ import annotations

import threading

import pytest

from cmdlog.cluster.forwarding.call_receiver import FRAME_AIM_BYTES, UNSENT_BYTES_MAX
from cmdlog.cluster.forwarding.call_rows import CALL, EARLY_WINDOW, NO_KEY, CallFrameKind, CallWindow, encode_calls
from tests.cluster.forwarding.callkit import NAME, CallWire, Placer, calls


def frame_of(wire: CallWire, first: int, *texts: bytes, procedure: int = 0) -> bytes:
    """A frame of the caller, made by hand."""
    rows = [CALL.pack(procedure, 3, 0, NO_KEY, 0, len(text)) for text in texts]
    return wire.ours.sealer.seal(CallFrameKind.CALLS, encode_calls(first, [NAME], rows, list(texts)), len(texts))


def test_repeated_frame_places_nothing() -> None:
    """The bytes of a frame once more: refused, and the link ends."""
    wire = CallWire()
    wire.open()
    frame = frame_of(wire, 1, b"a")
    wire.called.data_received(frame)
    assert wire.placer.placed == [b"a"]
    wire.called.data_received(frame)
    assert wire.called.is_ending
    assert wire.placer.placed == [b"a"]


@pytest.mark.parametrize(("first", "procedure"), [(2, 0), (0, 0), (1, 1)])
def test_frame_that_does_not_follow_places_nothing(first: int, procedure: int) -> None:
    """Ids that are not the next ones, or a name that was not said: none of the calls is placed."""
    wire = CallWire()
    wire.open()
    wire.called.data_received(frame_of(wire, first, b"a", b"b", procedure=procedure))
    assert wire.called.is_ending
    assert wire.placer.placed == []


def test_calls_beyond_the_window_are_refused_alone() -> None:
    """They cost no memory; the others are placed, and room that comes free is used."""
    wire = CallWire(CallWindow(calls=2, params_bytes=1 << 20), Placer(waits=True))
    wire.link.add(calls(*"abcd"))  # by the early window, which is wider
    wire.open()
    wire.carry()
    assert wire.placer.placed == [b"a", b"b"]
    wire.placer.release()
    wire.carry()
    statuses = {text: wire.answers.of(text)[0][1][0] for text in "abcd"}  # type: ignore[index]
    assert statuses == {"a": 0, "b": 0, "c": 255, "d": 255}
    wire.link.add(calls("e"))
    wire.carry()
    assert wire.placer.placed[-1] == b"e"


def test_frame_of_more_calls_than_any_window_has_ends_the_link() -> None:
    """Nothing is made of them: a caller that heeds the window sends none."""
    wire = CallWire(CallWindow(calls=2, params_bytes=1 << 20))
    wire.open()
    wire.called.data_received(frame_of(wire, 1, *[b""] * (EARLY_WINDOW.calls + 1)))
    assert wire.called.is_ending
    assert wire.placer.placed == []


def test_answers_of_one_turn_share_a_frame() -> None:
    """From whatever thread they come; large ones take more."""
    wire = CallWire(CallWindow(calls=100, params_bytes=64 << 20), Placer(waits=True))
    wire.open()
    texts = [letter * (FRAME_AIM_BYTES // 2) for letter in "abcde"] + list("fghij")
    wire.link.add(calls(*texts))
    wire.carry()
    thread = threading.Thread(target=wire.placer.release)
    thread.start()
    thread.join()
    wire.run_due()
    frames = wire.called_end.frames()
    assert 1 < len(frames) < len(texts)
    for frame in frames:
        wire.caller.data_received(frame)
    assert [len(wire.answers.of(text)) for text in texts] == [1] * len(texts)


def test_caller_that_does_not_read_loses_the_link() -> None:
    """Its answers would fill the memory of the node that leads."""
    wire = CallWire(placer=Placer(waits=True))
    wire.open()
    wire.link.add(calls("a"))
    wire.carry()
    wire.called_end.unsent = UNSENT_BYTES_MAX + 1
    wire.placer.release()
    wire.carry()
    assert wire.called.is_ending


def test_answers_after_the_end_are_dropped() -> None:
    """Nobody waits for them here; the caller was told that its link was lost."""
    wire = CallWire(placer=Placer(waits=True))
    wire.open()
    wire.link.add(calls("a"))
    wire.carry()
    wire.cut()
    wire.placer.release()
    wire.carry()
    assert [kind for kind, _ in wire.answers.of("a")] == ["lost"]
    assert wire.receiver.under_way == 0
