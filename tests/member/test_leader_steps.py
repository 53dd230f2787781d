"""The steps of a take-over act for the present terms alone."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.entry_gate import HalfSkip
from cmdlog.member.leading.cluster_code_log import ClusterCodeLog
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.leadership import Standing
from cmdlog.node.deploying.code_change import ChangeWait
from cmdlog.node.deploying.deploy_errors import MigrationRefused, SiteLost, SwitchUnfinished
from cmdlog.node.outcome import CallRefused
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITION_BITS
from procedures.storage.state import PartitionState
from replay.state.trust import state_path

TERMS = (3, 4)
MEMBER = ClusterMember(3, b"life-one", "127.0.0.1:7103", "http://127.0.0.1:8103")


class Parts:
    """Stand-ins that note what a step does to them."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        note = self.done.append
        self.driver = SimpleNamespace(
            lock=threading.RLock(),
            last_txn=77 << PARTITION_BITS,
            ends=lambda: {0: (3, 9), CLUSTER_GROUP: (4, 2)},
            wake=lambda: None,
        )
        self.machine = SimpleNamespace(
            lead=lambda places, catalog: note(("lead", places, catalog)), all_run=False,
            state=lambda kind, value, _done: note((kind.name, value["node"])),
            half_skips=lambda: [HalfSkip((5, 4), [0, 1]), HalfSkip((7, 6), [1])], partitions=[0, 1],
            run_committed=lambda: note("run"),
        )  # fmt: skip
        present: Any = SimpleNamespace(standing=Standing.TAKING_OVER, terms=TERMS)
        present.take_calls = lambda terms: terms == TERMS == present.terms
        self.leadership = present
        self.sequencer = SimpleNamespace(
            clock=SimpleNamespace(lift=lambda tick: note(("lift", tick)), reserve=lambda _count: 1),
            intake=SimpleNamespace(
                add_entries=lambda entries, done: note([(p, kind.name, value.get("index", 0)) for p, kind, value in entries])
            ),
            replicated=SimpleNamespace(accept_calls=lambda: note("accept"), run_catalog=lambda version: note(("run", version))),
        )
        parts: tuple[Any, ...] = (self.driver, self.machine, self.leadership, self.sequencer, SimpleNamespace())
        self.environment: Any = None
        self.code = SimpleNamespace(
            versions=SimpleNamespace(newest=2, newest_value={}), run_newest=lambda: note("bind"), next_code=lambda: "next",
            missing_environment=lambda: self.environment,
        )  # fmt: skip
        self.errors: list[Exception] = []  # of the next changes
        changes: Any = SimpleNamespace(plan=lambda code, _former: f"tables of {code}", make=self.make)
        self.code_log: Any = SimpleNamespace(in_terms=lambda terms: terms, code=self.code, changes=changes)
        self.steps = LeaderSteps(*parts, code_log=self.code_log, missing=lambda: [MEMBER])  # type: ignore[arg-type]

    def make(self, *change: Any) -> Generator[ChangeWait, None, None]:
        """The next change of code."""
        self.done.append(change)
        if self.errors:
            raise self.errors.pop()
        yield ChangeWait.APPLIED


def run(steps: Generator[str, None, bool]) -> tuple[list[str], bool]:
    """What they wait for, and what they say at their end."""
    waits = []
    while True:
        try:
            waits.append(next(steps))
        except StopIteration as ended:
            return waits, ended.value


@pytest.fixture
def parts() -> Parts:
    """A node that takes over."""
    return Parts()


def test_the_steps_of_the_present_terms(parts: Parts) -> None:
    """The clock is lifted, entries get places, skips are stated where they lack, all is run, calls are taken."""
    steps = parts.steps
    assert steps.lift_clock(TERMS)
    assert steps.give_places(TERMS)
    assert steps.finish_skips(TERMS)
    assert not steps.skips_finished()
    assert steps.run_committed(TERMS)
    assert not steps.all_run()
    assert steps.take_calls(TERMS)
    assert parts.done == [
        ("lift", 77), ("lead", {0: (3, 9), CLUSTER_GROUP: (4, 2)}, 2), [(0, "SKIP", 5), (1, "SKIP", 4), (1, "SKIP", 6)],
        "run", "accept", ("MEMBER", 3),
    ]  # fmt: skip


