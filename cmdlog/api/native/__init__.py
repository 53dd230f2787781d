"""Steps of the gate in C, where a compiler built them: reading a call's request, JSON, and a batch's lines.

One rule: nothing needs them. `steps` is None where the module was not built or is switched off (`CMDLOG_NATIVE=0`); then the
parser and the Python beside each caller do the same, with the same verdicts.
"""

from __future__ import annotations

from typing import Any, Final

from cmdlog.built_module import built_module

INTERFACE: Final = 6  # what the Python here asks of the module; in requests.c the same

steps: Any = built_module("cmdlog.api.native.requests", INTERFACE)  # see requests.pyi
