"""What can be wrong with a snapshot. Each error names the snapshot."""

from __future__ import annotations

from cmdlog.operator_error import OperatorError


class SnapshotError(OperatorError):
    """Root of this package's errors."""


class SnapshotDamaged(SnapshotError):
    """Its bytes have changed, or a part is missing. Recovery falls back to an older one and a longer log."""

    exit_code = 10


class SnapshotForeign(SnapshotError):
    """It is of another cluster, node or partition, or of a newer format."""

    exit_code = 11


class SnapshotFailed(SnapshotError):
    """It could not be made; what was there before is unchanged."""
