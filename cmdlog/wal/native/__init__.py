"""Steps of the log in C, where a compiler built them: the thread that writes a block beside its caller.

One rule: nothing needs them. `steps` is None where the module was not built or is switched off (`CMDLOG_NATIVE=0`); then every
block is written and synced by the thread that took it.
"""

from __future__ import annotations

from typing import Any, Final

from cmdlog.built_module import built_module

INTERFACE: Final = 2  # what the Python here asks of the module; in write_thread.c the same

steps: Any = built_module("cmdlog.wal.native.write_thread", INTERFACE)  # see write_thread.pyi
