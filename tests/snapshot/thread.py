"""A snapshot thread with what it sees of a node: real states, and a record of what it asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.background.snapshot_hooks import Hooks, Kept
from cmdlog.node.background.snapshot_schedule import LogView, SnapshotPolicy
from cmdlog.node.background.snapshotter import Snapshotter
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind, decode_record
from procedures.storage.state import PartitionState, Position
from snapshot.capture.image import ImageCapture
from snapshot.catalog import check, list_snapshots
from snapshot.lineage import Wish
from tests.waiting import PATIENCE_S

US = Identity(b"c" * 16, 1, b"i" * 8)
FILES = RealFiles()
TIMEOUT_S = PATIENCE_S


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
        self.notes_fit = True
        self.when_durable: Callable[[Callable[[], None]], None] = lambda done: done()
        self.noting: Callable[[bytes, Callable[[], None]], None] = self.note
        hooks = Hooks(
            capture=self._capture,
            applied_block=lambda _p: self.block,
            facts=lambda p: {
                "partition": p, "epoch": 1, "configuration": None, "catalogs": {}, "environment": None, "key_policy": None,
            },
            note=self._note,
            notes_fit=lambda: self.notes_fit,
            when_durable=lambda _p, done: self.when_durable(done),
            when_all_durable=self.when_durable,
            anchor=lambda name, block: self.events.append(("anchor", name, block)),
            view=lambda: self.log,
            log_end=lambda: self.block,
            closed=lambda: self.closed,
            pace=lambda _p, share: self.shares.append(share),
            state_bytes=lambda _p: 1 << 20,
        )  # fmt: skip
        self.speeds = RecoverySpeeds(str(folder), ["p"], partitions)
        self.snapshotter = Snapshotter(
            FILES,
            str(folder),
            US,
            range(partitions),
            kept=Kept(kept),
            policy=SnapshotPolicy(0.5),
            speeds=self.speeds,
            hooks=hooks,
        )
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
        state.accept(position, 0)
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
