"""What holds runs of the migration of `tests.node.apps.held_migration`, so that a test can kill their processes there."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import wait_for


class Gate:
    """The folder, as a test sees it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.hold()

    def hold(self, *numbers: int) -> None:
        """From now on these runs do not return, counted from 1; no others."""
        (self.folder / "held").write_text(" ".join(map(str, numbers)))

    def process_at(self, number: int) -> int:
        """The process of a run that was held; 0 before it."""
        noted = self.folder / f"at-{number}"
        return int(noted.read_text() or 0) if noted.exists() else 0

    def wait_at(self, number: int) -> int:
        """The same, once there is one."""
        return wait_for(lambda: self.process_at(number), why=lambda: f"the runs so far: {self.runs()}")

    def runs(self) -> list[int]:
        """The partition of each."""
        noted = self.folder / "runs"
        return [int(line) for line in noted.read_text().splitlines()] if noted.exists() else []
