"""The classes of SQLAlchemy's own suite, made for `tx`. They are imported here alone.

What they are is decided when they are imported, by the fixtures and requirements that are set then.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Computed, LargeBinary, testing
from sqlalchemy.testing import config
from sqlalchemy.testing.plugin.pytestplugin import PytestFixtureFunctions, _parametrize_cls

from tests.procedures.dialect_suite.not_run import MODULES_NOT_RUN
from tests.procedures.dialect_suite.suite_requirements import Requirements


class _Unmarked:
    def __getattr__(self, _marker: str) -> Any:
        return lambda marked: marked


class _FixtureFunctions(PytestFixtureFunctions):
    """Sets none of the suite's own markers, which this project does not declare."""

    @property
    def add_to_marker(self) -> _Unmarked:
        return _Unmarked()


vars(config).update(bootstrapped_as_sqlalchemy=False, _fixture_functions=_FixtureFunctions(), requirements=Requirements())
vars(testing).update(requires=config.requirements)

from sqlalchemy.testing import suite  # noqa: E402

INSTEAD: dict[str, dict[str, Any]] = {
    "test_results": {"datetime": SimpleNamespace(datetime=partial(datetime, tzinfo=UTC))},
    "test_select": {"Computed": partial(Computed, persisted=True)},
    "test_types": {"PickleType": LargeBinary},  # a column of a table whose others are wanted
}  # what a declaration may have here, so that the tests behind it run
MODULES = {module.name for module in pkgutil.iter_modules(suite.__path__)}


def suite_classes() -> Iterator[tuple[str, type[Any]]]:
    """The classes that are run, by the names under which their tests are known."""
    for module_name in sorted(MODULES - MODULES_NOT_RUN.keys()):
        module = importlib.import_module(f"sqlalchemy.testing.suite.{module_name}")
        vars(module).update(INSTEAD.get(module_name, {}))
        for name, cls in list(vars(module).items()):
            if name.endswith("Test") and not name.startswith("_") and cls.__module__ == module.__name__:
                for each in _parametrize_cls(module, cls):  # type: ignore[no-untyped-call] # as all of SQLAlchemy's test code
                    yield each.__name__, _with_zone(each)


def _with_zone(cls: type[Any]) -> type[Any]:
    """A DateTime column takes no others; tests of one go on with their value in UTC."""
    data = getattr(cls, "data", None)
    if not isinstance(data, datetime) or data.tzinfo is not None:
        return cls
    return type(cls.__name__, (cls,), {"data": data.replace(tzinfo=UTC)})
