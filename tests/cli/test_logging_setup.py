"""The server's log: events of the server, not the small talk of its libraries."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import orjson

MIGRATES: Final = """
import logging
import structlog
from cmdlog.cli.logging_setup import configure_logs

configure_logs("json")
structlog.get_logger("cmdlog.node").info("ours")
from alembic.runtime.migration import MigrationContext
MigrationContext.configure(dialect_name="sqlite")
logging.getLogger("alembic.runtime.migration").warning("a warning of theirs")
logging.getLogger("shop").info("a line of the application")
"""


def test_alembic_says_nothing_of_its_start() -> None:
    """A migration makes a context per partition, which would be logged as events; what Alembic warns of is kept."""
    ended = subprocess.run([sys.executable, "-c", MIGRATES], capture_output=True, check=True)
    events = [orjson.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert events == ["ours", "a warning of theirs", "a line of the application"]