def test_code_is_changed_in_the_present_terms(parts: Parts) -> None:
    """After the environment, where that is another one; calls are bound to it and run it then."""
    parts.environment = {"node": 0}
    assert run(parts.steps.change_code(TERMS)) == (["applied"], True)
    assert parts.steps.run_newest_code(TERMS)
    assert parts.done == [("ENVIRONMENT", 0), ("next", "tables of next", TERMS), "bind", ("run", 2)]


def test_code_is_changed_again_where_a_site_was_lost(parts: Parts) -> None:
    """Not where the leadership is over; what cannot be changed is an error."""
    parts.errors = [SiteLost("it ended")]
    assert run(parts.steps.change_code(TERMS)) == (["applied"], True)
    assert len(parts.done) == 2
    parts.errors = [SwitchUnfinished("it is over")]
    assert run(parts.steps.change_code(TERMS)) == ([], False)
    parts.errors = [MigrationRefused("a row is in the way")]
    with pytest.raises(MigrationRefused):
        run(parts.steps.change_code(TERMS))


@pytest.mark.parametrize("over", ["terms", "standing"])
def test_steps_of_terms_that_are_over_do_nothing(parts: Parts, over: str) -> None:
    """Another node may lead by then: no place is given, and no call is taken."""
    if over == "terms":
        parts.leadership.terms = (4, 4)
    else:
        parts.leadership.standing = Standing.FOLLOWING
        parts.leadership.terms = ()
    assert not parts.steps.still(TERMS)
    assert not parts.steps.give_places(TERMS)
    assert not parts.steps.take_calls(TERMS)
    assert run(parts.steps.change_code(TERMS)) == ([], False)
    assert not parts.steps.run_newest_code(TERMS)
    assert not parts.steps.finish_skips(TERMS)
    assert not parts.steps.run_committed(TERMS)
    assert parts.done == ["bind"]
    assert "accept" not in parts.done
    assert not any(done[0] == "lead" for done in parts.done)


def test_keys_come_from_the_states_of_all_partitions(parts: Parts, tmp_path: Path) -> None:
    """What was known before is forgotten first: another node has led since."""
    (tmp_path / "state").mkdir()
    paths = [state_path(str(tmp_path), partition) for partition in range(2)]
    for partition, path in enumerate(paths):
        PartitionState.open(path, partition=partition).close()
    loaded: list[Any] = []
    keys: Any = SimpleNamespace(
        clear=lambda: loaded.append("clear"),
        load=lambda connection, partition: loaded.append((partition, connection.filename)),
    )
    parts.machine.partitions = [0, 1]
    given: tuple[Any, ...] = (parts.driver, parts.machine, parts.leadership, parts.sequencer, keys)
    parts.code_log.ground = SimpleNamespace(directory=str(tmp_path))
    LeaderSteps(*given, code_log=parts.code_log, missing=list).load_keys()
    assert loaded == ["clear", *enumerate(paths)]


def test_change_ends_where_its_code_is_not_committed() -> None:
    """No table is touched then."""
    lost: Any = CallRefused("the term is over")
    machine = SimpleNamespace(state=lambda kind, value, done: done(lost))
    consensus: Any = SimpleNamespace(machine=machine, driver=SimpleNamespace(lock=threading.RLock(), wake=lambda: None))
    parts: Any = SimpleNamespace(sequencer=SimpleNamespace(intake=None))
    leadership: Any = SimpleNamespace(standing=Standing.LEADING, terms=(1,))
    bare: Any = SimpleNamespace()
    code_log = ClusterCodeLog(bare, parts, bare, consensus, bare, leadership, terms=(1,))
    code: Any = SimpleNamespace(is_logged=False, version=2, value={})
    with pytest.raises(SwitchUnfinished, match="the term is over"):
        list(code_log.state(code, {}))
