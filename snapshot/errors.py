"""Errors of snapshots. Each error names the snapshot."""

from __future__ import annotations

from cmdlog.operator_error import OperatorError


class SnapshotError(OperatorError):
    """Root of this package's errors."""


class SnapshotDamaged(SnapshotError):
    """A snapshot's bytes have changed, or a part is missing. Recovery falls back to an older one and a longer log."""

    exit_code = 10


class SnapshotForeign(SnapshotError):
    """A snapshot of another cluster, node or partition, or of a newer format."""

    exit_code = 11


class PointRefused(SnapshotError):
    """A node of this kind takes no recovery points; nothing was changed."""


class SnapshotFailed(SnapshotError):
    """A snapshot could not be made; what existed before is unchanged."""
