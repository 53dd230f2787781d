"""Promises of durability on a real node, over a disk whose syncs a test holds back and whose power it cuts."""

from __future__ import annotations

import concurrent.futures
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.assembly import MACHINE
from cmdlog.node.embedded.embedded import Embedded
from cmdlog.node.node import Node
from cmdlog.node.outcome import Durability, UnknownOutcome
from cmdlog.node.queries.query import run_query
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import File, RealFiles
from tests.node.rig import Pending, ask, counters, open_node, send
from tests.waiting import PATIENCE_S, wait_for

HELD_S = 0.15  # long enough for anything that does not wait for the disk, were it not to wait


class HeldFile:
    """A file of the log whose syncs wait for the gate, and which remembers what they made durable."""

    def __init__(self, file: File, path: str, files: HeldFiles) -> None:
        self._file, self._path, self._files = file, path, files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        written = self._files.look_at(self._path)  # what is written now is what this sync must make durable, and no more
        self._files.gate.wait()
        if self._files.broken:
            raise OSError(5, "planted: Input/output error")
        self._file.fdatasync()
        self._files.remember(self._path, written)


pytestmark = pytest.mark.usefixtures("copies_start")  # of what a power cut leaves


class HeldFiles(RealFiles):
    """The real disk. While `gate` is closed no sync of the log comes back; `cut_into` is what a power cut would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        self._durable: dict[str, tuple[int, bytes]] = {}  # path -> number of the look, content
        self._looks = 0
        self._lock = threading.Lock()

    def open(self, path: str, **options: Any) -> Any:
        file = super().open(path, **options)
        if "/log/seg-" not in path or options.get("read_only"):
            return file
        if path not in self._durable:
            self.remember(path, self.look_at(path))
        return HeldFile(file, path, self)

    def look_at(self, path: str) -> tuple[int, bytes]:
        with self._lock:
            self._looks += 1
            return self._looks, Path(path).read_bytes()

    def remember(self, path: str, written: tuple[int, bytes]) -> None:
        with self._lock:
            self._durable[path] = max(written, self._durable.get(path, written))

    def put_back(self, log: Path) -> None:
        """Leaves in the folder of the log what the disk has: pages that were only cached are gone."""
        for path, (_, data) in self._durable.items():
            (log / Path(path).name).write_bytes(data)

    def cut_into(self, directory: Path, target: Path) -> Path:
        """A copy of the directory as a power cut would leave the log now; states and snapshots as they are, at their worst."""
        shutil.copytree(directory, target, ignore=shutil.ignore_patterns("LOCK"))
        self.put_back(target / "log")
        return target


def close_gate(node: Node, files: HeldFiles) -> None:
    """From here on no sync ends. Nothing of before is under way: digests and marks follow a batch in a block of their own."""

    def at_rest() -> bool:
        sequencer, tail = node.sequencer, node._wal._tail
        with sequencer._lock:
            owed = sequencer.log_feed.notes.find_due(sequencer._streams.values())
        return sequencer.idle and not owed and tail.sealed and node._wal.durable_block == tail.number

    wait_for(at_rest)
    files.gate.clear()


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldFiles]:
    """The disk of every node of the test; open again at its end, so that nothing waits for ever."""
    held = HeldFiles()
    opened = Node.open.__func__  # type: ignore[attr-defined] # of a class method
    on_it = replace(MACHINE, files=held)
    monkeypatch.setattr(Node, "open", classmethod(lambda cls, *args, **more: opened(cls, *args, **{**more, "outside": on_it})))
    yield held
    held.gate.set()


def place(node: Node, name: str, durability: Durability | None, /, **params: Any) -> Pending:
    """Places a call with this promise."""
    pending, route = Pending(), node.routes[name]
    node.call(route, route.procedure.bind(params), done=pending.done, durability=durability)
    return pending


def unanswered(*pendings: Pending) -> bool:
    """None of them is answered, though there was time for it."""
    return not any(pending._told.wait(HELD_S / len(pendings)) for pending in pendings)


@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False])
def test_calls_of_one_node_keep_their_own_promises(tmp_path: Path, files: HeldFiles, inline: bool) -> None:
    """While the disk hangs a lax call is answered; a strict one, a read and a query after it wait; lax and stale reads do not."""
    node = open_node(tmp_path / "data", inline=inline, partitions=1)
    ask(node, "bump", id=1, amount=1)
    close_gate(node, files)
    assert place(node, "bump", "async", id=1, amount=10).value() == 11
    strict = place(node, "bump", None, id=1, amount=100)
    read = place(node, "peek", None, id=1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        query = pool.submit(node.query, "SELECT n FROM counters")
        assert place(node, "peek", "async", id=1).value() in (11, 111)
        assert node.stale.query(run_query, "SELECT n FROM counters", (), 0).rows[0][0] in (11, 111)
        stale, route = Pending(), node.routes["peek"]
        node.stale.call(route, [1], done=stale.done)
        node.help()
        assert stale.value() in (11, 111)
        assert place(node, "bump", "async", id=1, amount=1000).value() == 1111
        assert unanswered(strict, read)
        assert not query.done()
        files.gate.set()
        assert strict.value() == 111
        assert read.value() in (11, 111, 1111)
        assert query.result(PATIENCE_S).rows[0][0] in (11, 111, 1111)
    wait_for(lambda: node.sequencer.idle)
    node.close()
    node = open_node(tmp_path / "data", inline=True)
    assert counters(node) == {1: 1111}
    node.close()


def wait_until_executed(node: Node) -> None:
    """Every partition has executed more than is durable."""
    wait_for(lambda: all(mark["applied"] > mark["durable"] for mark in node.sequencer.watermarks().values()))


@pytest.mark.slow
@pytest.mark.parametrize("inline", [True, False])
def test_what_a_failed_sync_leaves_is_unknown_and_undone(tmp_path: Path, files: HeldFiles, inline: bool) -> None:
    """Calls that were executed beside a sync that fails are answered `outcome_unknown`; what the log lost, states lose too."""
    node = open_node(tmp_path / "data", inline=inline, partitions=1)
    ask(node, "bump", id=1, amount=1)
    close_gate(node, files)
    call = place(node, "bump", None, id=1, amount=10)
    wait_until_executed(node)
    read = place(node, "peek", None, id=1)
    files.broken = True
    files.gate.set()
    assert isinstance(call.wait(), UnknownOutcome)
    assert isinstance(read.wait(), UnknownOutcome)
    with pytest.raises(WalError):
        node.close()
    files.broken = False
    files.put_back(tmp_path / "data" / "log")
    node = open_node(tmp_path / "data", inline=True)
    assert counters(node) == {1: 1}
    node.close()


@pytest.mark.slow
def test_a_power_cut_takes_lax_calls_at_most(tmp_path: Path, files: HeldFiles) -> None:
    """What was answered lax and not synced is gone with all its effects, everything else is there, and states are corrected."""
    node = open_node(tmp_path / "data", inline=True, partitions=2)
    for n in range(6):
        ask(node, "bump", id=n, amount=1)
    close_gate(node, files)
    lax = [place(node, "bump", "async", id=n, amount=10) for n in range(6)]
    assert [pending.value() for pending in lax] == [11] * 6
    strict = [place(node, "bump", "sync", id=n, amount=100) for n in range(6)]
    wait_for(lambda: all(mark["applied"] > mark["durable"] for mark in node.sequencer.watermarks().values()))
    assert unanswered(*strict)
    cut = files.cut_into(tmp_path / "data", tmp_path / "cut")
    files.gate.set()
    assert [pending.value() for pending in strict] == [111] * 6
    later = files.cut_into(tmp_path / "data", tmp_path / "later")
    node.close()
    for directory, expected in ((cut, 1), (later, 111)):
        again = open_node(directory, inline=True)
        assert counters(again) == dict.fromkeys(range(6), expected)
        assert ask(again, "bump", id=0, amount=1) == expected + 1
        again.close()


@pytest.mark.slow
def test_states_ahead_of_a_log_that_lost_its_pages_are_discarded(tmp_path: Path, files: HeldFiles) -> None:
    """After a failed sync the same boot opens the same files: a trusted state that holds calls which the log lost yields."""
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    ask(node, "bump", id=1, amount=1)
    close_gate(node, files)
    assert place(node, "bump", "async", id=1, amount=10).value() == 11
    strict = place(node, "bump", None, id=1, amount=100)
    wait_for(lambda: node.sequencer.watermarks()[0]["applied"] > node.sequencer.watermarks()[0]["durable"])
    files.broken = True
    files.gate.set()
    assert isinstance(strict.wait(), UnknownOutcome)
    with pytest.raises(WalError):
        node.close()
    files.broken = False
    files.put_back(tmp_path / "data" / "log")
    node = open_node(tmp_path / "data", inline=True)
    assert counters(node) == {1: 1}
    assert ask(node, "bump", id=1, amount=1) == 2
    node.close()


LOSES_A_BLOCK = """
import os, signal, sys
from pathlib import Path
from cmdlog.node.embedded.embedded import Embedded
from cmdlog.wal import files
from tests.node.rig import open_node
from tests.waiting import wait_for

