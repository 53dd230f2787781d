"""The command log on Spark: a session, the log as a table, rebuilt tables. PySpark lives here and nowhere else.

Functions are imported when they are used: every Python that Spark starts imports this package, and most need the table alone.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from replay.spark.base.executor_zip import ship
    from replay.spark.datasource.source import register
    from replay.spark.jobs.backfill import backfill
    from replay.spark.jobs.rebuild import rebuild
    from replay.spark.session import session

__all__ = ["backfill", "rebuild", "register", "session", "ship"]
_MODULES: Final = {
    "backfill": "replay.spark.jobs.backfill",
    "rebuild": "replay.spark.jobs.rebuild",
    "register": "replay.spark.datasource.source",
    "session": "replay.spark.session",
    "ship": "replay.spark.base.executor_zip",
}


class _Package(ModuleType):
    """A function's name stays the function's: Python would put the module of the same name there when that is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(_MODULES[name]), name)


sys.modules[__name__].__class__ = _Package
