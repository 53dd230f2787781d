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


RAISED: Final = """
import structlog
from cmdlog.cli.logging_setup import configure_logs

configure_logs("text")
structlog.get_logger("cmdlog.calls").error("procedure_failed", traceback="Traceback:\\n  File \\"shop.py\\", line 7")
"""


def test_text_in_a_file_has_lines_and_no_colours() -> None:
    """Lines as text that go to a file or a pipe have no control characters, and a traceback is lines, not an escaped value."""
    ended = subprocess.run([sys.executable, "-c", RAISED], capture_output=True, text=True, check=True)
    assert "\x1b" not in ended.stderr
    assert ended.stderr.splitlines()[1:] == ["  Traceback:", '    File "shop.py", line 7']


HOSTILE: Final = """
import logging
import structlog
from cmdlog.cli.logging_setup import configure_logs

configure_logs("text")
evil = "a\\x1b]0;owned\\x07b\\r\\nFORGED\\u202e\\x9b2J"
try:
    raise ValueError(evil)
except ValueError:
    structlog.get_logger("cmdlog.api").exception(evil, reason=evil, of=[evil], traceback=None)
structlog.get_logger("cmdlog.calls").error("procedure_failed", error=evil, traceback=evil)
logging.getLogger("library").warning("said %s", evil)
"""


def test_a_value_does_nothing_in_a_terminal_and_begins_no_line() -> None:
    """What a caller or a server put into it stands there as its escape sequence, in lines of the application too."""
    ended = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=True)
    assert ended.stderr.count("FORGED") == 7
    assert [one for one in ended.stderr if not one.isprintable() and one != "\n"] == []
    assert not any(line.startswith("FORGED") for line in ended.stderr.splitlines())
