"""What a rehearsal of a change brings: the change as it can be logged, and what each of its statements did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from procedures.migration.stated_change import StatedChange


@dataclass(frozen=True, slots=True)
class RehearsedStep:
    """One statement, or what a migration did by `tx`."""

    what: str  # migration that it belongs to; "" for what is done without one
    sql: str
    rows: int  # that it changed or copied
    seconds: float


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A change that was done on a state, and taken back or kept open."""

    change: StatedChange
    steps: tuple[RehearsedStep, ...]
    seconds: float  # of the run that counts: how long the partition would wait
    schema: Mapping[str, str]  # name -> CREATE statement of the tables and indexes that it leads to
