"""Steps of the gate in C, where a compiler built them: reading a call's request, and counting the members of its JSON.

One rule: nothing needs them. `requests` is None where the module was not built or is switched off (`CMDLOG_NATIVE=0`); then the
framer and the Python beside each caller do the same, with the same verdicts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from procedures.native import SWITCH

if TYPE_CHECKING:
    from types import ModuleType


def _load() -> ModuleType | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        from cmdlog.api.native import requests as found  # noqa: PLC0415 - a module that need not be there
    except ImportError:
        return None
    return found


steps: Any = _load()  # a module, see requests.pyi; or None
