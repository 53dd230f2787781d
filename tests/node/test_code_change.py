"""The steps of a change of code: on all partitions or on none, and completed once it is stated."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.node.deploying.code_change import ChangeWait, CodeChanges, NewCode, TableChange
from cmdlog.node.deploying.deploy_errors import MigrationRefused, SiteLost, SwitchUnfinished
from cmdlog.node.sites.prepared_changes import PreparedChanges
from procedures.declaration.schema_plan import SchemaPlan

AT = 99
ENTRY = {"statements": ["x"]}
ADDITION = SchemaPlan(("CREATE TABLE y (id INTEGER)",), (), ())


class World:
    """A node of two partitions, its sites and its log: all note what happens to them."""

    def __init__(self, answers: Mapping[int, Mapping[str, Any]], *, looks: int = 0) -> None:
        """`answers` that sites give at once; so many `looks` find calls that have not run."""
        self.answers, self.looks, self.changes = answers, looks, PreparedChanges()
        self.done: list[Any] = []
        self.over: list[Exception] = []  # why the change may not go on, from the next look on
        given: Any = SimpleNamespace(
            directory="", settings=SimpleNamespace(partitions=2), desk=SimpleNamespace(changes=self.changes),
            sequencer=SimpleNamespace(intake=SimpleNamespace(reserve_txn=lambda: AT)), sites=self,
        )  # fmt: skip
        self.code_changes = CodeChanges(given, given)

    def make(self, *, pauses: str = "migration one", is_logged: bool = False) -> tuple[list[ChangeWait], Any]:
        """What the change waits for, and what it has made."""
        code: Any = NewCode(None, {"version": 3, "bundle": "b", "partitions": 2}, is_logged)  # type: ignore[arg-type]
        steps, waits = self.code_changes.make(code, TableChange({0: ADDITION}, pauses), self), []
        while True:
            try:
                waits.append(next(steps))
            except StopIteration as ended:
                return waits, ended.value[0]

    # -- the sites

    def prepare(self, partition: int, order: Mapping[str, Any]) -> None:
        self.done.append(("prepare", partition, order["catalog"], order["at"], order["bundle"], order["partitions"]))
        if partition in self.answers:
            self.changes.add_report(partition, {"at": order["at"], **self.answers[partition]})

    def drop_prepared(self, partition: int) -> None:
        self.done.append(("drop", partition))

    # -- who states it

    def check_still(self) -> None:
        if self.over:
            raise self.over.pop()

    def hold_calls(self) -> None:
        self.done.append("hold")

    @property
    def is_drained(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def check_fit(self, code: NewCode, entries: Mapping[int, Any]) -> None:
        self.done.append(("fit", dict(entries)))

    def state(self, code: NewCode, entries: Mapping[int, Any]) -> Generator[ChangeWait, None, None]:
        self.done.append(("state", dict(entries)))
        yield ChangeWait.CODE

    def bind(self, code: NewCode) -> None:
        self.done.append("bind")

    def accept_calls(self) -> None:
        self.done.append("accept")

    def give_up(self, *, stated: bool) -> None:
        self.done.append(("give up", stated))


def asked(*partitions: int) -> list[Any]:
    """Of these partitions, for version 3."""
    return [("prepare", partition, 3, AT, "b", 2) for partition in partitions]


def test_steps_of_a_change_that_pauses_calls() -> None:
    """Held, run to the end, tried on every partition under one transaction id, stated, bound, taken again."""
    world = World({0: {"change": ENTRY}, 1: {"change": None}}, looks=2)
    assert world.make() == ([ChangeWait.CALLS, ChangeWait.CALLS, ChangeWait.CODE], {0: ENTRY})
    assert world.done == ["hold", *asked(0, 1), ("fit", {0: ENTRY}), ("state", {0: ENTRY}), "bind", "accept"]


def test_code_that_the_log_has_is_tried_where_tables_lack() -> None:
    """Rows were judged when it was stated."""
    world = World({0: {"change": ENTRY}})
    world.make(is_logged=True)
    assert world.done == ["hold", *asked(0), ("fit", {0: ENTRY}), ("state", {0: ENTRY}), "bind", "accept"]


def test_additions_are_neither_held_nor_tried() -> None:
    """No row can stand in their way, and calls run meanwhile."""
    world = World({})
    waits, entries = world.make(pauses="")
    assert (waits, entries[0]["statements"]) == ([ChangeWait.CODE], list(ADDITION.statements))
    assert [step if isinstance(step, str) else step[0] for step in world.done] == ["fit", "state", "bind", "accept"]


@pytest.mark.parametrize(
    ("second", "error"),
    [({"error": "no", "hint": "look"}, MigrationRefused), ({"error": "no", "hint": "", "lost": True}, SiteLost)],
)
def test_one_that_cannot_takes_all_back(second: Mapping[str, Any], error: type[Exception]) -> None:
    """Nothing is stated, and calls are taken again."""
    world = World({0: {"change": ENTRY}, 1: second})
    with pytest.raises(error, match="partition 1: no"):
        world.make()
    assert world.done == ["hold", *asked(0, 1), ("drop", 0), ("drop", 1), ("give up", False)]


def test_change_that_may_not_go_on_takes_all_back() -> None:
    """Another node leads while sites try it."""
    world = World({0: {"change": ENTRY}})
    world.over = [SwitchUnfinished("it is over")]
    with pytest.raises(SwitchUnfinished):
        world.make()
    assert world.done[-3:] == [("drop", 0), ("drop", 1), ("give up", False)]


def test_change_that_is_stated_is_left_to_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the log already."""
    world = World({0: {"change": ENTRY}, 1: {"change": None}})

    def fail(*_: object) -> Generator[ChangeWait, None, None]:
        raise SwitchUnfinished("no room")
        yield

    monkeypatch.setattr(world, "state", fail)
    with pytest.raises(SwitchUnfinished):
        world.make()
    assert world.done[-1] == ("give up", True)
