"""Site processes that crash, hang, run out of things, or are killed: every call is answered, none is applied twice."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, CallRefused, NotReady, UnknownOutcome
from cmdlog.node.sites.channel import Channel
from cmdlog.node.sites.frames import FrameKind
from cmdlog.node.sites.site_child import NotStarted, SiteChild
from cmdlog.node.sites.site_faults import SiteFault
from cmdlog.node.sites.site_progress import BUSY
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.reader import LogReader
from procedures.idempotency.known_outcome import Status
from tests.node.rig import alive, ask, counters, kill, open_node, send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Two partitions on one site process; calls may take a second."""
    opened = open_node(tmp_path / "data", partitions=2)
    yield opened
    opened.close()


def skips(node: Node) -> list[dict[str, Any]]:
    """The skip records of the log."""
    return [record.json() for _, record in node._wal.read() if record.kind is RecordKind.SKIP]


def failure(reply: object) -> dict[str, Any]:
    """Body of a failed call."""
    assert isinstance(reply, CallOutcome), reply
    assert reply.status == Status.FAILED
    body: dict[str, Any] = orjson.loads(reply.body)
    return body


def test_outcomes_of_every_kind(node: Node) -> None:
    """Results, aborts and failures are told apart, and what raised left no trace."""
    assert ask(node, "bump", id=1, amount=5) == 5
    aborted = send(node, "abort_after_write", id=1, amount=100).wait()
    assert isinstance(aborted, CallOutcome)
    assert (aborted.status, orjson.loads(aborted.body)["code"]) == (Status.ABORTED, "no_luck")
    assert failure(send(node, "raise_after_write", id=1, amount=100).wait())["type"] == "LookupError"
    assert ask(node, "big", id=1, size=300_000) == "x" * 300_000
    assert ask(node, "peek", id=1) == 5
    assert counters(node) == {1: 5}


def test_a_call_that_forks_fails_by_name(node: Node) -> None:
    """It is an outcome like any other: the site lives on, and nothing of the call is left."""
    site = node.status()["sites"]
    assert ask(node, "bump", id=1, amount=5) == 5
    failed = failure(send(node, "fork", id=1).wait())
    assert (failed["type"], "fork tried to start a process (os.fork)" in failed["message"]) == ("ProcessRefused", True)
    assert ask(node, "bump", id=1, amount=5) == 10
    assert node.status()["sites"] == site


def test_a_site_that_is_stopped_while_idle_is_replaced(node: Node) -> None:
    """What it was sent is executed by a successor, although no call of it ever ran: a system call may not return either."""
    assert ask(node, "bump", id=1, amount=5) == 5
    (pid,) = node.status()["sites"]
    assert isinstance(node._sites, ProcessSites)
    progress = node._sites._sites[0].progress
    wait_for(lambda: not progress[BUSY])  # it answers before it is idle
    os.kill(pid, signal.SIGSTOP)
    stalls = wait_for(node.stalls)  # although it was sent nothing
    assert [(stall["kind"], stall["partitions"]) for stall in stalls] == [("stopped", [0, 1])]
    assert ask(node, "bump", id=1, amount=5) == 10
    assert node.status()["sites"] != [pid]
    assert not skips(node)


