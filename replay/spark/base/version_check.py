"""Checks that an executor would run a call as the driver, which made the plan, would.

One rule: what could change a replay without a trace is compared before anything is applied, and a difference is refused naming
both sides: this package by its sources, SQLite, and the minor version of Python. (Any other difference shows in the digests of
the log, or when a bundle's statements compile to other SQL.)
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

import apsw

from procedures.execution.hash_seed import is_pinned
from replay.errors import ReplayError
from replay.spark.base.executor_zip import code_version

READS: Final = "an executor that reads"


class OtherVersions(ReplayError):
    """An executor, or an earlier run of the same job, had other versions."""

    exit_code = 11
    hint = "install the same versions everywhere, or ship the driver's environment to the executors (`spark.archives`)"


class OtherHashSeed(ReplayError):
    """An executor's Python would iterate sets of strings in another order than sites did."""

    exit_code = 11
    hint = "set PYTHONHASHSEED=0 for the driver, and with Spark Connect `spark.executorEnv.PYTHONHASHSEED=0` at the server"


def versions() -> dict[str, str]:
    """Those of this process that must be equal."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"cmdlog": code_version(), "python": python, "sqlite": apsw.sqlite_lib_version()}


def versions_for_reading() -> dict[str, str]:
    """Those that must be equal where the log is only read."""
    return {"cmdlog": code_version()}


def check_versions(wanted: Mapping[str, str], who: str) -> None:
    """Raises: OtherVersions, when this process has others than were wanted by the driver."""
    here = versions()
    if different := [name for name in sorted(wanted) if here.get(name) != wanted[name]]:
        told = ", ".join(f"{name} {here.get(name)} instead of {wanted[name]}" for name in different)
        raise OtherVersions(f"{who} has {told}")


def check_hash_seed(who: str) -> None:
    """Raises: OtherHashSeed, when this process must not run logged calls."""
    if not is_pinned():
        raise OtherHashSeed(f"{who} runs under a different hash seed than sites")
