"""`cmdlog.open`: threads, keys, types, futures, reopening."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import shutil
import signal
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cmdlog
from cmdlog.errors import Aborted, CallError, ProcedureFailed, UnknownProcedure
from cmdlog.node.embedded import call_thread, embedded
from cmdlog.node.embedded.call_thread import Unfinished
from cmdlog.node.embedded.embedded import Embedded, EmbeddedInvalidParameters, open_embedded
from cmdlog.node.outcome import NotReady
from cmdlog.node.sequencing import read_requests
from cmdlog.node.settings import BadSetting
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.wal.errors import Locked
from procedures import InvalidParameters
from tests.node.apps.faulty import Mixed, db
from tests.node.rig import SMALL, WAIT_S
from tests.waiting import PATIENCE_S, wait_for


def reopen(directory: Path, **settings: Any) -> Embedded:
    """The data directory, in this process."""
    return open_embedded(directory / "data", db, **{**SMALL, **settings})


def test_results_have_the_annotated_types(tmp_path: Path) -> None:
    """Decimal, datetime, bytes and dataclasses come back as themselves; lists of partitions too."""
    at = datetime(2024, 2, 29, 12, 30, 1, 250_000, tzinfo=UTC)
    with reopen(tmp_path) as opened:
        result = opened.call("mixed", id=1, amount=Decimal("1.50"), at=at, raw=b"\0\xff")
        assert result == Mixed(Decimal("1.50"), at, b"\0\xff", [Decimal("1.50")] * 2)
        assert opened.submit("mixed", id=1, amount=Decimal(2), at=at, raw=b"").result(PATIENCE_S).amount == Decimal(2)
        assert opened.call("look_everywhere", name="x") == [[0, 0]] * 4


def test_tables_are_there_when_open_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that comes before the states have the tables of this start waits for them, of one partition or of all."""
    apply, looked = InlineSites._apply, threading.Event()

    def apply_late(sites: InlineSites, partition: int, record: bytes, index: int) -> None:
        assert looked.wait(WAIT_S)
        apply(sites, partition, record, index)

    def look(_seconds: float) -> None:
        looked.set()
        os.sched_yield()

    monkeypatch.setattr(InlineSites, "_apply", apply_late)
    monkeypatch.setattr(read_requests, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=look))
    for partition in (1, None):
        looked.clear()
        with open_embedded(tmp_path / str(partition), db, **SMALL) as opened:
            assert not opened.query("select * from counters", partition=partition).rows
        assert looked.is_set(), "the tables were there before, or the query did not wait"


def test_outcomes_are_exceptions_of_their_own(tmp_path: Path) -> None:
    """Aborts, failures, unknown names and bad parameters are told apart, and the next call of the thread is not confused."""
    with reopen(tmp_path) as opened:
        with pytest.raises(Aborted) as aborted:
            opened.call("abort_after_write", id=1, amount=5)
        assert (aborted.value.code, aborted.value.abort_code) == ("no_luck", "no_luck")
        assert str(aborted.value).startswith("no_luck: ")
        assert aborted.value.txn_id > 0
        with pytest.raises(ProcedureFailed, match="it had written"):
            opened.call("raise_after_write", id=1, amount=5)
        with pytest.raises(ProcedureFailed, match="procedure raise_after_write raised LookupError: it had written") as failed:
            opened.call("raise_after_write", id=1, amount=5, idempotency_key="k")
        assert isinstance(failed.value.__cause__, LookupError)
        assert failed.value.file.endswith("faulty.py")
        with pytest.raises(ProcedureFailed) as repeated:
            opened.call("raise_after_write", id=1, amount=5, idempotency_key="k")
        assert (str(repeated.value), repeated.value.txn_id) == (str(failed.value), failed.value.txn_id)
        assert [(error["procedure"], error["count"]) for error in opened.status()["errors"]] == [("raise_after_write", 3)]
        with pytest.raises(TypeError, match="idempotency_key is text, not int"):
            opened.call("bump", id=1, amount=1, idempotency_key=7)  # type: ignore[call-overload]
        with pytest.raises(UnknownProcedure, match="bump"):
            opened.call("nothing")
        with pytest.raises(InvalidParameters):
            opened.call("bump", id="x", amount=1)
        with pytest.raises(InvalidParameters):
            opened.call("bump", id=1)
        assert opened.call("bump", id=1, amount=1) == 1
    with pytest.raises(NotReady):
        opened.call("bump", id=1, amount=1)
    opened.close()


