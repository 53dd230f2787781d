"""Modules in C: found where a compiler built them.

One rule: nothing needs one. Beside every caller there is Python that does the same.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

SWITCH: Final = "CMDLOG_NATIVE"


def built_module(name: str, interface: int) -> ModuleType | None:
    """The module; None where it was not built, was built of other sources, with another `INTERFACE`, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if getattr(found, "INTERFACE", 0) == interface else None
