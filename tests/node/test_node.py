"""The node as a whole: kills, locks, failed writes, full disks, rebuilding, keys over restarts."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node import boot as boot_module
from cmdlog.node import node as node_module
from cmdlog.node.boot import OtherApplication
from cmdlog.node.clock import HybridClock
from cmdlog.node.node import Node
from cmdlog.node.outcome import DiskFull, LogFull, NotReady, Outcome, OutcomeUnknown, Refused, TooLarge
from cmdlog.node.settings import BadSetting
from cmdlog.node.snapshots import Snapshotter
from cmdlog.wal.errors import Locked, WalError, Wedged, WrongDirectory
from cmdlog.wal.files import File, RealFiles
from cmdlog.wal.instance import BadSettings
from procedures import Database
from procedures import state as state_module
from procedures.errors import SchemaConflict
from procedures.outcomes import Status
from snapshot.capture import Capture
from snapshot.errors import SnapshotFailed
from tests.node.apps import tagged
from tests.node.rig import SMALL, Pending, alive, ask, counters, kill, open_node, rows, send, wait_for

ROOT = Path(__file__).resolve().parents[2]


def hold(directory: Path, mode: str, *settings: str) -> subprocess.Popen[str]:
    """A node in a process of its own; see apps/holder.py."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "tests.node.apps.holder", str(directory), mode, *settings]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **path})


