"""Stored procedures: declare tables and functions on a `Database`; run them on the state of a partition.

The names below are for authors of applications. What runs them lives in the modules: `executor`, `state`, `bundle`, `check`.
"""

from __future__ import annotations

from apsw import ConstraintError as IntegrityError

from .context import Abort, Transaction
from .database import Database
from .errors import DefinitionError, InvalidParameters, ProceduresError, StatementRefused
from .slots import SLOTS, slot_of

__all__ = [
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
