"""How a node alone states code and tables: the CATALOG record and the SCHEMA entries are one block, so a start finds all or none.

One rule: what does not fit into one block is refused before anything of it is written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import orjson

from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.node.deploying.code_change import ChangeWait, Entries, NewCode, Steps, await_applied, schema_entries
from cmdlog.node.deploying.deploy_errors import BundleRefused
from cmdlog.node.outcome import LogFullRefusal
from cmdlog.node.sequencing.block_builder import size_of
from cmdlog.node.sequencing.flight import BATCH_OVERHEAD_BYTES
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures.code.procedure_versions import partitions_of


class LocalCodeLog:
    """The `CodeLog` of all changes of a node."""

    def __init__(self, ground: NodeGround, parts: NodeParts) -> None:
        """The node's log has not begun to write."""
        self._wal, self._boot, self._parts, self._intake = ground.wal, ground.boot, parts, parts.sequencer.intake
        self._next_index = ground.wal.recovered.groups.state(CLUSTER_GROUP).last_index + len(ground.boot.records) + 1

    def check_still(self) -> None:
        """No other node leads."""

    def hold_calls(self) -> None:
        self._intake.hold_calls()

    @property
    def is_drained(self) -> bool:
        return self._parts.sequencer.idle

    def check_fit(self, code: NewCode, entries: Entries) -> None:
        check_fit(self._wal, self._parts.sequencer, b"" if code.is_logged else self._record(code.value), entries)

    def state(self, code: NewCode, entries: Entries) -> Steps[None]:
        """The code is at every site before any batch that names it."""
        durable, parts = threading.Event(), self._parts
        records = [] if code.is_logged else [self._record(code.value)]
        self._next_index += len(records)
        if records or entries:
            parts.sequencer.opening.add(records, schema_entries(entries), done=durable.set)
            while not durable.is_set():
                yield ChangeWait.CODE if records else ChangeWait.TABLES
        if records:
            self._boot.code.add(code.value)
            parts.sites.add_code(code.version, str(code.value["bundle"]), partitions=partitions_of(code.value))
        yield from await_applied(parts.sequencer, entries, self)

    def bind(self, code: NewCode) -> None:
        self._intake.switch_code(code.version, lambda: self._parts.calls.bound.bind(code.db, code.version))

    def accept_calls(self) -> None:
        self._intake.accept_calls()

    def give_up(self, *, stated: bool) -> None:
        """Calls stay refused once the change is stated: the former code does not suit the tables."""
        if not stated:
            self._intake.accept_calls()

    def _record(self, value: Mapping[str, Any]) -> bytes:
        return encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=self._boot.term, index=self._next_index)


def check_fit(wal: Log, sequencer: Sequencer, record: bytes, entries: Entries) -> None:
    """Whether the log takes this CATALOG record (b"": it has it) with these changes. Raises: as `CodeLog.check_fit`."""
    segment_bytes, head_bytes = wal.instance.segment_bytes, wal.head_bytes + len(record)
    of_entries = sum(map(_entry_bytes, entries.values()))
    longest = len(record) + of_entries
    if block_bytes([bytes(longest)]) > wal.block_bytes_max or head_bytes > segment_bytes // 2:
        sizes = f"its record takes {len(record)} bytes, with its changes of tables {longest}"
        raise BundleRefused(
            f"the code is too much for segments of {segment_bytes} bytes: {sizes}, the head of a segment {wal.head_bytes}",
            hint="nothing changed; snapshots let former versions go, or make a directory of larger segments",
        )
    opening = sequencer.opening
    if opening.waits or wal.room_bytes < size_of([record]) + of_entries + opening.bytes:
        raise LogFullRefusal(sequencer.admission.why_full())


def _entry_bytes(entry: Mapping[str, Any]) -> int:
    """What it takes in a block at most."""
    return len(orjson.dumps(entry)) + BATCH_OVERHEAD_BYTES
