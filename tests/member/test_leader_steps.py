"""The steps of a take-over act for the present terms alone."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.multi_calls import HalfSkip
from cmdlog.member.leading.leader_steps import LeaderSteps
from cmdlog.member.leading.leadership import Standing
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.record import RecordKind
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
        self.code = SimpleNamespace(
            versions=SimpleNamespace(newest=2), run_newest=lambda: note("bind"), missing_tables=lambda _directory, _tick: [],
            missing_entries=lambda: [(RecordKind.CATALOG, {"node": 0, "version": 3}), (RecordKind.ENVIRONMENT, {"node": 0})],
            try_tables=lambda _directory, _tick: None,
        )  # fmt: skip
        self.steps = LeaderSteps(*parts, code=self.code, directory="", missing=lambda: [MEMBER])  # type: ignore[arg-type]


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


def test_a_new_program_is_stated_with_its_tables(parts: Parts) -> None:
    """Code, environment, tables; calls are bound to it and run it then. Nothing where nothing is new."""
    assert parts.steps.state_code(TERMS, lambda _reply: None) == 2
    assert parts.steps.add_tables(TERMS, lambda _reply: None) == 0
    parts.code.missing_tables = lambda _directory, _tick: [(p, RecordKind.SCHEMA, {"statements": []}) for p in (0, 1)]
    assert parts.steps.add_tables(TERMS, lambda _reply: None) == 2
    assert parts.steps.run_newest_code(TERMS)
    assert parts.done == [("CATALOG", 0), ("ENVIRONMENT", 0), [(0, "SCHEMA", 0), (1, "SCHEMA", 0)], "bind", ("run", 2)]
    parts.code.missing_entries = list
    assert parts.steps.state_code(TERMS, lambda _reply: None) == 0


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
    assert not parts.steps.state_code(TERMS, lambda _reply: None)
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
    LeaderSteps(*given, code=parts.code, directory=str(tmp_path), missing=list).load_keys()  # type: ignore[arg-type]
    assert loaded == ["clear", *enumerate(paths)]