@pytest.mark.parametrize("shown", [False, True])
def test_values_of_locals_are_for_development(tmp_path: Path, shown: bool) -> None:
    """With `traceback_locals` a debugger finds the values where the procedure raised; without, their frames are empty."""
    with reopen(tmp_path, traceback_locals=shown) as opened, pytest.raises(ProcedureFailed) as failed:
        opened.call("raise_after_write", id=1, amount=5)
    assert failed.value.__cause__ is not None
    steps = list(traceback.walk_tb(failed.value.__cause__.__traceback__))
    assert [frame.f_code.co_name for frame, _ in steps] == ["raise_after_write"]
    assert ("amount" in steps[0][0].f_locals) is shown


def test_a_procedure_that_interrupts_is_skipped(tmp_path: Path) -> None:
    """A procedure that raises KeyboardInterrupt at every try is left out after `site_restarts_max` of them, and stays out.

    The error that its caller gets, and the status, say so.
    """
    with reopen(tmp_path) as opened:
        assert opened.call("bump", id=1, amount=1) == 1
        with pytest.raises(ProcedureFailed, match=r"^procedure interrupt was skipped: ") as failed:
            opened.submit("interrupt", id=1).result(PATIENCE_S)
        assert failed.value.hint.startswith("interrupt was left out after 3 attempts: interrupted while running procedure")
        assert "KeyboardInterrupt()" in failed.value.hint
        assert opened.status()["errors"][0]["text"] == f"the call was skipped; {failed.value.hint}"
        assert opened.call("bump", id=1, amount=2) == 3
    with reopen(tmp_path) as opened:
        assert opened.call("bump", id=1, amount=4) == 7


def test_embedded_reads_have_no_consistency_to_choose(tmp_path: Path) -> None:
    """Clients may ask any node of a cluster for a stale read; this is a node alone, and the page on stale reads says so."""
    with reopen(tmp_path) as opened:
        calls: tuple[Callable[..., Any], ...] = partial(opened.invoke, "balance", {"id": 1}), partial(opened.query, "SELECT 1")
        for stale in calls:
            with pytest.raises(TypeError, match="consistency"):
                stale(consistency="stale")
    page = " ".join(Path(cmdlog.__file__).with_name("SERVING.md").read_text().split())
    assert "What `cmdlog.open` gives has no such argument" in page


def in_a_fork(work: Callable[[], object]) -> str:
    """Name of what `work` raises in a child process, or its result's text."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str(work())
        except BaseException as error:  # noqa: BLE001 - it is told to the parent
            told = type(error).__name__
        os.write(write_end, told.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    told = os.read(read_end, 1000).decode()
    os.close(read_end)
    return told


@pytest.mark.parametrize("empty", ["", " "])
def test_a_directory_without_a_name_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    """`open(os.environ.get("DATA", ""), db)` names what is missing, and makes no files."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match="data_dir: is empty"):
        open_embedded(empty, db, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_cannot_use_the_directory(tmp_path: Path) -> None:
    """A child would write the log's next block as the parent does: its calls are refused, its `close` leaves the log alone."""
    with reopen(tmp_path) as opened:
        assert opened.call("bump", id=1, amount=1) == 1
        assert in_a_fork(lambda: opened.call("bump", id=1, amount=10)) == "WrongProcess"
        assert in_a_fork(lambda: opened.submit("bump", id=1, amount=10)) == "WrongProcess"
        assert in_a_fork(lambda: opened.query("select 1")) == "WrongProcess"
        assert in_a_fork(opened.close) == "None"
        assert opened.call("bump", id=1, amount=2) == 3
    shutil.rmtree(tmp_path / "data" / "state")
    with reopen(tmp_path) as opened:
        assert opened.call("bump", id=1, amount=4) == 7


def test_a_fork_that_lives_on_does_not_lock_the_directory(tmp_path: Path) -> None:
    """The parent, or the next process after the parent's death, opens it again: `multiprocessing` forks workers that stay."""
    (hold, release), (forked, running) = os.pipe(), os.pipe()
    with reopen(tmp_path) as opened:
        assert opened.call("bump", id=1, amount=1) == 1
        child = os.fork()
        if child == 0:
            os.write(running, b"1")
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        assert os.read(forked, 1) == b"1"
    try:
        with reopen(tmp_path) as opened:
            assert opened.call("bump", id=1, amount=2) == 3
    finally:
        os.close(release)
        os.waitpid(child, 0)
        for descriptor in (hold, forked, running):
            os.close(descriptor)


def test_keys_repeat_the_first_outcome(tmp_path: Path) -> None:
    """The same key gives the first outcome, be it a result, an abort or a failure; other parameters or partitions are refused."""
    for _ in range(2):
        with reopen(tmp_path) as opened:
            assert opened.call("bump", idempotency_key="a", id=1, amount=5) == 5
            for _ in range(2):
                with pytest.raises(Aborted):
                    opened.call("abort_after_write", idempotency_key="b", id=1, amount=5)
                with pytest.raises(ProcedureFailed):
                    opened.call("raise_after_write", idempotency_key="c", id=1, amount=5)
            for params in ({"id": 1, "amount": 6}, {"id": 2, "amount": 5}, {"id": 3, "amount": 5}, {"id": 4, "amount": 5}):
                with pytest.raises(CallError) as reused:
                    opened.call("bump", idempotency_key="a", **params)
                assert reused.value.code == "key_reused"
            assert opened.call("peek", id=1) == 5


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"durability": "async"}, {"sites": 1}], ids=["inline", "async", "process"])
def test_threads_conserve_the_sum(tmp_path: Path, settings: dict[str, Any]) -> None:
    """32 threads calling, submitting and retrying by key: no call is lost, doubled or answered with another's result."""
    threads, rounds = 32, 12
    problems: list[BaseException] = []
    with reopen(tmp_path, **settings) as opened:

        def run(thread: int) -> None:
            try:
                for n in range(rounds):
                    assert opened.call("bump", id=thread, amount=1) == 3 * n + 1
                    assert opened.submit("bump", id=thread, amount=1).result(PATIENCE_S) == 3 * n + 2
                    for _ in range(2):
                        assert opened.call("bump", idempotency_key=f"{thread}-{n}", id=thread, amount=1) == 3 * n + 3
                    assert opened.call("peek", id=thread) == 3 * n + 3
                    opened.call("bump", id=1000 + n % 3, amount=1)
            except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                problems.append(error)

        workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert problems == []
        assert opened.node.sequencer.admission.inflight_calls == 0
    with reopen(tmp_path) as opened:
        held = {int(row[0]): int(row[1]) for row in opened.query("SELECT id, n FROM counters").rows}
        assert sum(held.values()) == threads * rounds * 4
        assert sum(held[1000 + n] for n in range(3)) == threads * rounds