def read_lines(process: subprocess.Popen[str], until: Callable[[str], bool]) -> list[str]:
    """Output up to the line that `until` accepts."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until(line):
            return lines
    raise AssertionError(f"it ended after {lines[-3:]}")


def end(process: subprocess.Popen[str]) -> str:
    """SIGKILL; what it had still written."""
    kill(process.pid)
    process.wait(timeout=30)
    assert process.stdout is not None
    with process.stdout as stdout:  # not communicate(): it would pass over what was read ahead
        return stdout.read()


# -- restarts --------------------------------------------------------------------------------------------------------------


def test_states_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    """Missing, older and whole state files give the same answers after a restart, and ids go on growing."""
    data = tmp_path / "data"
    node = open_node(data, inline=True, partitions=2)
    for n in range(50):
        ask(node, "bump", id=n % 5, amount=n)
    ask(node, "set_rate", name="r", value=3)
    node.close()
    shutil.copytree(data / "state", tmp_path / "old")
    node = open_node(data, inline=True)
    for n in range(50):
        ask(node, "bump", id=n % 5, amount=1000)
    ask(node, "set_rate", name="r", value=4)
    held, last = counters(node), node.clock.last
    node.close()
    for how in ("missing", "older", "whole"):
        if how == "missing":
            shutil.rmtree(data / "state")
        if how == "older":
            shutil.rmtree(data / "state")
            shutil.copytree(tmp_path / "old", data / "state")
        node = open_node(data, inline=True)
        assert counters(node) == held
        assert [value for value, _ in ask(node, "look_everywhere", name="r")] == [4, 4]
        assert node.clock.last >= last
        last = node.clock.last
        node.close()


@pytest.mark.parametrize("back_s", [3600, 86_400])
def test_ids_grow_over_restarts_with_the_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_s: float) -> None:
    """A node that starts with its clock an hour or a day back gives greater ids than before."""
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    ids = []
    for _ in range(3):
        reply = send(node, "bump", id=1, amount=1)
        node.help()
        answer = reply.wait()
        assert isinstance(answer, Outcome)
        ids.append(answer.txn_id)
    node.close()

    def behind(**options: Any) -> Any:
        return HybridClock(**options, wall=lambda: time.time() - back_s)

    monkeypatch.setattr(node_module, "HybridClock", behind)
    node = open_node(tmp_path / "data", inline=True)
    answer = send(node, "bump", id=1, amount=1).wait()
    assert isinstance(answer, Outcome)
    assert [*ids, answer.txn_id] == sorted({*ids, answer.txn_id})
    node.close()


def test_keys_answer_the_same_after_a_restart(tmp_path: Path) -> None:
    """A retried key gets its first answer on its partition and on all of them; on another one it is refused."""
    data = tmp_path / "data"
    node = open_node(data, inline=True, partitions=4)
    first = send(node, "bump", key="k", id=1, amount=5).wait()
    assert ask(node, "set_rate", key="all", name="r", value=1) == [0, 0, 0, 0]
    assert ask(node, "set_rate", name="r", value=2) == [1, 1, 1, 1]
    far = next(i for i in range(2, 99) if partition(node, i) != partition(node, 1))
    for _ in range(2):
        assert send(node, "bump", key="k", id=1, amount=5).wait() == first
        assert ask(node, "set_rate", key="all", name="r", value=1) == [0, 0, 0, 0]
        for reply in (
            send(node, "bump", key="k", id=1, amount=6).wait(),
            send(node, "bump", key="k", id=far, amount=5).wait(),
            send(node, "set_rate", key="k", name="r", value=9).wait(),
            send(node, "bump", key="all", id=1, amount=5).wait(),
        ):
            assert isinstance(reply, Outcome)
            assert reply.status == Status.KEY_REUSED
        node.close()
        node = open_node(data, inline=True)
    assert counters(node) == {1: 5}
    node.close()


def test_a_full_key_table_of_one_partition_leaves_no_multi_partition_call_half_done(tmp_path: Path) -> None:
    """All partitions run it, though one of them refuses new keys of its own calls; when none has room, none runs it."""
    node = open_node(tmp_path / "data", inline=True, partitions=2, keys_max=3)
    for n in range(3):
        ask(node, "bump", key=f"k{n}", id=1, amount=1)
    full = send(node, "bump", key="new", id=1, amount=1).wait()
    assert isinstance(full, Outcome)
    assert full.status == Status.SESSIONS_FULL
    assert ask(node, "set_rate", key="all", name="r", value=1) == [0, 0]
    assert {value for value, _ in ask(node, "look_everywhere", name="r")} == {1}
    far = next(i for i in range(2, 99) if partition(node, i) != partition(node, 1))
    for n in range(2):
        ask(node, "bump", key=f"other {n}", id=far, amount=1)
    none = send(node, "set_rate", key="too many", name="r", value=2).wait()
    assert isinstance(none, Outcome)
    assert none.status == Status.SESSIONS_FULL
    assert ask(node, "set_rate", key="all", name="r", value=1) == [0, 0], "a repetition is answered from a full table, too"
    assert {value for value, _ in ask(node, "look_everywhere", name="r")} == {1}
    node.close()


def partition(node: Node, number: int) -> int:
    """Where a counter lives."""
    return node.slots.partition_of(node.routes["bump"].procedure, [number, 0])


def test_tables_that_the_rows_do_not_allow_are_refused_before_they_are_logged(tmp_path: Path) -> None:
    """A logged schema that cannot be applied would be the end of every replay; so it is tried first, and the old code goes on."""
    data = tmp_path / "data"
    node = open_node(data, app=tagged.plain, inline=True, partitions=2)
    for number in range(8):
        ask(node, "put", id=number, tag=5)
    node.close()
    with pytest.raises(SchemaConflict, match="UNIQUE constraint"):
        open_node(data, app=tagged.unique, inline=True)
    node = open_node(data, app=tagged.plain, inline=True)
    assert ask(node, "put", id=8, tag=5) == 5
    node.close()


@pytest.mark.slow
def test_a_capture_in_an_inline_site_that_is_restored_is_told_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that word no snapshot would ever be taken again, and the log would fill."""
    begun = threading.Event()

    def never_complete(_self: Capture) -> bool:
        begun.set()
        return False

    node = open_node(tmp_path / "data", inline=True, partitions=1, site_restarts_max=1)
    with monkeypatch.context() as patched:
        patched.setattr(Capture, "step", never_complete)
        asked = node._snapshots.take([0])
        assert begun.wait(30)
        failed = send(node, "exhaust", id=1).wait()
        assert isinstance(failed, Outcome)
        with pytest.raises(SnapshotFailed, match="site ended"):
            asked.result(30)
    assert node.take_snapshot(0)[0]["index"] > 0
    node.close()


