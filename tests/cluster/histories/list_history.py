"""What clients saw of append-only lists: operations with the moments at which they began and ended, and what they saw.

One rule: only what a client can know is in it. Values are unique, so a list says which appends it holds, and in which order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What its client knows of an operation."""

    DONE = "done"
    UNKNOWN = "unknown"  # it may have taken effect, may yet do so, or never will
    REFUSED = "refused"  # it has no effect, now or later


@dataclass(slots=True)
class Operation:
    """An append of `value` to every list of `keys`, or a read of all of them at once. Moments are all different."""

    name: str  # for people
    keys: tuple[str, ...]
    value: int | None  # None: a read
    invoked: int
    returned: int | None = None  # None: no answer came
    outcome: Outcome = Outcome.UNKNOWN
    seen: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of a read that is done: key -> list
    lengths: Mapping[str, int] = field(
        default_factory=dict
    )  # of an append that is done: key -> length with it, where it was said

    def __str__(self) -> str:
        what = "read" if self.value is None else f"append {self.value}"
        until = "?" if self.returned is None else self.returned
        saw = "".join(f", saw {key}={_short(seen)}" for key, seen in self.seen.items())
        return f"{self.name} ({what} {'+'.join(self.keys)}, {self.invoked}..{until}, {self.outcome.value}{saw})"


class ListHistory:
    """Operations as they begin and end; one thread at a time."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._moment = 0

    def append(self, name: str, value: int, *keys: str) -> Operation:
        """An append begins."""
        return self._begin(name, keys, value)

    def read(self, name: str, *keys: str) -> Operation:
        """A read begins."""
        return self._begin(name, keys, None)

    def done(
        self, operation: Operation, seen: Mapping[str, Sequence[int]] | None = None, lengths: Mapping[str, int] | None = None
    ) -> None:
        """Its answer came: what a read saw, how long an append made the lists."""
        self._end(operation, Outcome.DONE)
        operation.seen = {key: tuple(values) for key, values in (seen or {}).items()}
        operation.lengths = lengths or {}

    def refused(self, operation: Operation) -> None:
        """It was answered that it has no effect."""
        self._end(operation, Outcome.REFUSED)

    def _begin(self, name: str, keys: tuple[str, ...], value: int | None) -> Operation:
        operation = Operation(name, keys, value, self._now())
        self.operations.append(operation)
        return operation

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        assert operation.returned is None, f"{operation} is answered twice"
        operation.returned, operation.outcome = self._now(), outcome

    def _now(self) -> int:
        self._moment += 1
        return self._moment


def _short(values: Sequence[int]) -> str:
    """The end of a list, which is what tells."""
    return f"[{', '.join(map(str, values))}]" if len(values) <= 6 else f"[.. {', '.join(map(str, values[-5:]))}] ({len(values)})"