def test_a_placed_call_cannot_be_cancelled(tmp_path: Path) -> None:
    """A caller that tries to cancel keeps neither its own call nor its neighbours' in the batch from their answers."""
    with reopen(tmp_path, partitions=1) as opened:
        futures = [opened.submit("nap", id=1, seconds=0.0) for _ in range(20)]
        for future in futures[::2]:
            assert not future.cancel()
        assert [future.result(PATIENCE_S) for future in futures] == list(range(1, 21))
        assert opened.call("peek", id=1) == 20
        assert opened.node.error is None


@pytest.mark.slow
def test_a_callback_does_not_close(tmp_path: Path) -> None:
    """It runs in a thread that `close` waits for: it is refused, nothing is closed, and the caller can close after that."""
    with reopen(tmp_path, partitions=1) as opened:
        closed: concurrent.futures.Future[None] = concurrent.futures.Future()

        def close(_future: object) -> None:
            try:
                opened.close()
                closed.set_result(None)
            except RuntimeError as error:
                closed.set_exception(error)

        opened.submit("nap", id=1, seconds=0.01).add_done_callback(close)
        with pytest.raises(RuntimeError, match="close the database in another one"):
            closed.result(PATIENCE_S)
        assert opened.call("bump", id=1, amount=1) == 2
    with reopen(tmp_path) as opened:
        assert opened.call("peek", id=1) == 2


def test_a_key_is_a_text_that_one_can_read(tmp_path: Path) -> None:
    """An empty one, of a variable that is not set, would make one call of all."""
    with reopen(tmp_path, partitions=1) as opened:
        for wrong in ("", "line\n", "\0", "k" * 256):
            with pytest.raises(EmbeddedInvalidParameters, match="idempotency_key: must have 1 to 255") as refused:
                opened.call("bump", id=1, amount=1, idempotency_key=wrong)
            assert [field for field, _ in refused.value.problems] == ["idempotency_key"]
            with pytest.raises(EmbeddedInvalidParameters):
                opened.submit("bump", id=1, amount=1, idempotency_key=wrong)
        assert opened.call("bump", id=1, amount=1, idempotency_key="k" * 255) == 1
        assert opened.call("bump", id=1, amount=1, idempotency_key="two wörds") == 2


@pytest.mark.slow
def test_an_interrupted_wait_leaves_no_answer_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a call is waited for: its late answer is not taken for that of the thread's next call."""
    with reopen(tmp_path, sites=1) as opened:
        opened.call("bump", id=1, amount=0)

        class Interrupted:
            def __init__(self) -> None:
                self.put = queue.SimpleQueue[object]().put

            def get(self) -> None:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(embedded, "SimpleQueue", Interrupted)
            with pytest.raises(KeyboardInterrupt):
                opened.call("bump", id=1, amount=7)
        for n in range(20):
            assert opened.call("bump", id=2, amount=1) == n + 1
        assert opened.call("peek", id=1) == 7


