"""Errors of snapshots. Each error names the snapshot and says what to do; `exit_code` is the command line's."""

from __future__ import annotations

from typing import ClassVar


class SnapshotError(Exception):
    """Root of this package's errors."""

    exit_code: ClassVar[int] = 1


class SnapshotDamaged(SnapshotError):
    """A snapshot's bytes have changed, or a part is missing. Recovery falls back to an older one and a longer log."""

    exit_code = 10


class SnapshotForeign(SnapshotError):
    """A snapshot of another cluster, node or partition, or of a newer format."""

    exit_code = 11


class SnapshotFailed(SnapshotError):
    """A snapshot could not be made; what existed before is unchanged."""
