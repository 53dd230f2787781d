"""Stored procedures: declare tables and functions on a `Database`; run them on the state of a partition.

The names below are for authors of applications. What runs them lives in the modules: `executor`, `state`, `bundle`, `check`.
They are loaded when they are first used, since who only reads states and logs needs no SQLAlchemy: a third of a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apsw import ConstraintError as IntegrityError

    from procedures.declaration.database import Database
    from procedures.declaration.hash_slots import SLOTS, slot_of
    from procedures.declaration.procedure import EACH
    from procedures.errors import DefinitionError, InvalidParameters, ProceduresError, StatementRefused
    from procedures.execution.context import Abort, Transaction

__all__ = [
    "EACH",
    "SLOTS",
    "Abort",
    "Database",
    "DefinitionError",
    "IntegrityError",
    "InvalidParameters",
    "ProceduresError",
    "StatementRefused",
    "Transaction",
    "slot_of",
]

_HOMES = {"Database": ("procedures.declaration.database", "Database"), "IntegrityError": ("apsw", "ConstraintError")}
_HOMES["EACH"] = ("procedures.declaration.procedure", "EACH")
_HOMES |= {name: ("procedures.execution.context", name) for name in ("Abort", "Transaction")}
_HOMES |= {name: ("procedures.declaration.hash_slots", name) for name in ("SLOTS", "slot_of")}
_HOMES |= {name: ("procedures.errors", name) for name in __all__ if name not in _HOMES}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'procedures' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value