def test_a_second_node_on_the_directory_is_refused(tmp_path: Path) -> None:
    """Exit code 12, and the first one does not notice."""
    node = open_node(tmp_path / "data", inline=True)
    with pytest.raises(Locked) as refused:
        open_node(tmp_path / "data", inline=True)
    assert refused.value.exit_code == 12
    assert ask(node, "bump", id=1, amount=1) == 1
    node.close()
    open_node(tmp_path / "data", inline=True).close()


@pytest.mark.slow
def test_sites_end_with_a_killed_node_even_in_an_endless_call(tmp_path: Path) -> None:
    """SIGKILL of the node while a site hangs: the site ends, a successor opens the directory, and everything is there."""
    process = hold(tmp_path / "data", "hang", "sites=1", "call_timeout_s=600.0")
    lines = read_lines(process, lambda line: line == "hanging\n")
    pids = [int(pid) for pid in next(line for line in lines if line.startswith("pids")).split()[1:]]
    wait_for(lambda: rows(tmp_path / "data", 0, "SELECT idx FROM _cmdlog_meta") != [] and all(map(alive, pids)))
    end(process)
    wait_for(lambda: not any(map(alive, pids)), timeout_s=5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [["sites=2"], [], pytest.param(["durability=async"], marks=pytest.mark.torture)])
