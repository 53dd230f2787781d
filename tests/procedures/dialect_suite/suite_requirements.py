"""What SQLAlchemy's suite asks of a database before it runs a test, answered for `tx`.

One rule: no requirement skips a test. Every test runs, and what must fail is listed in `not_run.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

from tests.procedures.dialect_suite.not_run import REQUIREMENTS_REFUSED


class Requirement(exclusions.compound):
    """Requirements by name. As a decorator it leaves the test alone, and leaves its names with it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # SQLAlchemy's test code has no types
        self.names = frozenset(names)

    @property
    def enabled(self) -> bool:
        return not self.names & REQUIREMENTS_REFUSED.keys()

    def add(self, *others: Any) -> Requirement:
        return Requirement(self.names.union(*(other.names for other in others if isinstance(other, Requirement))))

    def _extend(self, other: Any) -> None:
        self.names |= other.names if isinstance(other, Requirement) else frozenset()

    def __call__(self, function: Any) -> Any:
        known = getattr(function, "_sa_exclusion_extend", None)
        if known is None:
            function._sa_exclusion_extend = self.add()
        else:
            known._extend(self)
        return function


def _names() -> Iterable[str]:
    return (name for name in dir(SuiteRequirements) if isinstance(getattr(SuiteRequirements, name), property))


class Requirements(SuiteRequirements):
    """All of the suite's, by name."""

    def get_order_by_collation(self, _config: Any) -> str:
        return "NOCASE"


for _name in _names():
    setattr(Requirements, _name, Requirement([_name]))
