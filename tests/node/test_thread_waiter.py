"""Each thread waits for its own reply, and one that runs callbacks for none."""

from __future__ import annotations

import threading

import pytest

from cmdlog.node.embedded.thread_waiter import ReplyWaiter, ThreadWaiter
from cmdlog.node.outcome import CallOutcome

REPLY = CallOutcome(0, 1, b"1")


def test_a_reply_is_got_once() -> None:
    """Whether it comes before the wait or during it."""
    waiter = ReplyWaiter()
    waiter.put(REPLY)
    assert waiter.get() is REPLY
    thread = threading.Thread(target=waiter.put, args=(REPLY,))
    thread.start()
    assert waiter.get() is REPLY
    thread.join()


def test_threads_have_waiters_of_their_own() -> None:
    """And one that was forgotten is not used again."""
    waiters = ThreadWaiter()
    own = waiters.own()
    assert waiters.own() is own
    others: list[ReplyWaiter] = []
    thread = threading.Thread(target=lambda: others.append(waiters.own()))
    thread.start()
    thread.join()
    assert others[0] is not own
    waiters.forget()
    assert waiters.own() is not own


def test_a_thread_that_answers_must_not_wait() -> None:
    """It is refused with what to do instead, as long as it answers."""
    waiters = ThreadWaiter()
    waiters.note_answering(True)
    with pytest.raises(RuntimeError, match="use submit"):
        waiters.own()
    waiters.note_answering(False)
    waiters.own()
