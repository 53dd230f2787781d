"""A site process as its parent sees it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from typing import cast

import orjson
import pytest

from cmdlog.child_process import ChildProcess
from cmdlog.node.sites import site_child
from cmdlog.node.sites.channel import Channel
from cmdlog.node.sites.frames import FrameKind, encode_frame
from cmdlog.node.sites.site_child import NotStarted, SiteChild
from cmdlog.node.sites.site_faults import FULL, SiteFault
from cmdlog.node.sites.site_progress import BUSY, HANDLED, INDEX, NO_CALL, PARTITION, POSITION, PROGRESS_BYTES, READ, SiteStall


class Ended:
    """A process that has ended with this code."""

    pid = 0  # of none that can be asked for

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


def test_call_that_runs_long_is_shown_with_its_place(site: SiteChild) -> None:
    """Half a second without progress is enough; the seconds are those since the last progress, and a new call is not shown."""
    site.progress[BUSY], site.progress[PARTITION], site.progress[INDEX], site.progress[POSITION] = 1, 3, 7, 2
    assert site.find_stall(100.0) is None
    assert site.find_stall(100.4) is None
    assert site.find_stall(100.75) == SiteStall(0, "running", 0.75, (3,), 3, 7, 2)
    site.progress[POSITION] = 3
    assert site.find_stall(101.0) is None


def test_entry_without_calls_is_shown_without_one(site: SiteChild) -> None:
    """A change of tables has an index, and no position."""
    site.progress[BUSY], site.progress[PARTITION], site.progress[INDEX], site.progress[POSITION] = 1, 3, 7, NO_CALL
    assert site.find_stall(100.0) is None
    assert site.find_stall(101.0) == SiteStall(0, "running", 1.0, (3,), 3, 7, -1)


def test_long_read_has_no_place_in_the_log(site: SiteChild) -> None:
    """A read has no index; its partition is known all the same."""
    site.progress[BUSY], site.progress[PARTITION] = 1, 3
    assert site.find_stall(100.0) is None
    assert site.find_stall(101.0) == SiteStall(0, "running", 1.0, (3,), 3, 0, -1)


def test_stopped_site_is_shown_at_once_and_with_its_work(site: SiteChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a signal has stopped serves nobody, whether or not something waits for it; going on, it is well again."""
    stopped = [True]
    monkeypatch.setattr(site_child, "is_stopped", lambda _pid: stopped[0])
    assert site.find_stall(100.0) == SiteStall(0, "stopped", 0.0, (3,))
    assert site.find_stall(103.0) == SiteStall(0, "stopped", 3.0, (3,))
    stopped[0] = False
    assert site.find_stall(104.0) is None


def test_ended_site_is_shown_until_its_successor_serves(site: SiteChild) -> None:
    """Between the end of a process and the start of the next its partitions wait."""
    site.lose()
    assert site.find_stall(100.0) == SiteStall(0, "restarting", 0.0, (3,))
    assert site.find_stall(101.5) == SiteStall(0, "restarting", 1.5, (3,))


def test_site_that_does_not_read_is_silent(site: SiteChild) -> None:
    """It runs nothing, and something waits for it."""
    site.greet({})
    assert site.find_stall(100.0) is None
    assert site.find_stall(101.0) == SiteStall(0, "silent", 1.0, (3,))


def test_end_is_blamed_on_the_call_that_ran(site: SiteChild) -> None:
    """A site that was killed says nothing: the page names partition and call, and nobody when none ran."""
    assert site.await_end() == SiteFault("died", "killed by signal 9 (SIGKILL)", None, 0, 0)
    site.progress[:4] = memoryview(bytearray(b"".join(n.to_bytes(8, "little") for n in (1, 3, 70, 2)))).cast("Q")
    assert site.await_end() == SiteFault("died", "killed by signal 9 (SIGKILL)", 3, 70, 2, signal=9)


@pytest.mark.parametrize(("code", "reason", "signal"), [(3, "exit code 3", 0), (-11, "killed by signal 11 (SIGSEGV)", 11)])
def test_end_names_the_read_that_ran(site: SiteChild, code: int, reason: str, signal: int) -> None:
    """Its number is there as long as it runs, and what is left of it counts for nothing in a site that is idle."""
    site.popen = cast(ChildProcess, Ended(code))
    site.progress[PARTITION], site.progress[READ] = 3, 41
    assert site.await_end() == SiteFault("died", reason, None)
    site.progress[BUSY] = 1
    assert site.await_end() == SiteFault("died", reason, 3, read=41, signal=signal)


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
    assert site.wait_ready(lambda: False, 60.0) == {3: 41}


def test_site_that_cannot_start_is_reported_in_its_own_words(site: SiteChild, peer: socket.socket) -> None:
    """A full volume has its own exit code, and a hint."""
    peer.sendall(encode_frame(FrameKind.FAULT, orjson.dumps({"kind": FULL, "message": "no room for the WAL"})))
    with pytest.raises(NotStarted, match="no room for the WAL") as caught:
        site.wait_ready(lambda: False, 60.0)
    assert caught.value.exit_code == 14
    assert "free space" in caught.value.hint


def test_site_that_ends_silently_did_not_start(site: SiteChild, peer: socket.socket) -> None:
    """The channel closes before it serves."""
    peer.close()
    with pytest.raises(NotStarted, match="site 0 did not start: ImportError: no module"):
        site.wait_ready(lambda: False, 60.0)


@pytest.mark.slow
def test_site_that_is_slow_to_start_blames_the_machine_first() -> None:
    """The limit is a setting, which is named; a stopped process stands for a busy machine."""
    late = SiteChild.spawn(0, (3,))
    try:
        late.popen.send_signal(signal.SIGSTOP)
        with pytest.raises(NotStarted, match="not ready after 0 s: look at the load of the machine and at its disk") as caught:
            late.wait_ready(lambda: False, 0.0)
        assert "start_timeout_s" in str(caught.value)
    finally:
        late.release()


def test_site_is_lost_once(site: SiteChild) -> None:
    """Reader and watch thread may both find out: one of them acts."""
    assert [site.lose(), site.lose()] == [True, False]