def test_a_site_that_does_not_end_after_a_fault_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an application does at exit cannot keep a site from its end once it has said why it ends."""
    monkeypatch.setenv("FAULTY_AT_EXIT", "hang")
    node = open_node(tmp_path / "data", partitions=1)
    try:
        assert failure(send(node, "exhaust", id=1).wait())["type"] == "Skipped"
        assert ask(node, "bump", id=1, amount=5) == 5
    finally:
        monkeypatch.delenv("FAULTY_AT_EXIT")
        node.close()


def test_a_killed_site_loses_and_doubles_nothing(node: Node) -> None:
    """SIGKILL under load: every call is answered once, and the state holds each call once."""
    pid = node.status()["sites"][0]
    sent = []
    for n in range(3000):
        sent.append(send(node, "bump", id=n % 10, amount=1 << (n % 3)))
        if n == 1500:
            kill(pid)
    replies = [pending.wait() for pending in sent]
    wait_for(lambda: node.sequencer.idle)
    assert all(len(pending.replies) == 1 for pending in sent)
    unknown = [n for n, reply in enumerate(replies) if not isinstance(reply, CallOutcome)]
    assert all(isinstance(replies[n], UnknownOutcome) for n in unknown)
    held = counters(node)
    assert held == {i: sum(1 << (n % 3) for n in range(i, 3000, 10)) for i in range(10)}
    assert node.status()["sites"][0] != pid
    assert skips(node) == []


def test_a_terminals_interrupt_does_not_reach_a_site(node: Node) -> None:
    """Ctrl-C goes to the foreground process group; a site, which may still be starting, is in one of its own."""
    (pid,) = node.status()["sites"]
    assert os.getpgid(pid) == pid


def test_a_crash_is_tried_again(node: Node, tmp_path: Path) -> None:
    """A call during which the site ended once is run again by the successor, and answered."""
    flag = tmp_path / "flag"
    flag.touch()
    before = send(node, "bump", id=1, amount=1)
    call = send(node, "crash_while", id=1, path=str(flag), amount=10)
    after = send(node, "bump", id=1, amount=100)
    assert (before.value(), call.value(), after.value()) == (1, 11, 111)
    assert skips(node) == []


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "sites"])
@pytest.mark.parametrize("times", [1, 2])
def test_call_that_ends_its_site_is_skipped_after_the_stated_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, inline: bool
) -> None:
    """The setting counts the ends of a site at one call, from new for every call; the node goes on after each skip."""
    node = open_node(tmp_path / "data", inline=inline, site_restarts_max=times)
    ends: list[int] = []
    counting, name = (node._sites, "_restore") if inline else (node._desk, "site_down")
    real = getattr(counting, name)

    def count(*arguments: Any, **options: Any) -> None:
        ends.append(1)
        real(*arguments, **options)

    monkeypatch.setattr(counting, name, count)
    for number in (1, 2):
        assert failure(send(node, "interrupt", id=1).wait())
        assert (len(ends), len(skips(node))) == (times * number, number)
        assert ask(node, "bump", id=1, amount=1) == number
    node.close()


def test_a_hanging_call_is_skipped_and_others_go_on(tmp_path: Path) -> None:
    """A call that never returns is killed after `call_timeout_s`; another site's partition does not wait; a restart does not
    run it either, even when the state is rebuilt from the log.
    """
    node = open_node(tmp_path / "data", partitions=2, sites=2, call_timeout_s=4.0)
    other = next(i for i in range(100) if node.slots.partition_of(node.routes["bump"].procedure, [i, 0]) == 1)
    mine = next(i for i in range(100) if node.slots.partition_of(node.routes["bump"].procedure, [i, 0]) == 0)
    first = send(node, "bump", id=mine, amount=1)
    hanging = send(node, "hang", id=mine)
    stalled = wait_for(lambda: node.status()["stalled"])  # long before it is killed, it is seen
    assert stalled[0]["message"].startswith("partition 0: hang has been running for ")
    after = send(node, "bump", id=mine, amount=2)
    assert ask(node, "bump", id=other, amount=7) == 7
    assert not hanging.replies
    assert failure(hanging.wait())
    assert (first.value(), after.value()) == (1, 3)
    assert len(skips(node)) == 1
    node.close()
    for file in (tmp_path / "data" / "state").glob("p0000*"):
        file.unlink()
    again = open_node(tmp_path / "data")
    assert counters(again) == {mine: 3, other: 7}
    assert ask(again, "bump", id=mine, amount=1) == 4
    again.close()


def test_a_hanging_read_harms_no_write(node: Node) -> None:
    """A read that never returns ends its site, not the call whose index happens to be the read's number."""
    for n in range(5):
        ask(node, "bump", id=1, amount=1)
        assert ask(node, "peek", id=1) == n + 1
    hanging = send(node, "hang_reading", id=1)
    stalls = wait_for(node.stalls)
    assert [(stall["kind"], stall["partition"] is not None, stall["procedure"]) for stall in stalls] == [
        ("running", True, "hang_reading")
    ]
    assert failure(hanging.wait())["type"] == "SiteEnded"
    wait_for(lambda: all(stream.up for stream in node.sequencer._streams.values()))
    for n in range(10):
        assert ask(node, "bump", id=1, amount=1) == n + 6
    assert skips(node) == []


