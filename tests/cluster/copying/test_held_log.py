"""The log for a recipient: held by name, as long as it is needed, and let go of once."""

from __future__ import annotations

from cmdlog.cluster.copying.held_log import CATCH_UP_S, HeldLog


class Anchors(dict[str, int]):
    """Of a log; removing one that is not there is an error here."""

    def hold(self) -> HeldLog:
        """What holds by them."""
        return HeldLog(self.__setitem__, self.__delitem__)


def test_each_partition_has_an_anchor() -> None:
    """Until the node is released, which may be said twice; others keep theirs."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.hold_partition(2, 1, 50)
    held.hold_partition(3, 0, 60)
    assert anchors == {"copy-2-0": 40, "copy-2-1": 50, "copy-3-0": 60}
    assert held.nodes == [2, 3]
    held.release_node(2)
    held.release_node(2)
    assert anchors == {"copy-3-0": 60}


def test_copy_under_way_is_never_done() -> None:
    """However long it takes."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.release_done(1e9, lambda _: False)
    assert anchors


def test_done_copy_is_held_while_its_recipient_waits() -> None:
    """And not beyond its time."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 100.0)
    held.keep_for_catch_up(9, 100.0)
    held.release_done(100.0 + CATCH_UP_S, lambda _: True)
    assert anchors
    held.release_done(100.1 + CATCH_UP_S, lambda _: True)
    assert not anchors
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 100.0)
    held.release_done(101.0, lambda _: False)
    assert (dict(anchors), held.nodes) == ({}, [])


def test_next_copy_is_under_way_again() -> None:
    """What was said of the last one is over."""
    anchors = Anchors()
    held = anchors.hold()
    held.hold_partition(2, 0, 40)
    held.keep_for_catch_up(2, 0.0)
    held.hold_partition(2, 0, 80)
    held.release_done(1e9, lambda _: False)
    assert anchors == {"copy-2-0": 80}
