"""Exactly once, attacked: outcomes repeated through restarts, kills, restores and clocks; keys that wander, race and flood."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NotReady
from cmdlog.wal.files import RealFiles
from procedures.idempotency.known_outcome import KeyPolicy, Status, key_fingerprint
from procedures.idempotency.session_calls import sent_name
from procedures.storage.state import PartitionState
from replay.errors import Divergence
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from replay.state.trust import Trust, state_path
from tests.node.rig import Pending, ask, counters, kill, open_node, send
from tests.waiting import wait_for

HOUR, DAY = 3600.0, 86_400.0
TOO_LONG = KeyPolicy().stored_result_bytes_max + 1

KINDS: dict[str, tuple[str, dict[str, Any], Status]] = {
    "result": ("bump", {"id": 1, "amount": 5}, Status.OK),
    "result everywhere": ("set_rate", {"name": "r", "value": 7}, Status.OK),
    "abort": ("abort_after_write", {"id": 1, "amount": 5}, Status.ABORTED),
    "failure": ("raise_after_write", {"id": 1, "amount": 5}, Status.FAILED),
    "answer too long to keep": ("big", {"id": 1, "size": TOO_LONG}, Status.FAILED),
}


def outcome(pending: Pending) -> CallOutcome:
    """What the call was told; a refusal is a failure of the test."""
    reply = pending.wait()
    assert isinstance(reply, CallOutcome), reply
    return reply


Naming = Callable[[str], str | bytes]


def by_keys() -> Naming:
    """Each call has a key of its own."""
    return str


def by_session() -> Naming:
    """Each call has a number in one session."""
    numbers: dict[str, int] = {}
    session = key_fingerprint("", uuid7(time.time(), 1))
    return lambda text: sent_name(session, numbers.setdefault(text, len(numbers) + 1), 0)


both_namings = pytest.mark.parametrize("make_naming", [by_keys, by_session])


def repeat(node: Node, naming: Naming) -> dict[str, CallOutcome]:
    """Every kind of outcome under its name."""
    return {kind: outcome(send(node, name, key=naming(f"key of {kind}"), **params)) for kind, (name, params, _) in KINDS.items()}


def elsewhere(node: Node) -> int:
    """A counter that lives on another partition than number 1."""
    return next(i for i in range(2, 99) if place(node, i) != place(node, 1))


def place(node: Node, number: int) -> int:
    """Where a counter lives."""
    return node.slots.partition_of(node.routes["bump"].procedure, [number, 0])


def misused(node: Node, naming: Naming) -> list[CallOutcome]:
    """Every key on another partition, on all of them, with other parameters and for another procedure."""
    far = elsewhere(node)
    answers = []
    for kind, (name, params, _) in KINDS.items():
        key = naming(f"key of {kind}")
        # First where the index alone can tell: a use on its own partition would tell the index again.
        answers.append(outcome(send(node, "bump", key=key, id=far, amount=99)))
        answers.append(outcome(send(node, "set_rate", key=key, name="other", value=99)))
        changed = {**params, "value": 8} if name == "set_rate" else {**params, ("size" if name == "big" else "amount"): 3}
        answers.append(outcome(send(node, name, key=key, **changed)))
        answers.append(outcome(send(node, "bump", key=key, id=1, amount=99)))
    return answers


def check(node: Node, first: dict[str, CallOutcome], naming: Naming) -> None:
    """Repetitions are what the first calls were told, misuse is refused, and nothing of either was executed."""
    assert {answer.status for answer in misused(node, naming)} == {Status.KEY_REUSED}  # before the rightful callers come back
    assert repeat(node, naming) == first
    assert counters(node) == {1: 5}
    assert {value for value, _ in ask(node, "look_everywhere", name="r")} == {7}
    assert {value for value, _ in ask(node, "look_everywhere", name="other")} == {0}


def readable(node: Node) -> bool:
    """Every site serves."""
    try:
        return isinstance(send(node, "look_everywhere", name="r").wait(), CallOutcome)
    except NotReady:
        return False


@contextlib.contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[Node]:
    """A node in this process, closed at the end."""
    node = open_node(directory, inline=True, **settings)
    try:
        yield node
    finally:
        node.close()


@pytest.mark.slow
@both_namings
def test_every_outcome_is_repeated_byte_for_byte_whatever_happens_between(
    tmp_path: Path, make_naming: Callable[[], Naming]
) -> None:
    """Results, aborts, failures and answers too long to keep: at once, after restarts, and from a snapshot behind a cut log."""
    naming = make_naming()
    data = tmp_path / "data"
    with opened(data, partitions=3) as node:
        first = repeat(node, naming)
        assert {kind: answer.status for kind, answer in first.items()} == {kind: row[2] for kind, row in KINDS.items()}
        assert b"ResultTooLarge" in first["answer too long to keep"].body
        check(node, first, naming)
    with opened(data) as node:
        assert {part["from"] for part in node.recovery} == {"state"}
        check(node, first, naming)
        cut_log(node)
    shutil.rmtree(data / "state")
    with opened(data) as node:
        assert {part["from"] for part in node.recovery} == {"snapshot"}
        check(node, first, naming)
    rebuild(make_plan(RealFiles(), str(data), PAST), RealFiles(), str(tmp_path / "rebuilt"), workers=0)
    with opened(tmp_path / "rebuilt") as node:
        check(node, first, naming)


def cut_log(node: Node) -> None:
    """Calls and snapshots until no segment of the log holds what it held before."""
    behind = node._wal.durable_block
    data = "A" * 80_000  # base64
    for round_ in range(40):
        for number in range(8):
            ask(node, "store", id=number, seq=round_, data=data)
        node.take_snapshot()
        if min(node._wal.first_blocks()) > behind:
            return
    raise AssertionError("the log was not cut")


@pytest.mark.slow
@both_namings
def test_every_outcome_is_repeated_after_kills_of_the_site(tmp_path: Path, make_naming: Callable[[], Naming]) -> None:
    """A site that is killed, and a call that is killed by the watchdog: their outcomes are kept like all others."""
    naming = make_naming()
    node = open_node(tmp_path / "data", partitions=2)
    first = repeat(node, naming)
    hung = outcome(send(node, "hang", key=naming("hung"), id=1))
    assert hung.status == Status.FAILED
    assert b"Skipped" in hung.body
    for _ in range(2):
        for pid in node.status()["sites"]:
            kill(pid)
        wait_for(lambda: readable(node))
        check(node, first, naming)
        assert outcome(send(node, "hang", key=naming("hung"), id=1)) == hung
    node.close()
    node = open_node(tmp_path / "data")
    check(node, first, naming)
    assert outcome(send(node, "hang", key=naming("hung"), id=1)) == hung
    node.close()


@pytest.mark.slow
@both_namings
def test_of_calls_that_race_with_one_key_to_two_partitions_one_runs(tmp_path: Path, make_naming: Callable[[], Naming]) -> None:
    """However they interleave, each key belongs to one call; the other one is told so, and so it stays after a restart."""
    naming = make_naming()
    with opened(tmp_path / "data", partitions=2) as node:
        near, far = 1, elsewhere(node)
        gate = threading.Barrier(4)
        told: list[list[CallOutcome]] = [[] for _ in range(4)]

        def race(thread: int) -> None:
            for n in range(100):
                gate.wait()
                if thread < 3:
                    pending = send(node, "bump", key=naming(f"k{n}"), id=(near, far, near)[thread], amount=1)
                else:
                    pending = send(node, "set_rate", key=naming(f"k{n}"), name="r", value=n)
                node.help()
                told[thread].append(outcome(pending))

        threads = [threading.Thread(target=race, args=(thread,)) for thread in range(4)]
        for worker in threads:
            worker.start()
        for worker in threads:
            worker.join()
        ran = Counter[int]()
        for same, other, again, everywhere in zip(*told, strict=True):
            assert (same.status, same.txn_id) == (again.status, again.txn_id)
            assert sorted([same.status, other.status, everywhere.status]) == [Status.OK, Status.KEY_REUSED, Status.KEY_REUSED]
            ran[near] += same.status == Status.OK
            ran[far] += other.status == Status.OK
        assert {number: n for number, n in counters(node).items() if n} == {number: n for number, n in ran.items() if n}


def uuid7(seconds: float, tail: int) -> str:
    """A UUID of version 7 with a stated time."""
    return str(uuid.UUID(int=int(seconds * 1000) << 80 | 7 << 76 | 2 << 62 | tail))


def test_a_lost_key_is_found_by_the_next_replay(tmp_path: Path) -> None:
    """A state that lost a key shows in the digests which the log holds: the replay of the log says so instead of agreeing."""
    data = tmp_path / "data"
    with opened(data, partitions=1) as node:
        ask(node, "bump", key="k", id=1, amount=1)
        ask(node, "bump", id=1, amount=1)
    rebuild(make_plan(RealFiles(), str(data), PAST), RealFiles(), str(tmp_path / "right"), workers=0)
    state = PartitionState.open(state_path(str(data), 0), partition=0)
    state.connection.execute("DELETE FROM _cmdlog_keys")
    state.close()
    Trust(RealFiles(), str(data)).unseal()  # as a kill leaves it: nothing says what the file held
    with opened(data) as node:
        for _ in range(3):  # a batch's digest goes with a later block
            ask(node, "bump", id=2, amount=1)
    with pytest.raises(Divergence):
        rebuild(make_plan(RealFiles(), str(data), PAST), RealFiles(), str(tmp_path / "wrong"), workers=0)
