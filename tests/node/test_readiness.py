"""Tests of whether a node takes part in anything."""

import pytest

from cmdlog.node.outcome import NotReady
from cmdlog.node.readiness import Readiness


def test_calls_are_accepted_until_the_close_has_come_so_far() -> None:
    """Also while it closes, at first; the refusal says whether it starts or is closed."""
    readiness = Readiness()
    with pytest.raises(NotReady, match="starting"):
        readiness.check_ready()
    readiness.accept_calls()
    assert (readiness.begin_close(), readiness.begin_close()) == (True, False)
    readiness.check_ready()
    readiness.refuse_calls()
    with pytest.raises(NotReady, match="closed"):
        readiness.check_ready()


def test_failure_is_kept_and_told() -> None:
    """Every watcher hears of it, and what needs a node that serves is refused with the reason."""
    readiness, told = Readiness(), list[BaseException]()
    readiness.accept_calls()
    readiness.watch_failure(told.append)
    readiness.check_serving()
    readiness.fail(error := OSError("the disk is gone"))
    assert (told, readiness.error, readiness.has_failed) == ([error], error, True)
    readiness.check_ready()
    with pytest.raises(NotReady, match="the disk is gone"):
        readiness.check_serving()
