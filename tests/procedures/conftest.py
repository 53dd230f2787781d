"""Fixtures of the tests of procedures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cmdlog.testing import cmdlog_clock, cmdlog_embedded
from procedures import Database
from tests.procedures.sites import Site
from tests.procedures.statements.statement_bench import MakeSite, StatementBench

__all__ = ["cmdlog_clock", "cmdlog_embedded", "make_site"]


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes sites, each in its own file unless a name is given; all are closed at the end."""
    sites: list[Site] = []

    def make(db: Database, *, name: str | None = None, **settings: Any) -> Site:
        site = Site(tmp_path / (name or f"{len(sites)}.db"), db, **settings)
        sites.append(site)
        return site

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def bench(make_site: MakeSite) -> StatementBench:
    """A place to run statements in."""
    return StatementBench(make_site)