def test_what_was_acknowledged_survives_kills(tmp_path: Path, settings: list[str]) -> None:
    """SIGKILL in the middle of the load, twice: every acknowledged call is there once, and ids never go back."""
    data = tmp_path / "data"
    acknowledged = [-1] * 4
    last_txn = 0
    for _ in range(2):
        process = hold(data, "load", *settings)
        lines = read_lines(process, lambda line: line.split()[2:3] == ["40"])
        lines += end(process).splitlines(keepends=True)
        acks = [line.split() for line in lines if line.startswith("ack") and line.endswith("\n")]
        assert len(acks) >= 41
        for _, thread, number, txn in acks:
            acknowledged[int(thread)] = max(acknowledged[int(thread)], int(number))
            assert int(txn) > last_txn
        last_txn = max(last_txn, *(int(txn) for *_, txn in acks))
    node = open_node(data, inline=True)
    held = counters(node)
    assert all(number + 1 <= held.get(thread, 0) <= number + 2 for thread, number in enumerate(acknowledged)), (
        held,
        acknowledged,
    )
    assert node.clock.last >= last_txn
    node.close()


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(40))
def test_kills_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Node or site killed at a random moment, again and again; counters agree with what was acknowledged."""
    import random

    chance = random.Random(seed)
    data, acknowledged = tmp_path / "data", [-1] * 4
    for _ in range(10):
        process = hold(data, "load", *chance.choice([["sites=2"], [], ["durability=async"]]))
        first = read_lines(process, lambda line: line.startswith("pids"))
        pids = [int(pid) for pid in first[-1].split()[1:]]
        if pids and chance.random() < 0.7:
            time.sleep(chance.random() * 0.3)
            kill(chance.choice(pids))
        time.sleep(chance.random() * 0.5)
        for line in end(process).splitlines(keepends=True):
            if line.startswith("ack") and line.endswith("\n"):
                _, thread, number, _ = line.split()
                acknowledged[int(thread)] = max(acknowledged[int(thread)], int(number))
        node = open_node(data, inline=True)
        held = counters(node)
        assert all(number + 1 <= held.get(thread, 0) <= number + 2 for thread, number in enumerate(acknowledged)), seed
        node.close()


# -- limits and failures of the disk ---------------------------------------------------------------------------------------


def test_a_call_larger_than_any_block_is_refused_and_others_go_on(tmp_path: Path) -> None:
    """With small segments the limits shrink: what could never be logged is `too_large`, what just fits is logged."""
    node = open_node(
        tmp_path / "data", inline=True, partitions=1, segment_bytes=64 << 10, call_bytes_max=32 << 10, log_reserve_bytes=8 << 10
    )
    limit = node.settings.call_bytes_max
    assert limit <= 16 << 10
    with pytest.raises(TooLarge):
        send(node, "store", id=1, seq=0, data=bytes(limit))
    for seq in range(3):
        size = limit * 3 // 4 - 20
        assert ask(node, "store", id=1, seq=seq, data=bytes(size)) == size
    assert node.error is None
    node.close()


@pytest.mark.slow
def test_large_calls_of_all_partitions_never_wedge_the_log(tmp_path: Path) -> None:
    """More bytes than a block holds, from all partitions at once, with digests beside them: blocks stay within their limit."""
    node = open_node(
        tmp_path / "data", inline=True, partitions=4, call_bytes_max=60_000, batch_bytes_max=128 << 10, segments=64, log_threads=2
    )
    sent = [send(node, "store", id=n % 16, seq=n, data=os.urandom(15_000)) for n in range(700)]
    assert {pending.value() for pending in sent} == {15_000}
    assert node.error is None
    assert node.sequencer.inflight_bytes == 0
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
        except LogFull:
            full = True
    assert seq > 20
    assert node.error is None
    assert ask(node, "peek", id=1) == 0
    node.close()
    node = open_node(tmp_path / "data", inline=True)
    assert node.query("SELECT count(*) FROM payloads").rows[0][0] == seq
    node.close()


@pytest.mark.slow
def test_a_full_log_of_many_partitions_gets_out_by_their_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition needs two, and each leaves a mark and a seal in the log: the reserve has room for all of them."""
    start = Snapshotter.start
    monkeypatch.setattr(Snapshotter, "start", lambda self: None)
    sizes: dict[str, Any] = {"segment_bytes": 256 << 10, "segments": 4, "log_reserve_bytes": 4096, "call_bytes_max": 9000}
    node = open_node(tmp_path / "data", inline=True, partitions=6, **sizes)
    numbers = itertools.count()

    def there_is_room() -> bool:
        seq = next(numbers)
        try:
            return bool(ask(node, "store", id=seq, seq=seq, data=bytes(4000)))
        except LogFull:
            return False

    wait_for(lambda: not there_is_room())
    start(node._snapshots)
    wait_for(there_is_room)
    node.close()


