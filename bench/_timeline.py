"""Stretches of a run: what calls saw in a short one, and when a snapshot was captured or sealed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """A short stretch of a run."""

    at_s: float  # its middle
    per_second: float
    p99_ms: float
    gap_ms: float  # longest without an answer


@dataclass(frozen=True, slots=True)
class Phase:
    """When a snapshot was captured or sealed."""

    name: str
    begin_s: float
    end_s: float
