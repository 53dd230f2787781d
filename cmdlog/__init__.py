"""Command log and snapshot recovery for stored procedures.

`cmdlog.open(data_dir, db)` runs procedures in this process; `cmdlog serve` runs them behind HTTP. Importing this package is
cheap: what it offers is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmdlog.node.embedded import Aborted as Aborted
    from cmdlog.node.embedded import CallError as CallError
    from cmdlog.node.embedded import Embedded as Embedded
    from cmdlog.node.embedded import ProcedureFailed as ProcedureFailed
    from cmdlog.node.embedded import open_embedded as open  # reads like the built-in on purpose
    from cmdlog.node.outcome import Refused as Refused

__version__ = "0.1.0"
__all__ = ["Aborted", "CallError", "Embedded", "ProcedureFailed", "Refused", "__version__", "open"]

_HOMES = {
    "Aborted": ("cmdlog.node.embedded", "Aborted"),
    "CallError": ("cmdlog.node.embedded", "CallError"),
    "Embedded": ("cmdlog.node.embedded", "Embedded"),
    "ProcedureFailed": ("cmdlog.node.embedded", "ProcedureFailed"),
    "Refused": ("cmdlog.node.outcome", "Refused"),
    "open": ("cmdlog.node.embedded", "open_embedded"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cmdlog' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
