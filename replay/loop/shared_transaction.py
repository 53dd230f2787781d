"""One SQLite transaction around many small batches.

One rule: it counts and commits; when it has to end, and what else belongs into it, is the policy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from procedures.execution.executor import Executor

GROUP_CALLS_MAX: Final = 2000  # small batches replay half again as fast, and a kill costs a tenth of a second


@dataclass(slots=True)
class SharedTransaction:
    """Batches of one partition that are committed together."""

    executor: Executor  # another one once the state was opened again
    is_open: bool = False
    _calls: int = 0

    @property
    def is_full(self) -> bool:
        """Whether it should be committed."""
        return self._calls >= GROUP_CALLS_MAX

    def ensure_open(self) -> None:
        """Begins it, unless it is open."""
        if not self.is_open:
            self.executor.begin_group()
            self.is_open = True

    def count(self, calls: int) -> None:
        """So many calls were added to it."""
        self._calls += calls

    def commit(self) -> None:
        """Commits it, if it is open. Raises: EnvironmentFault, and then nothing of it is applied."""
        self.executor.end_group()
        self.is_open, self._calls = False, 0

    def abandon(self, executor: Executor) -> None:
        """The state was opened again, without what was not committed."""
        self.executor, self.is_open, self._calls = executor, False, 0