def interrupt_close(opened: Embedded, *, meanwhile: Callable[[], object] = lambda: None) -> BaseException | None:
    """Closes it in this thread, with Ctrl-C as soon as that is under way; what the KeyboardInterrupt was raised during."""

    def poke() -> None:
        wait_for(lambda: not opened.node.ready)
        os.kill(os.getpid(), signal.SIGINT)
        meanwhile()

    poker = threading.Thread(target=poke)
    poker.start()
    with pytest.raises(KeyboardInterrupt) as ended:
        opened.close()
    poker.join()
    return ended.value.__context__


@pytest.mark.slow
def test_interrupt_ends_the_wait_of_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a call does not end: close says what is left, the directory stays locked, and its next opening has all."""
    monkeypatch.setattr(call_thread, "GRACE_S", 0.1)
    lasts = tmp_path / "lasts"
    lasts.touch()
    opened = reopen(tmp_path, drain_timeout_s=300)
    assert opened.call("bump", id=1, amount=7) == 7
    running = opened.submit("stay", id=1, path=str(lasts))
    wait_for(lambda: opened.status()["stalled"])
    left = interrupt_close(opened)
    assert isinstance(left, Unfinished)
    assert "the next opening replays" in str(left)
    with pytest.raises(Locked):
        reopen(tmp_path)
    lasts.unlink()
    assert running.result(PATIENCE_S) == 8
    wait_for(lambda: all(thread.name != "last-work" for thread in threading.enumerate()))
    with reopen(tmp_path) as again:
        assert again.call("peek", id=1) == 8


@pytest.mark.slow
def test_interrupted_close_is_orderly_where_it_can_be(tmp_path: Path) -> None:
    """A call that ends soon after Ctrl-C leaves nothing behind; KeyboardInterrupt is raised when all is closed."""
    lasts = tmp_path / "lasts"
    lasts.touch()
    opened = reopen(tmp_path, drain_timeout_s=300)
    running = opened.submit("stay", id=1, path=str(lasts))
    wait_for(lambda: opened.status()["stalled"])
    assert interrupt_close(opened, meanwhile=lasts.unlink) is None
    assert running.result(PATIENCE_S) == 1
    with reopen(tmp_path) as again:
        assert again.call("peek", id=1) == 1


def test_the_last_work_of_a_busy_moment_is_not_left_lying(tmp_path: Path) -> None:
    """Two callers that drive the sites in turn with the site's own thread never leave one another waiting."""
    with reopen(tmp_path, partitions=2) as opened:

        def run(thread: int) -> None:
            for _ in range(150):
                opened.call("bump", id=thread, amount=1)

        workers = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive()


def test_closed_database_says_that_it_is_closed(tmp_path: Path) -> None:
    """Not that it is not ready, as if waiting would help."""
    opened = reopen(tmp_path)
    opened.close()
    uses: list[Callable[[], object]] = [
        lambda: opened.call("look", id=1), lambda: opened.submit("look", id=1), lambda: opened.query("select 1")
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(NotReady, match=r"the database is closed; `cmdlog\.open` opens its directory again"):
            use()


def test_misspelt_setting_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    """As on the command line, and before anything is written."""
    with pytest.raises(BadSetting, match=r"^partition: no such setting; did you mean partitions\?"):
        open_embedded(tmp_path / "data", db, partition=3)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([db], r"db is of type list, not a Database; give the object that `Database\(\.\.\.\)` made"),
        ("shop:db", "db is the text 'shop:db', not a Database; import it: `from shop import db`"),
    ],
)
def test_what_is_no_database_is_refused_by_its_type(tmp_path: Path, given: Any, says: str) -> None:
    """Before anything is written, and without the name of an attribute that only this program knows."""
    with pytest.raises(TypeError, match=says):
        open_embedded(tmp_path / "data", given)
    assert not (tmp_path / "data").exists()


def test_a_future_s_callback_may_submit_and_not_call(tmp_path: Path) -> None:
    """It runs in a thread that serves calls: a call there would wait for itself, and is refused with what to do instead."""
    with reopen(tmp_path) as opened:
        refused: list[BaseException] = []
        followed: queue.SimpleQueue[concurrent.futures.Future[Any]] = queue.SimpleQueue()

        def go_on(_future: concurrent.futures.Future[Any]) -> None:
            try:
                opened.call("bump", id=1, amount=1)
            except RuntimeError as error:
                refused.append(error)
            followed.put(opened.submit("bump", id=1, amount=1))

        opened.submit("bump", id=1, amount=1).add_done_callback(go_on)
        followed.get(timeout=PATIENCE_S).result(PATIENCE_S)
        assert "use submit() there" in str(refused[0])
        assert opened.call("bump", id=1, amount=1) == 3