def test_a_call_that_ended_in_time_is_not_skipped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog decides, and the call ends before the signal arrives: it stands, whoever asks later."""
    assert ask(node, "nap", id=1, seconds=0.0) == 1
    sites: Any = node._sites
    site = sites._sites[0]
    index = node.sequencer.watermarks()
    partition = node.slots.partition_of(node.routes["nap"].procedure, [1, 0.0])

    site.fault = SiteFault("hung", "planted", partition, index[partition]["applied"], 0)
    kill(site.popen.pid)
    wait_for(lambda: node.status()["sites"][0] != site.popen.pid)
    assert ask(node, "nap", id=1, seconds=0.0) == 2
    assert skips(node) == []


def test_a_multi_partition_call_is_all_or_nothing_under_kills(node: Node) -> None:
    """Totals taken while rates change and the site is killed see the same value in every partition."""
    for n in range(1, 40):
        write = send(node, "set_rate", name="r", value=n)
        try:
            read = send(node, "look_everywhere", name="r")
        except CallRefused:
            read = None
        if n in (10, 20):
            kill(node.status()["sites"][0])
        reply = write.wait()
        if read is not None and isinstance(seen := read.wait(), CallOutcome):
            values = {value for value, _ in orjson.loads(seen.body)}
            assert len(values) == 1
        assert isinstance(reply, CallOutcome | UnknownOutcome)
    wait_for(lambda: node.sequencer.idle)
    assert {value for value, _ in ask(node, "look_everywhere", name="r")} == {39}


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "sites"])
def test_orderly_stop_logs_the_last_batches_digests(tmp_path: Path, inline: bool) -> None:
    """Every batch of a node that was closed in good order can be compared by a replay, the very last one too."""
    node = open_node(tmp_path / "data", inline=inline)
    for _ in range(5):
        ask(node, "bump", id=1, amount=1)
    node.close()
    records = [record for _, record in LogReader(RealFiles(), str(tmp_path / "data")).read()]
    batches = {record.index for record in records if record.kind is RecordKind.BATCH}
    assert {record.index for record in records if record.kind is RecordKind.DIGEST} == batches


def test_close_waits_for_what_is_under_way(tmp_path: Path) -> None:
    """An orderly end answers what was placed, ends the sites, and lets nobody in."""
    node = open_node(tmp_path / "data", partitions=2)
    pids = node.status()["sites"]
    sent = [send(node, "bump", id=n, amount=1) for n in range(500)]
    node.close()
    assert [pending.value() for pending in sent] == [1] * 500
    assert not any(alive(pid) for pid in pids)
    with pytest.raises(NotReady):
        send(node, "bump", id=1, amount=1)
    node.close()


@pytest.mark.parametrize("kills", [1, 2])
def test_site_that_is_killed_while_the_node_starts_gets_a_second_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """As one that ends later does. A second kill ends the start, and its error names site, signal and what to do."""
    greeted: list[int] = []
    real = SiteChild.greet

    def greet(site: SiteChild, hello: dict[str, Any]) -> None:
        if site.number == 0:
            greeted.append(site.popen.pid)
            if len(greeted) <= kills:
                os.kill(site.popen.pid, signal.SIGKILL)
                site.popen.wait()
        real(site, hello)

    monkeypatch.setattr(SiteChild, "greet", greet)
    if kills == 2:
        words = r"^site 0 did not start: it reported no error and ended: killed by signal 9 \(SIGKILL\)"
        with pytest.raises(NotStarted, match=words) as failed:
            open_node(tmp_path / "data", partitions=2)
        assert "memory" in failed.value.hint
        return
    node = open_node(tmp_path / "data", partitions=2)
    try:
        assert node.status()["sites"][0] == greeted[1]
        assert ask(node, "bump", id=1, amount=1) == 1
    finally:
        node.close()


def test_a_site_that_cannot_start_again_leaks_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempt after attempt, descriptors are given back, calls are kept, and all is well once it starts."""
    from cmdlog.node.sites import site_faults

    tries: list[int] = []
    real = SiteChild.wait_ready

    def refuse(site: SiteChild, given_up: Callable[[], bool], timeout_s: float) -> dict[int, int]:
        tries.append(len(list(Path("/proc/self/fd").iterdir())))
        if len(tries) < 6:
            raise NotStarted(SiteFault("died", "planted: it does not start"))
        return real(site, given_up, timeout_s)

    monkeypatch.setattr(site_faults, "RETRY_S", 0.01)
    monkeypatch.setattr(SiteChild, "wait_ready", refuse)
    ask(node, "bump", id=1, amount=1)
    kill(node.status()["sites"][0])
    pending = send(node, "bump", id=1, amount=1)
    reply = pending.wait()
    assert isinstance(reply, CallOutcome)
    assert tries[-1] < tries[0] + 5  # each attempt holds four; other threads open files too


def test_site_that_starts_hears_what_came_after_its_hello(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the code becomes known between the two: the successor has it, and what other sites need not."""
    sites, greet, send = node._parts.sites, SiteChild.greet, Channel.send
    assert isinstance(sites, ProcessSites)
    bundle = str(node.overview.ground.boot.code.newest_value["bundle"])
    sent: list[tuple[Channel, int]] = []

    def greet_and_learn(site: SiteChild, hello: dict[str, Any]) -> None:
        greet(site, hello)
        sites.add_code(2, bundle, partitions=2)

    def note(channel: Channel, frame: bytes) -> None:
        sent.append((channel, frame[4]))
        send(channel, frame)

    monkeypatch.setattr(SiteChild, "greet", greet_and_learn)
    monkeypatch.setattr(Channel, "send", note)
    (pid, *_) = sites.pids()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sites.pids()[0] != pid)
    assert ask(node, "bump", id=1, amount=1) == 1
    successor = sites._sites[0].channel
    assert [kind for channel, kind in sent if channel is successor][:2] == [FrameKind.HELLO, FrameKind.CODE]


@pytest.mark.usefixtures("cold_start")
def test_site_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own error is the message; nobody has to look for it in what was printed above."""
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "__init__.py").write_text("raise ImportError('planted in the site')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(NotStarted, match=r"^site 0 did not start: ImportError: planted in the site"):
        open_node(tmp_path / "data", partitions=1)
