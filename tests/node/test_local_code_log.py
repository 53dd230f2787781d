"""How a node alone states code and tables: in one block, and only what the log has room for."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.node.deploying.code_change import ChangeWait, NewCode
from cmdlog.node.deploying.deploy_errors import BundleRefused
from cmdlog.node.deploying.local_code_log import LocalCodeLog
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.ids import CLUSTER_GROUP

VALUE = {"version": 2, "bundle": "b", "partitions": 2}
ENTRY = {"statements": ["x"]}


class World:
    """A node whose parts note what is done to them."""

    def __init__(self, *, room_bytes: int = 1 << 20) -> None:
        self.done: list[Any] = []
        self.confirm: Callable[[], None] = lambda: None
        note, state = self.done.append, SimpleNamespace(last_index=7)
        opening = SimpleNamespace(add=self.add, waits=False, bytes=0)
        marks = {0: {"durable": 5, "applied": 5}, 1: {"durable": 9, "applied": 9}}
        intake = SimpleNamespace(accept_calls=lambda: note("accept"))
        sequencer = SimpleNamespace(
            intake=intake, opening=opening, watermarks=lambda: marks, admission=SimpleNamespace(why_full=lambda: "no room")
        )
        wal = SimpleNamespace(
            recovered=SimpleNamespace(groups=SimpleNamespace(state=lambda _group: state)), head_bytes=100,
            instance=SimpleNamespace(segment_bytes=1 << 16), block_bytes_max=1 << 15, room_bytes=room_bytes,
        )  # fmt: skip
        boot = SimpleNamespace(records=[b""], term=3, code=SimpleNamespace(add=lambda value: note(("code", value["version"]))))
        sites = SimpleNamespace(add_code=lambda version, bundle, partitions: note(("sites", version, bundle, partitions)))
        ground: Any = SimpleNamespace(wal=wal, boot=boot)
        parts: Any = SimpleNamespace(sequencer=sequencer, sites=sites)
        self.log = LocalCodeLog(ground, parts)

    def add(self, records: list[bytes], entries: list[Any], *, done: Callable[[], None]) -> None:
        """The opening."""
        found = [decode_record(record) for record in records]
        self.done.append([(record.kind, record.partition, record.term, record.index) for record in found] + entries)
        self.confirm = done


def code(**value: Any) -> NewCode:
    """Version 2, which the log may have."""
    logged: bool = value.pop("is_logged", False)
    none: Any = None
    return NewCode(none, VALUE | value, logged)


def test_code_and_tables_are_one_block_and_then_with_the_sites() -> None:
    """The next version gets the next index; code that the log has is not stated again."""
    world = World()
    steps = world.log.state(code(), {0: ENTRY})
    assert next(steps) is ChangeWait.CODE
    stated = [(RecordKind.CATALOG, CLUSTER_GROUP, 3, 9), (0, RecordKind.SCHEMA, ENTRY)]
    assert world.done == [stated], "nothing else before it is durable"
    world.confirm()
    assert list(steps) == []
    assert world.done[1:] == [("code", 2), ("sites", 2, "b", 2)]
    steps = world.log.state(code(is_logged=True), {1: ENTRY})
    assert next(steps) is ChangeWait.TABLES
    world.confirm()
    assert list(steps) == []
    assert world.done[3:] == [[(1, RecordKind.SCHEMA, ENTRY)]]
    steps = world.log.state(code(version=3), {})
    next(steps)
    assert world.done[-1] == [(RecordKind.CATALOG, CLUSTER_GROUP, 3, 10)]


def test_calls_stay_refused_once_the_change_is_stated() -> None:
    """The former code does not suit the tables."""
    world = World()
    world.log.give_up(stated=True)
    assert world.done == []
    world.log.give_up(stated=False)
    assert world.done == ["accept"]


def test_change_has_to_fit_one_block_and_the_room_of_the_log() -> None:
    """What no block ever takes is refused as code; what there is no room for now, as a full log."""
    World().log.check_fit(code(), {0: ENTRY})
    with pytest.raises(BundleRefused, match="too much for segments of 65536 bytes"):
        World().log.check_fit(code(bundle=random.Random(1).randbytes(40_000).hex()), {})
    with pytest.raises(BundleRefused):
        World().log.check_fit(code(is_logged=True), {0: {"statements": ["x" * 40_000]}})
    with pytest.raises(LogFullRefusal, match="no room"):
        World(room_bytes=64).log.check_fit(code(), {})
