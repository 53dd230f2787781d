"""The fixtures under test, as an application's own conftest would have them."""

from __future__ import annotations

from cmdlog.testing import cmdlog_clock, cmdlog_embedded, cmdlog_server

__all__ = ["cmdlog_clock", "cmdlog_embedded", "cmdlog_server"]