@pytest.mark.slow
def test_segments_too_small_for_the_partitions_are_refused(tmp_path: Path) -> None:
    """Such a log would take its first records and stop at its first rotation, for ever; twice the size is enough."""
    small: dict[str, Any] = {"partitions": 64, "log_reserve_bytes": 4096, "call_bytes_max": 9000}
    with pytest.raises(BadSettings, match="64 partitions"):
        open_node(tmp_path / "data", inline=True, segment_bytes=64 << 10, **small)
    assert not (tmp_path / "data").exists()
    node = open_node(tmp_path / "data", inline=True, segment_bytes=128 << 10, **small)
    for seq in range(40):
        ask(node, "store", id=1, seq=seq, data=bytes(6000))
    assert ask(node, "set_rate", name="r", value=1) == [0] * 64
    node.close()
    assert len(list((tmp_path / "data" / "log").glob("seg-*"))) > 1
    open_node(tmp_path / "data", inline=True).close()


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
def test_a_failed_sync_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool) -> None:
    """Everybody under way is told that the outcome is unknown, nobody is acknowledged later, and the node says why."""
    files = FailingFiles()
    monkeypatch.setattr(node_module, "RealFiles", lambda: files)
    node = open_node(tmp_path / "data", inline=inline, partitions=2)
    failures: list[BaseException] = []
    node.on_failure = failures.append
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
    assert all(isinstance(reply, OutcomeUnknown) for reply in replies)
    assert all(len(pending.replies) == 1 for pending in sent)
    wait_for(lambda: bool(failures))
    assert len(failures) == 1
    assert "planted" in str(node.error)
    assert not node.ready
    with pytest.raises(NotReady, match="restarted"):
        send(node, "bump", id=1, amount=1)
    assert (node.sequencer.inflight_calls, node.sequencer.inflight_bytes) == (0, 0)
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

    def wedged(*_: Any) -> bool:
        raise Wedged("planted")

    monkeypatch.setattr(node._wal, "run_turn", wedged)
    monkeypatch.setattr(node._wal, "kick", wedged)
    route = node.routes["bump"]
    first, second = Pending(), Pending()
    node.call_inline(route, route.procedure.bind({"id": 1, "amount": 1}), done=first.done)
    node.call(route, route.procedure.bind({"id": 1, "amount": 1}), done=second.done)
    assert not first.replies
    node.sequencer.failed(Wedged("planted"))
    assert isinstance(first.wait(), OutcomeUnknown)
    assert isinstance(second.wait(), OutcomeUnknown)
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
    with pytest.raises(Refused):
        node.call_many(prepared(5))
    large = (node.routes["store"], [1, 1, "A" * 200_000], b"", Pending().done, None)
    with pytest.raises(Refused):
        node.call_many([*prepared(5), large])
    assert not any(pending.replies for pending in made)
    made.clear()
    read = Pending()
    made_before = prepared(1, key=b"k" * 16)
    made.append(read)
    node.call_many([*made_before, (node.routes["peek"], [1], b"", read.done, None), *prepared(9)])
    node.help()
    replies = [pending.wait() for pending in made]
    assert [isinstance(reply, Outcome) for reply in replies] == [True] * 2 + [False] * 9
    assert all(len(pending.replies) == 1 for pending in made)
    node.close()


@pytest.mark.slow
def test_a_full_disk_refuses_calls_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLITE_FULL in a batch: calls are refused as `disk_full`, also those that wait for a batch, and nothing of them is logged;
    when there is room, what is logged is applied, once.
    """
    pages = tmp_path / "pages"
    real = state_module._configure

    def configure(connection: Any, pages_checkpoint: int) -> None:
        real(connection, pages_checkpoint)
        if pages.exists():
            connection.pragma("max_page_count", int(pages.read_text()))

    monkeypatch.setattr(state_module, "_configure", configure)
    pages.write_text("40")
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    assert ask(node, "bump", id=1, amount=1) == 1
    sent: list[Pending] = []

    def refused() -> bool:
        try:
            sent.append(send(node, "store", id=1, seq=len(sent), data=bytes(40_000)))
        except DiskFull:
            return True
        return False

    wait_for(refused)
    pages.unlink()
    replies = [pending.wait() for pending in sent]
    done = [at for at, reply in enumerate(replies) if isinstance(reply, Outcome)]
    assert done
    assert all(isinstance(reply, DiskFull) for at, reply in enumerate(replies) if at not in done)
    wait_for(lambda: node.ready and node.sequencer.idle)
    assert ask(node, "bump", id=1, amount=1) == 2
    assert rows(tmp_path / "data", 0, "SELECT seq FROM payloads ORDER BY seq") == [(at,) for at in done]
    node.close()


@pytest.mark.slow
def test_an_embedded_node_on_a_full_disk_closes_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be applied stays in the log; the next start, with room, applies it."""
    real, pages = state_module._configure, tmp_path / "pages"

    def configure(connection: Any, pages_checkpoint: int) -> None:
        real(connection, pages_checkpoint)
        if pages.exists():
            connection.pragma("max_page_count", int(pages.read_text()))

    monkeypatch.setattr(state_module, "_configure", configure)
    pages.write_text("16")
    node = open_node(tmp_path / "data", inline=True, partitions=2, drain_timeout_s=0.2)
    home = next(i for i in range(99) if partition(node, i) == 0)
    stuck = send(node, "store", id=home, seq=0, data=bytes(60_000))
    wait_for(lambda: not node.ready)
    told = node.status()
    assert (told["disk_full"]["path"], told["disk_full"]["partitions"]) == (str(tmp_path / "data"), [0])
    assert [told["partitions"][p]["state"] for p in "01"] == ["disk_full", "ok"]
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < 5
    assert isinstance(stuck.wait(), OutcomeUnknown)
    pages.unlink()
    again = open_node(tmp_path / "data", inline=True)
    assert again.ready
    again.close()
    assert rows(tmp_path / "data", 0, "SELECT count(*) FROM payloads") == [(1,)]


