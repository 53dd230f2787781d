"""Whether an executor would do with a call what the driver, which made the plan, would do.

One rule: what could change a replay without a trace is compared before anything is applied, and a difference is refused naming
both sides: this package, SQLite, and the minor version of Python. (What else differs shows by the digests of the log, or when a
bundle's statements compile to other SQL.)
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from procedures.bundle import environment
from replay.errors import ReplayError


class OtherVersions(ReplayError):
    """An executor, or an earlier run of the same job, had other versions."""

    exit_code = 11
    hint = "install the same versions everywhere, or ship the driver's environment to the executors (`spark.archives`)"


def versions() -> dict[str, str]:
    """Those of this process that must be equal."""
    here = environment()
    return {"cmdlog": here["cmdlog"], "python": ".".join(platform.python_version_tuple()[:2]), "sqlite": here["sqlite"]}


def check_versions(wanted: Mapping[str, str], who: str) -> None:
    """Raises: OtherVersions, when this process has others than were wanted by the driver."""
    here = versions()
    if different := [name for name in sorted(wanted) if here.get(name) != wanted[name]]:
        told = ", ".join(f"{name} {here.get(name)} instead of {wanted[name]}" for name in different)
        raise OtherVersions(f"{who} has {told}")
