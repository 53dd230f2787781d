"""A snapshot thread with what it sees of a node: real states, and a record of what it asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.background.running_work import RunningWork
from cmdlog.node.background.snapshot_schedule import LogView
from cmdlog.node.boot import ManifestFacts
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.node.snapshots.snapshotter import Snapshotter
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.ids import Lsn
from cmdlog.wal.log import Log
from procedures.storage.state import PartitionState, Position
from snapshot.capture.capture import Wish
from snapshot.capture.image import ImageCapture
from snapshot.catalog import check, list_snapshots, remove
from tests.waiting import PATIENCE_S

US = Identity(b"c" * 16, 1, b"i" * 8)
FILES = RealFiles()
TIMEOUT_S = PATIENCE_S


class NodeLog:
    """The log of a `Node`, which is its own record of anchors."""

    room_bytes = 1 << 30

    def __init__(self, node: Node) -> None:
        self._node, self.directory = node, str(node.folder)
        self.anchors = self

    @property
    def durable_block(self) -> int:
        return self._node.block

    @property
    def instance(self) -> SimpleNamespace:
        return SimpleNamespace(identity=US, segments=self._node.log.segments)

    def first_blocks(self) -> Sequence[int]:
        return self._node.log.first_blocks

    def set(self, name: str, position: Lsn) -> None:
        self._node.anchors[name] = position.block
        self._node.events.append(("anchor", name, position.block))


class Node:
    """What a snapshotter sees of a node, with a record of what it does in which order."""

    def __init__(self, folder: Path, *, partitions: int = 1, kept: int = 2) -> None:
        self.folder = folder
        os.makedirs(folder / "snapshots", exist_ok=True)
        self.states = {p: PartitionState.open(folder / f"p{p}", partition=p) for p in range(partitions)}
        self.log = LogView((1,), 16)
        self.block = 10
        self.events: list[tuple[Any, ...]] = []
        self.capturing: Callable[[int, int, str], None] = self.capture_all
        self.wishes: list[Wish] = []
        self.shares: list[float] = []
        self.closed = 0
        self.noting: Callable[[bytes, Callable[[], None]], None] = self.note
        self.anchors: dict[str, int] = {}
        self.speeds = RecoverySpeeds(str(folder), ["p"], partitions)
        self.feed = feed = SimpleNamespace(
            add_record=self._note, flush_notes=lambda: None, notes_fit=True,
            when_taken_is_durable=lambda done: done(),
        )  # fmt: skip
        sequencer = SimpleNamespace(
            log_feed=feed, meter=SimpleNamespace(speeds=self.speeds), clock=SimpleNamespace(closed=lambda: self.closed),
            site_feed=SimpleNamespace(applied_block=lambda _p: self.block),
            reads=SimpleNamespace(when_durable=lambda _p, done: done(CallOutcome(0, 0, b""))),
        )  # fmt: skip
        sites = SimpleNamespace(
            capture=self._capture, progress=lambda _p: 0, pace=lambda _p, share: self.shares.append(share)
        )  # fmt: skip
        facts = SimpleNamespace(of_partition=lambda p: {
            "partition": p, "epoch": 1, "configuration": None, "catalogs": {}, "environment": None, "key_policy": None,
        })  # fmt: skip
        settings = Settings(partitions=partitions, snapshots_kept=kept, points_kept=1, snapshot_age_max_s=0, recovery_budget_s=0)
        self.snapshotter = Snapshotter(
            FILES, settings, wal=cast(Log, NodeLog(self)), sequencer=cast(Sequencer, sequencer),
            sites=cast(ProcessSites, sites), facts=cast(ManifestFacts, facts), work=RunningWork(),
            let_go=lambda snapshot: remove(FILES, snapshot),
        )  # fmt: skip
        self.events.clear()
        self.snapshotter.start()

    def _capture(self, partition: int, ident: int, path: str, wish: Wish) -> None:
        self.wishes.append(wish)
        self.capturing(partition, ident, path)

    def _note(self, record: bytes, done: Callable[[], None]) -> None:
        self.noting(record, done)

    def apply(self, partition: int = 0) -> None:
        """One more batch."""
        state = self.states[partition]
        position = Position(state.position.index + 1, 1, 7, state.position.txn_id + 1)
        state.save(position, 0)
        state.position = position
        self.block += 10

    def take(self, partition: int = 0) -> dict[str, Any]:
        """A snapshot on request."""
        return self.snapshotter.request_snapshots([partition]).result(TIMEOUT_S)["snapshots"][0]

    def capture_all(self, partition: int, ident: int, path: str) -> None:
        """A site that does it at once."""
        capture = ImageCapture(self.states[partition], path)
        while not capture.step():
            pass
        self.events.append(("captured", partition))
        self.snapshotter.captured(ident, capture.report())

    def fail(self, partition: int, ident: int, path: str) -> None:
        """A site that cannot."""
        self.snapshotter.captured(ident, {"partition": partition, "path": path, "error": "the keys are gone"})

    def note(self, record: bytes, done: Callable[[], None]) -> None:
        """A log that is durable at once."""
        decoded = decode_record(record)
        assert decoded.kind is RecordKind.SNAPSHOT_MARK
        name = decoded.json()["name"]
        self.events.append(("mark", name, self.verified(name)))
        done()

    def verified(self, name: str) -> bool:
        return [check(FILES, s) for s in list_snapshots(FILES, str(self.folder), US) if s.name == name] == [""]

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder / "snapshots") if name != "reserve")

    def close(self) -> None:
        self.snapshotter.stop()
        for state in self.states.values():
            state.close()