@pytest.mark.slow
def test_a_site_that_cannot_write_refuses_calls_and_loses_none(tmp_path: Path) -> None:
    """Writes of one site process fail: its partition refuses calls, the other goes on, and its successor applies what waited."""
    node = open_node(tmp_path / "data", partitions=2, sites=2)
    ours = next(i for i in range(99) if partition(node, i) == 0)
    other = next(i for i in range(99) if partition(node, i) == 1)
    assert (ask(node, "bump", id=ours, amount=1), ask(node, "bump", id=other, amount=1)) == (1, 1)
    resource.prlimit(node.status()["sites"][0], resource.RLIMIT_FSIZE, (1000, 1000))
    waiting = send(node, "store", id=ours, seq=0, data=bytes(50_000))

    def refused() -> bool:
        try:
            send(node, "bump", id=ours, amount=0)
        except NotReady as refusal:
            return "site cannot run" in str(refusal)
        return False

    wait_for(refused)
    assert ask(node, "bump", id=other, amount=1) == 2
    assert waiting.value() == 50_000
    wait_for(lambda: node.sequencer.idle)
    assert rows(tmp_path / "data", 0, "SELECT count(*) FROM payloads") == [(1,)]
    node.close()


def test_a_crash_in_creation_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that ended while its directory was made is made by the next start."""

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cmdlog.wal.log.write_instance", broken)
        with pytest.raises(KeyboardInterrupt):
            open_node(tmp_path / "data", inline=True)
    node = open_node(tmp_path / "data", inline=True)
    assert ask(node, "bump", id=1, amount=1) == 1
    node.close()
    assert boot_module.applied_index(str(tmp_path / "data"), 0) >= 1
    assert SMALL["segments"] == node.settings.segments


OTHER = Database("other")


def test_another_application_is_refused(tmp_path: Path) -> None:
    """By the name of its database: its procedures would work on tables that are not theirs."""
    open_node(tmp_path / "data", inline=True).close()
    with pytest.raises(OtherApplication, match="belongs to database"):
        open_node(tmp_path / "data", app=OTHER, inline=True)
    open_node(tmp_path / "data", inline=True).close()


def test_a_setting_that_was_fixed_at_creation_is_not_ignored(tmp_path: Path) -> None:
    """Leaving it out takes what the directory was made with; another value is refused by name."""
    open_node(tmp_path / "data", inline=True, partitions=3).close()
    with pytest.raises(BadSetting, match="partitions: the directory was made with 3"):
        open_node(tmp_path / "data", inline=True, partitions=7)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    """Not even a lock is written beside them; a file is no directory; the root of a new volume is empty enough."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(WrongDirectory, match=r"cat\.png"):
        open_node(tmp_path / "photos", inline=True)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
    with pytest.raises(WrongDirectory, match="is a file"):
        open_node(tmp_path / "photos" / "cat.png", inline=True)
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    open_node(tmp_path / "volume", inline=True).close()
