"""The bench on which statements are tried."""

from __future__ import annotations

import pytest

from tests.procedures.statements.statement_bench import MakeSite, StatementBench


@pytest.fixture
def bench(make_site: MakeSite) -> StatementBench:
    """A place to run statements in."""
    return StatementBench(make_site)