class Late:
    '''As a thread that does not come to its write before the process is killed. The first that lands the block kills it.'''
    armed = False
    def start(self, path, data, offset):
        if self.armed:
            print("started", flush=True)
        return self.armed
    def finish(self):
        wait_for(is_ahead)
        os.kill(os.getpid(), signal.SIGKILL)
    def close(self): pass

def is_ahead():
    marks = node.sequencer.watermarks()[0]
    return marks["applied"] > marks["durable"]

files.open_write_thread = lambda: Late()
node = open_node(Path(sys.argv[1]), inline=True, partitions=1)
embedded = Embedded(node)
print(embedded.call("bump", id=1, amount=1), flush=True)
Late.armed = True
for _ in range(1000):  # one beside which no other block is in flight is started
    print(embedded.call("bump", id=1, amount=100), flush=True)
"""


@pytest.mark.slow
def test_a_state_ahead_of_a_block_that_a_kill_took_is_discarded(tmp_path: Path) -> None:
    """A lone call is executed while its block is on its way. The kernel has it by then; here it has not, and never had."""
    ended = subprocess.run([sys.executable, "-c", LOSES_A_BLOCK, str(tmp_path / "data")], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    *_, answered, started = ended.stdout.splitlines()
    assert started == b"started"
    node = open_node(tmp_path / "data", inline=True)
    assert "beyond the log's end" in node.recovery[0]["passed"][0]["why"]
    assert counters(node) == {1: int(answered)}
    assert ask(node, "bump", id=1, amount=1) == int(answered) + 1
    node.close()


@pytest.mark.slow
def test_no_snapshot_counts_before_its_entries_are_durable(tmp_path: Path, files: HeldFiles) -> None:
    """An image that holds what a power cut may take has no name before that is durable."""
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    ask(node, "bump", id=1, amount=1)
    close_gate(node, files)
    assert place(node, "bump", "async", id=1, amount=10).value() == 11
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        taken = pool.submit(node.take_snapshot)
        wait_for(lambda: bool(node.sequencer._streams[0].held))  # the image is there
        assert not taken.done()
        assert not node.snapshots()
        assert all("tmp" in path.name for path in (tmp_path / "data" / "snapshots").iterdir() if path.is_dir())
        cut = files.cut_into(tmp_path / "data", tmp_path / "cut")
        files.gate.set()
        assert taken.result(PATIENCE_S)  # the process that seals has idle time alone
    node.close()
    again = open_node(cut, inline=True)
    assert counters(again) == {1: 1}
    again.close()


@pytest.mark.slow
def test_embedded_calls_choose_their_durability(tmp_path: Path, files: HeldFiles) -> None:
    """`invoke(durability="async")` returns while the disk hangs, `call` does not; nobody else has to drive the sites."""
    opened = Embedded(open_node(tmp_path / "data", inline=True, partitions=1))
    opened.call("bump", id=1, amount=1)
    close_gate(opened.node, files)
    assert opened.invoke("bump", {"id": 1, "amount": 10}, durability="async").value == 11
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        strict = pool.submit(opened.call, "bump", id=1, amount=100)
        with pytest.raises(concurrent.futures.TimeoutError):
            strict.result(HELD_S)
        files.gate.set()
        assert strict.result(PATIENCE_S) == 111
    opened.close()


def test_promises_reach_the_log_in_batches(tmp_path: Path) -> None:
    """Calls of one `call_many` may differ; each gets its result."""
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    made = [Pending() for _ in range(6)]
    route = node.routes["bump"]
    wishes: list[Durability | None] = [None, "async", "sync", "async", None, "sync"]
    node.call_many(
        [(route, route.procedure.bind({"id": 1, "amount": 1}), b"", p.done, w) for p, w in zip(made, wishes, strict=True)]
    )
    assert [pending.value() for pending in made] == [1, 2, 3, 4, 5, 6]
    assert isinstance(send(node, "peek", id=1).value(), int)
    node.close()
