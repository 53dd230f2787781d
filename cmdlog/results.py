"""What a call or a query gives, in this process and over HTTP alike. Values, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What a procedure returned, and where."""

    txn_id: int  # of the first execution, when an idempotency key repeats; of a read-only call: as of which it read
    partition: int | None  # None: of all partitions, and `value` is a list in their order
    value: T
    as_of: dict[int, int] | None = None  # of a stale read: partition -> TxnId up to which the state that was read holds all


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Rows of a SELECT: a sequence of tuples; `dicts()` for access by column."""

    columns: list[str]
    rows: list[Sequence[Any]]  # partitions in order, concatenated
    as_of: dict[int, int]  # partition -> TxnId of the state that was read

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(tuple, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Each row by column name; of columns with the same name the last one counts."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)
