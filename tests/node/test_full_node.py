"""What a node does when a call, a segment, the log or the disk has no room, or a disk fails: it refuses, and loses nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cmdlog.node.assembly import MACHINE
from cmdlog.node.embedded.embedded import Embedded
from cmdlog.node.outcome import CallOutcome, CallRefused, CallTooLarge, DiskFullRefusal, LogFullRefusal, NotReady, UnknownOutcome
from cmdlog.node.sites import inline_sites
from cmdlog.node.sites.partition_health import PartitionHealth
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.wal.errors import WalError, Wedged
from cmdlog.wal.files import File, RealFiles
from procedures.storage import state as state_module
from tests.node.rig import Pending, ask, counters, open_node, partition, rows, send
from tests.waiting import wait_for


def test_a_call_larger_than_any_block_is_refused_and_others_go_on(tmp_path: Path) -> None:
    """With small segments the limits shrink: what could never be logged is `too_large`, what just fits is logged."""
    node = open_node(
        tmp_path / "data", inline=True, partitions=1, segment_bytes=64 << 10, call_bytes_max=32 << 10, log_reserve_bytes=8 << 10
    )
    limit = node.settings.call_bytes_max
    assert limit <= 16 << 10
    with pytest.raises(CallTooLarge):
        send(node, "store", id=1, seq=0, data=bytes(limit))
    for seq in range(3):
        size = limit * 3 // 4 - 20
        assert ask(node, "store", id=1, seq=seq, data=bytes(size)) == size
    assert node.error is None
    node.close()


def test_a_full_log_refuses_and_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without snapshots the ring fills: writes get `log_full`, nothing wedges, reads are served, a restart works."""
    monkeypatch.setattr(Snapshotter, "start", lambda self: None)
    node = open_node(
        tmp_path / "data",
        inline=True,
        partitions=1,
        segment_bytes=64 << 10,
        segments=4,
        call_bytes_max=4000,
        log_reserve_bytes=8 << 10,
    )
    seq = 0
    full = False
    while not full:
        try:
            ask(node, "store", id=1, seq=seq, data=bytes(2000))
            seq += 1
        except LogFullRefusal:
            full = True
    assert seq > 20
    assert node.error is None
    assert ask(node, "peek", id=1) == 0
    node.close()
    node = open_node(tmp_path / "data", inline=True)
    assert node.query("SELECT count(*) FROM payloads").rows[0][0] == seq
    node.close()


class FailingFile:
    """A file whose fdatasync fails once the switch is on."""

    def __init__(self, file: File, files: FailingFiles) -> None:
        self._file, self._files = file, files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        if self._files.broken.is_set():
            raise OSError(5, "planted: Input/output error")
        self._file.fdatasync()


class FailingFiles(RealFiles):
    """The real disk, until it breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = threading.Event()

    def open(self, path: str, **options: Any) -> Any:
        return FailingFile(super().open(path, **options), self)


@pytest.mark.parametrize("inline", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_failed_sync_stops_the_node(tmp_path: Path, inline: bool) -> None:
    """Everybody under way is told that the outcome is unknown, nobody is acknowledged later, and the node says why."""
    files = FailingFiles()
    node = open_node(tmp_path / "data", inline=inline, outside=replace(MACHINE, files=files), partitions=2)
    failures: list[BaseException] = []
    node.watch_failure(failures.append)
    for n in range(10):
        assert ask(node, "bump", id=n, amount=1) == 1
    files.broken.set()
    sent: list[Pending] = []
    while node.error is None and len(sent) < 10_000:
        try:
            sent.append(send(node, "bump", id=len(sent) % 10, amount=1))
        except NotReady:
            break
    replies = [pending.wait() for pending in sent]
    assert all(isinstance(reply, UnknownOutcome) for reply in replies)
    assert all(len(pending.replies) == 1 for pending in sent)
    wait_for(lambda: bool(failures))
    assert len(failures) == 1
    assert "planted" in str(node.error)
    assert not node.ready
    with pytest.raises(NotReady, match="restarted"):
        send(node, "bump", id=1, amount=1)
    assert (node.sequencer.admission.inflight_calls, node.sequencer.admission.inflight_bytes) == (0, 0)
    with pytest.raises(WalError):
        node.close()
    files.broken.clear()
    node = open_node(tmp_path / "data", inline=inline)
    assert all(n in (1, 2) or n <= 1 + len(sent) for n in counters(node).values())
    assert ask(node, "peek", id=1) >= 1
    node.close()


def test_a_caller_in_the_window_of_a_wedge_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call placed after the log failed, but before everybody was told, is neither raised at nor left waiting."""
    node = open_node(tmp_path / "data", inline=True)

    def wedged(_beside: Callable[[], None] | None = None) -> NoReturn:
        raise Wedged("planted")

    ring = node._wal._running
    wait_for(lambda: not (ring._turn.held or ring._turn.wanted or ring.status()["in_flight"]))
    monkeypatch.setattr(node._wal, "run_turn", wedged)
    monkeypatch.setattr(node._wal, "kick", wedged)
    monkeypatch.setattr(node.sequencer._pipelines, "log", replace(node.sequencer._pipelines.log, kick=wedged))
    route = node.routes["bump"]
    first, second = Pending(), Pending()
    node.call_inline(route, route.procedure.bind({"id": 1, "amount": 1}), done=first.done)
    node.call(route, route.procedure.bind({"id": 1, "amount": 1}), done=second.done)
    assert not first.replies
    node.sequencer.failed(Wedged("planted"))
    assert isinstance(first.wait(), UnknownOutcome)
    assert isinstance(second.wait(), UnknownOutcome)
    monkeypatch.undo()
    node.close()


