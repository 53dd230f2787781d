"""A change of tables that is done on every partition before anything of it is logged, and kept open until it is.

One rule: all or none. Where one partition cannot be changed, the others take back what they have done.

Between `prepare` and the entry no call is placed: the states' transactions are open. A site that ends meanwhile loses what it
kept; if that is before the entry is logged, the deploy fails, and after it, its successor runs the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cmdlog.node.deploying.deploy_errors import MigrationRefused
from cmdlog.node.sites.inline_sites import InlineSites
from cmdlog.node.sites.prepared_changes import PreparedChanges, Report
from cmdlog.node.sites.supervisor import ProcessSites

Entries = dict[int, dict[str, Any]]  # partition -> value of its SCHEMA entry


class PreparedSites:
    """One thread at a time: the deploy's."""

    def __init__(self, sites: InlineSites | ProcessSites, changes: PreparedChanges, partitions: int) -> None:
        self._sites, self._changes, self._partitions = sites, changes, range(partitions)
        self.steps: dict[int, Sequence[Any]] = {}  # partition -> [migration, SQL, rows, seconds] of what was done

    def prepare(self, version: int, at: int, wait: Callable[[Callable[[], bool], str], None]) -> Entries:
        """The change of every partition, done and kept open; the sites have the code of `version`.

        `at` is the TxnId that migrations see. Raises: MigrationRefused, and nothing is kept; what `wait` raises.
        """
        self._changes.await_partitions(self._partitions)
        try:
            for partition in self._partitions:
                self._sites.prepare(partition, {"catalog": version, "at": at})
            wait(lambda: self._changes.complete, "the sites have not done the migration")
        except BaseException:
            self.drop_all()
            raise
        reports = self._changes.reports()
        if refused := {partition: report for partition, report in reports.items() if "error" in report}:
            self.drop_all()
            partition, report = next(iter(refused.items()))
            raise MigrationRefused(f"partition {partition}: {report['error']}", hint=_hint_of(report))
        self.steps = {partition: report["steps"] for partition, report in reports.items() if report["change"] is not None}
        return {partition: report["change"] for partition, report in reports.items() if report["change"] is not None}

    def drop_all(self) -> None:
        """Every partition is as before."""
        for partition in self._partitions:
            self._sites.drop_prepared(partition)


def _hint_of(report: Report) -> str:
    return f"nothing changed; {report['hint']}" if report["hint"] else ""
