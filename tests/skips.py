"""Why a test may be skipped: what a machine may lack. `.ci/run` forbids every other reason, so that no test goes unnoticed.

Under `TESTS_SKIP=forbidden` a skip whose reason is not in this list is a failure. What `make test` installs is never lacking.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

NO_DIRECT_WRITES: Final = "this file system has no direct writes"
NO_COMPILER: Final = "no C compiler"
MAY_LACK: Final = (
    "needs a browser: Debian's chromium and chromium-driver",  # `.ci/run` has tried to install them
    "wrk is not installed",
    NO_COMPILER,
    "PostgreSQL is not installed",
    "needs systemd-analyze",
    "no builder of containers",
    "there is no other Python on this machine",
    "moto_server is not installed",
    "basedpyright is not installed",
    "mounts and other users need root",
    "mounting is not allowed here",
    "the limit of open files does not allow so many connections",
    "this file system does not keep when a file was made",
    NO_DIRECT_WRITES,
    "needs Linux",
    "needs /proc",
    "other C libraries are not asked",
)


def forbid(report: pytest.TestReport) -> None:
    """Makes a failure of a skip that nothing excuses."""
    if os.environ.get("TESTS_SKIP") != "forbidden" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
    if reason not in MAY_LACK:
        report.outcome = "failed"
        report.longrepr = f"skipped ({reason}), though nothing in tests/skips.py says that a machine may lack what it needs"
