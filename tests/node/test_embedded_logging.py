"""A program that opens a node inside itself hears of it only if it wants to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
{before}
import cmdlog
from tests.node.apps.faulty import db
sizes = dict(segment_bytes=1 << 20, segments=16, log_reserve_bytes=65536, call_bytes_max=1 << 18)
with cmdlog.open(sys.argv[1], db, partitions=1, **sizes) as opened:
    assert opened.call("bump", id=1, amount=5) == 5
"""
LOGGED = "changed_since_last_start"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "heard"),
    [
        ("", False),
        pytest.param("import logging; logging.basicConfig(level=logging.INFO)", True, marks=pytest.mark.torture),
        ("import structlog; structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))", True),
    ],
    ids=["nothing said", "logging", "structlog"],
)
def test_embedded_node_writes_nothing_unless_asked(tmp_path: Path, before: str, heard: bool) -> None:
    """Nothing on standard output or error by default; the lines go where logging or structlog are told to send them."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), str(tmp_path / "data")],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert ran.stdout == ""
    assert (LOGGED in ran.stderr) is heard
    assert heard or ran.stderr == ""