def test_call_many_tells_each_call_exactly_once(tmp_path: Path) -> None:
    """A run that is refused after others were placed is told by `done`; a refusal of everything is raised and tells nobody."""
    node = open_node(tmp_path / "data", inline=True, partitions=2, inflight_calls_max=4)
    route = node.routes["bump"]

    def prepared(count: int, key: bytes = b"") -> list[tuple[Any, Any, bytes, Any, None]]:
        made.extend(Pending() for _ in range(count))
        return [(route, route.procedure.bind({"id": 1, "amount": 1}), key, pending.done, None) for pending in made[-count:]]

    made: list[Pending] = []
    with pytest.raises(CallRefused):
        node.call_many(prepared(5))
    large = (node.routes["store"], [1, 1, "A" * 200_000], b"", Pending().done, None)
    with pytest.raises(CallRefused):
        node.call_many([*prepared(5), large])
    assert not any(pending.replies for pending in made)
    made.clear()
    read = Pending()
    made_before = prepared(1, key=b"k" * 16)
    made.append(read)
    node.call_many([*made_before, (node.routes["peek"], [1], b"", read.done, None), *prepared(9)])
    node.help()
    replies = [pending.wait() for pending in made]
    assert [isinstance(reply, CallOutcome) for reply in replies] == [True] * 2 + [False] * 9
    assert all(len(pending.replies) == 1 for pending in made)
    node.close()


def limited_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file: states that are opened while it is there have at most as many pages as it says."""
    real, pages = state_module._configure, folder / "pages"

    def configure(connection: Any) -> None:
        real(connection)
        if pages.exists():
            connection.pragma("max_page_count", int(pages.read_text()))

    monkeypatch.setattr(state_module, "_configure", configure)
    return pages


@pytest.mark.slow
def test_a_full_disk_refuses_calls_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLITE_FULL in a batch: calls are refused as `disk_full`, also those that wait for a batch, and nothing of them is logged;
    when there is room, what is logged is applied, once.
    """
    pages = limited_pages(tmp_path, monkeypatch)
    pages.write_text("40")
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    assert ask(node, "bump", id=1, amount=1) == 1
    sent: list[Pending] = []

    def refused() -> bool:
        try:
            sent.append(send(node, "store", id=1, seq=len(sent), data=bytes(40_000)))
        except DiskFullRefusal:
            return True
        return False

    wait_for(refused, every_s=0.001)
    pages.unlink()
    replies = [pending.wait() for pending in sent]
    done = [at for at, reply in enumerate(replies) if isinstance(reply, CallOutcome)]
    assert done
    assert all(isinstance(reply, DiskFullRefusal) for at, reply in enumerate(replies) if at not in done)
    wait_for(lambda: node.ready and node.sequencer.idle)
    assert ask(node, "bump", id=1, amount=1) == 2
    assert rows(tmp_path / "data", 0, "SELECT seq FROM payloads ORDER BY seq") == [(at,) for at in done]
    node.close()


