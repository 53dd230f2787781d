"""What one Spark task reads, as it travels to an executor.

One rule: values only, and light to import: every executor does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import Spot
from cmdlog.wal.skips import Skips
from replay.errors import ReplayError
from replay.log.log_fold import Place
from replay.spark.base.options import ParamsFormat

Names = Mapping[int, tuple[tuple[str, tuple[str, ...] | None], ...]]
"""Catalog version -> (name, parameter names) of each procedure; None where the catalog does not state the parameters."""


class DataLoss(ReplayError):
    """Part of the requested data is missing."""

    hint = "read what is left with failOnDataLoss=false; the tables gaps and faults list what is missing"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks of one segment, from a place where reading can begin."""

    segment: SegmentFile
    start: Spot
    upto: int  # block
    bytes: int


@dataclass(frozen=True, slots=True)
class Want:
    """What counts of a partition in one log."""

    ranges: tuple[tuple[int, int], ...]  # entries (after, upto]
    low: int  # TxnIds, both inclusive
    high: int
    voids: tuple[Place, ...] = ()
    skips: Skips | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads."""

    path: str
    node_id: int
    stretches: tuple[Stretch, ...]
    wants: Mapping[int, Want]
    names: Names
    procedures: frozenset[str] | None
    params_format: ParamsFormat
    fail_on_data_loss: bool

    @property
    def bytes(self) -> int:
        return sum(stretch.bytes for stretch in self.stretches)
