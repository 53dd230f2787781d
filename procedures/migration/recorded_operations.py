"""`op` of a migration that is run from the log: each call runs the next of its recorded steps, whatever its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from procedures.migration.stated_change import Step


class StepsDiffer(Exception):
    """The function calls `op` more often, or less often, than it did when it was rehearsed."""


class RecordedOperations:
    """Stands in for Alembic's operations. They return None here and there; `f` alone gives its argument back."""

    def __init__(self, steps: Sequence[Step], run_step: Callable[[Step], None]) -> None:
        self._steps = list(steps)
        self._run_step = run_step
        self._done = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._run_next

    def f(self, name: str) -> str:
        """A name that no convention changes."""
        return name

    @contextmanager
    def batch_alter_table(self, *_: Any, **__: Any) -> Iterator[Any]:
        """What is done with the table is one step, at the end of the block."""
        yield _Ignoring()
        self._run_next()

    def end_steps(self) -> None:
        """The function has returned. Raises: StepsDiffer."""
        if self._done != len(self._steps):
            raise StepsDiffer(f"it made {self._done} calls of op")

    def _run_next(self, *_: Any, **__: Any) -> None:
        if self._done == len(self._steps):
            raise StepsDiffer(f"it calls op more than {self._done} times")
        self._done += 1
        self._run_step(self._steps[self._done - 1])


class _Ignoring:
    """The table inside `batch_alter_table`."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def f(self, name: str) -> str:
        return name
