"""A change on all partitions or on none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cmdlog.node.deploying.deploy_errors import MigrationRefused, SwitchUnfinished
from cmdlog.node.deploying.prepared_sites import PreparedSites
from cmdlog.node.sites.prepared_changes import PreparedChanges


class Sites:
    """Answer at once with what they are given."""

    def __init__(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        self.answers, self.changes = answers, PreparedChanges()
        self.asked: list[tuple[int, Any]] = []
        self.dropped: list[int] = []

    def prepare(self, partition: int, order: Mapping[str, Any]) -> None:
        self.asked.append((partition, dict(order)))
        if partition in self.answers:
            self.changes.add_report(partition, self.answers[partition])

    def drop_prepared(self, partition: int) -> None:
        self.dropped.append(partition)


def wait_not(done: Callable[[], bool], problem: str) -> None:
    """What is not there at once never comes."""
    if not done():
        raise SwitchUnfinished(problem)


def prepared(sites: Sites) -> PreparedSites:
    """On two partitions."""
    standing: Any = sites
    return PreparedSites(standing, sites.changes, 2)


def test_changes_come_from_every_partition_that_has_one() -> None:
    """Under one version and one transaction id."""
    sites = Sites({0: {"change": {"statements": ["x"]}, "steps": [["", "x", 0, 0.1]]}, 1: {"change": None, "steps": []}})
    found = prepared(sites)
    assert found.prepare(3, 99, wait_not) == {0: {"statements": ["x"]}}
    assert sites.asked == [(0, {"catalog": 3, "at": 99}), (1, {"catalog": 3, "at": 99})]
    assert found.steps == {0: [["", "x", 0, 0.1]]}
    assert sites.dropped == []


@pytest.mark.parametrize("second", [{1: {"error": "no", "hint": "look"}}, {}])
def test_one_that_cannot_takes_all_back(second: Mapping[int, Mapping[str, Any]]) -> None:
    """Also one that does not answer."""
    sites = Sites({0: {"change": {"statements": ["x"]}, "steps": []}, **second})
    with pytest.raises((MigrationRefused, SwitchUnfinished)):
        prepared(sites).prepare(3, 99, wait_not)
    assert sites.dropped == [0, 1]
