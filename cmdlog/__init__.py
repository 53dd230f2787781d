"""Command log and snapshot recovery for stored procedures.

A `Database` holds tables and procedures. `cmdlog.open(data_dir, db)` runs them in this process; `cmdlog serve` serves them over
HTTP, and `cmdlog.Client` calls them there. Importing this package is cheap: what it offers is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdlog.client import AsyncClient as AsyncClient
    from cmdlog.client import AutoBatch as AutoBatch
    from cmdlog.client import Call as Call
    from cmdlog.client import Client as Client
    from cmdlog.client import RetryPolicy as RetryPolicy
    from cmdlog.errors import Aborted as Aborted
    from cmdlog.errors import BadAnswer as BadAnswer
    from cmdlog.errors import CallError as CallError
    from cmdlog.errors import CmdlogError as CmdlogError
    from cmdlog.errors import Forbidden as Forbidden
    from cmdlog.errors import InvalidParameters as InvalidParameters
    from cmdlog.errors import KeyReused as KeyReused
    from cmdlog.errors import OutcomeUnknown as OutcomeUnknown
    from cmdlog.errors import ProcedureFailed as ProcedureFailed
    from cmdlog.errors import RequestRefused as RequestRefused
    from cmdlog.errors import ServerFault as ServerFault
    from cmdlog.errors import SessionExpired as SessionExpired
    from cmdlog.errors import TooLarge as TooLarge
    from cmdlog.errors import Unauthenticated as Unauthenticated
    from cmdlog.errors import Unavailable as Unavailable
    from cmdlog.errors import UnknownProcedure as UnknownProcedure
    from cmdlog.errors import Unreachable as Unreachable
    from cmdlog.node.embedded.embedded import Embedded as Embedded
    from cmdlog.node.embedded.embedded import open_embedded as open  # reads like the built-in on purpose
    from cmdlog.results import QueryResult as QueryResult
    from cmdlog.results import Result as Result
    from procedures import EACH as EACH
    from procedures import Database as Database
    from procedures import DefinitionError as DefinitionError
    from procedures import IntegrityError as IntegrityError
    from procedures import Transaction as Transaction

__version__ = "0.1.0"

__all__ = [
    "EACH",
    "Aborted",
    "AsyncClient",
    "AutoBatch",
    "BadAnswer",
    "Call",
    "CallError",
    "Client",
    "CmdlogError",
    "Database",
    "DefinitionError",
    "Embedded",
    "Forbidden",
    "IntegrityError",
    "InvalidParameters",
    "KeyReused",
    "OutcomeUnknown",
    "ProcedureFailed",
    "QueryResult",
    "RequestRefused",
    "Result",
    "RetryPolicy",
    "ServerFault",
    "SessionExpired",
    "TooLarge",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "UnknownProcedure",
    "Unreachable",
    "__version__",
    "open",
]

_HOMES = {"open": ("cmdlog.node.embedded.embedded", "open_embedded"), "Embedded": ("cmdlog.node.embedded.embedded", "Embedded")}
_HOMES |= {name: ("cmdlog.client", name) for name in ("AsyncClient", "AutoBatch", "Call", "Client", "RetryPolicy")}
_HOMES |= {name: ("cmdlog.results", name) for name in ("QueryResult", "Result")}
_FOR_AUTHORS = ("EACH", "Database", "DefinitionError", "IntegrityError", "Transaction")
_HOMES |= {name: ("procedures", name) for name in _FOR_AUTHORS}
_HOMES |= {name: ("cmdlog.errors", name) for name in __all__ if name not in _HOMES and name != "__version__"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cmdlog' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    if module == "procedures" or module.startswith("cmdlog.node"):  # a client alone may have a `procedures.py` of its own
        importlib.import_module("cmdlog.hidden_packages").check_packages()
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    """A prompt and a notebook complete from it: what is not loaded yet, too."""
    return sorted(globals().keys() | set(__all__))