@pytest.mark.slow
def test_a_node_is_ready_as_long_as_it_accepts_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first sign of a full disk and the first refusal it is ready: what "not ready" says is true already."""
    pages = limited_pages(tmp_path, monkeypatch)
    pages.write_text("16")
    seen: list[tuple[bool, bool]] = []
    begin, end = PartitionHealth.begin_trouble, PartitionHealth.end

    def noted(change: Callable[..., None]) -> Callable[..., None]:
        def run(troubles: PartitionHealth, *args: Any) -> None:
            change(troubles, *args)
            seen.append((troubles.full, node.ready))

        return run

    monkeypatch.setattr(PartitionHealth, "begin_trouble", noted(begin))
    monkeypatch.setattr(PartitionHealth, "end", noted(end))
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    waiting = send(node, "store", id=1, seq=0, data=bytes(60_000))
    wait_for(lambda: not node.ready)
    pages.unlink()
    assert waiting.value() == 60_000
    wait_for(lambda: node.ready)
    assert (seen[0], seen[-1]) == ((True, True), (False, False))
    node.close()


@pytest.mark.slow
def test_an_embedded_node_on_a_full_disk_closes_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be applied stays in the log; the next start, with room, applies it."""
    pages = limited_pages(tmp_path, monkeypatch)
    pages.write_text("16")
    node = open_node(tmp_path / "data", inline=True, partitions=2, drain_timeout_s=0.2)
    home = next(i for i in range(99) if partition(node, i) == 0)
    stuck = send(node, "store", id=home, seq=0, data=bytes(60_000))
    wait_for(lambda: not node.ready)
    told = node.status()
    assert (told["disk_full"]["path"], told["disk_full"]["partitions"]) == (str(tmp_path / "data"), [0])
    assert [told["partitions"][p]["state"] for p in "01"] == ["disk_full", "ok"]
    node.close()  # there is still no room
    assert isinstance(stuck.wait(), UnknownOutcome)
    pages.unlink()
    again = open_node(tmp_path / "data", inline=True)
    assert again.ready
    again.close()
    assert rows(tmp_path / "data", 0, "SELECT count(*) FROM payloads") == [(1,)]


@pytest.mark.slow
def test_an_embedded_caller_is_let_go_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It executes its own call and cannot: Ctrl-C ends its wait. The call is executed, once, when there is room."""
    pages = limited_pages(tmp_path, monkeypatch)
    pages.write_text("16")
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    embedded = Embedded(node)
    assert embedded.call("bump", id=1, amount=1) == 1

    def interrupt() -> None:
        wait_for(lambda: not node.ready)
        os.kill(os.getpid(), signal.SIGINT)

    poker = threading.Thread(target=interrupt)
    poker.start()
    with pytest.raises(KeyboardInterrupt):
        embedded.call("store", id=1, seq=0, data=bytes(60_000))
    poker.join()
    with pytest.raises(DiskFullRefusal):
        embedded.call("bump", id=1, amount=1)
    pages.unlink()
    wait_for(lambda: node.ready and node.sequencer.idle)
    assert embedded.call("bump", id=1, amount=1) == 2
    embedded.close()
    assert rows(tmp_path / "data", 0, "SELECT seq FROM payloads") == [(0,)]


@pytest.mark.slow
def test_an_embedded_caller_hears_that_its_call_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries its outcome is unknown to it; the log has it."""
    pages = limited_pages(tmp_path, monkeypatch)
    monkeypatch.setattr(inline_sites, "GIVE_UP_S", 0.0)
    monkeypatch.setattr(inline_sites, "pause_s", lambda _tries: 0.01)
    pages.write_text("16")
    embedded = Embedded(open_node(tmp_path / "data", inline=True, partitions=1))
    assert embedded.call("bump", id=1, amount=1) == 1
    with pytest.raises(UnknownOutcome, match="logged, and not executed yet: disk_full"):
        embedded.call("store", id=1, seq=0, data=bytes(60_000))
    pages.unlink()
    wait_for(lambda: embedded.node.ready and embedded.node.sequencer.idle)
    embedded.close()
    assert rows(tmp_path / "data", 0, "SELECT seq FROM payloads") == [(0,)]
