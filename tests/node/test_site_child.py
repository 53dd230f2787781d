"""A site process as its parent sees it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import cast

import orjson
import pytest

from cmdlog.child_process import ChildProcess
from cmdlog.node.sites.channel import Channel
from cmdlog.node.sites.frames import FrameKind, encode_frame
from cmdlog.node.sites.partition_health import FULL
from cmdlog.node.sites.site_child import BUSY, HANDLED, PARTITION, PROGRESS_BYTES, NotStarted, SiteChild
from cmdlog.node.sites.site_faults import SiteFault


class Ended:
    """A process that has ended with this code."""

    def __init__(self, code: int) -> None:
        self._code = code

    def end(self, *, after_s: float | None = None) -> int:
        return self._code

    def last_error(self) -> str:
        return "ImportError: no module"

    def close(self) -> None:
        pass


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The parent's end of the channel, and the site's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def site(ends: tuple[socket.socket, socket.socket]) -> Iterator[SiteChild]:
    """A site of partition 3 that was killed by signal 9."""
    page = memoryview(bytearray(PROGRESS_BYTES)).cast("Q")
    child = SiteChild(0, (3,), cast(ChildProcess, Ended(-9)), Channel(ends[0]), page)
    yield child
    child.discard()


@pytest.fixture
def peer(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    """What the process would write to."""
    return ends[1]


def test_busy_site_stands_still_when_its_page_does_not_change(site: SiteChild) -> None:
    """Each change of the page begins the time anew; an idle site never stands still."""
    assert site.stands_still(100.0, within_s=5) is None
    site.progress[BUSY], site.progress[PARTITION] = 1, 3
    assert site.stands_still(101.0, within_s=5) is None
    site.progress[HANDLED] = 1
    assert site.stands_still(106.0, within_s=5) is None
    assert site.stands_still(111.0, within_s=5) is None
    at = site.stands_still(111.5, within_s=5)
    assert at is not None
    assert (at[BUSY], at[PARTITION]) == (1, 3)
    site.progress[BUSY] = 0
    site.progress[HANDLED] = site.channel.frames_sent
    assert site.stands_still(200.0, within_s=5) is None


def test_site_that_was_sent_something_must_read_it(site: SiteChild) -> None:
    """A site that executes nothing stands still all the same, when a frame waits for it."""
    site.greet({})
    assert site.stands_still(100.0, within_s=5) is None
    assert site.stands_still(106.0, within_s=5) is not None


def test_end_is_blamed_on_the_call_that_ran(site: SiteChild) -> None:
    """A site that was killed says nothing: the page names partition and call, and nobody when none ran."""
    assert site.await_end() == SiteFault("died", "killed by signal 9", None, 0, 0)
    site.progress[:4] = memoryview(bytearray(b"".join(n.to_bytes(8, "little") for n in (1, 3, 70, 2)))).cast("Q")
    assert site.await_end() == SiteFault("died", "killed by signal 9", 3, 70, 2)


def test_what_a_site_said_counts_before_what_others_say(site: SiteChild) -> None:
    """The reason of a kill is the killer's only while the site itself has given none."""
    said, blamed = SiteFault("io", "a sector cannot be read"), SiteFault("hung", "too slow")
    site.blame(blamed)
    assert site.await_end() == blamed
    site.report(said)
    site.blame(blamed)
    assert site.await_end() == said


def test_ready_site_says_its_positions(site: SiteChild, peer: socket.socket) -> None:
    """Partition -> index of the last applied entry."""
    peer.sendall(encode_frame(FrameKind.READY, orjson.dumps({"positions": {"3": 41}})))
    assert site.wait_ready(lambda: False) == {3: 41}


def test_site_that_cannot_start_is_reported_in_its_own_words(site: SiteChild, peer: socket.socket) -> None:
    """A full volume has its own exit code, and a hint."""
    peer.sendall(encode_frame(FrameKind.FAULT, orjson.dumps({"kind": FULL, "message": "no room for the WAL"})))
    with pytest.raises(NotStarted, match="no room for the WAL") as caught:
        site.wait_ready(lambda: False)
    assert caught.value.exit_code == 14
    assert "free space" in caught.value.hint


def test_site_that_ends_silently_did_not_start(site: SiteChild, peer: socket.socket) -> None:
    """The channel closes before it serves."""
    peer.close()
    with pytest.raises(NotStarted, match="site 0 did not start: ImportError: no module"):
        site.wait_ready(lambda: False)


def test_site_is_lost_once(site: SiteChild) -> None:
    """Reader and watch thread may both find out: one of them acts."""
    assert [site.lose(), site.lose()] == [True, False]
