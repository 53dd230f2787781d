"""Which changes of tables no row can stand in the way of."""

from __future__ import annotations

from typing import Final

import pytest

from cmdlog.node.deploying.table_plan import cannot_fail, find_pausing
from procedures.declaration.schema_plan import SchemaPlan

MARK: Final = 'CONSTRAINT "numeric(4,2) a" CHECK (a BETWEEN -9999 AND 9999)'


@pytest.mark.parametrize(
    ("statement", "safe"),
    [
        ("CREATE TABLE t (a INTEGER NOT NULL PRIMARY KEY) STRICT", True),
        ("DROP INDEX t_a", True),
        ("CREATE INDEX t_a ON t (a, b)", True),
        ('CREATE INDEX "t a" ON "t b" (a)', True),
        ("CREATE UNIQUE INDEX t_a ON t (a)", False),
        ("CREATE INDEX t_a ON t (lower(a))", False),
        ("CREATE INDEX t_a ON t (a) WHERE a > 1", False),
        ("ALTER TABLE t ADD COLUMN a TEXT", True),
        ("ALTER TABLE \"t b\" ADD COLUMN a TEXT DEFAULT 'x' NOT NULL", True),
        ("ALTER TABLE t ADD COLUMN a TEXT CHECK (a <> '')", False),
        (f"ALTER TABLE t ADD COLUMN a INTEGER DEFAULT 150 NOT NULL {MARK}", True),
        (f"ALTER TABLE t ADD COLUMN a INTEGER CHECK (a > 0) {MARK}", False),
        (f"ALTER TABLE t ADD COLUMN a INTEGER {MARK} CHECK (a > 0)", False),
        ("ALTER TABLE t ADD COLUMN a INTEGER REFERENCES u (id)", False),
        ("DROP TABLE t", False),
    ],
)
def test_only_what_cannot_fail_runs_beside_calls(statement: str, *, safe: bool) -> None:
    """Conditions on rows, and SQL that is not known to have none, are tried first."""
    assert cannot_fail(statement) is safe
    assert bool(find_pausing({0: SchemaPlan((statement,))})) is not safe


def test_migrations_are_named() -> None:
    """Each once, whatever partitions lack it."""
    plans = {0: SchemaPlan(pending=("a", "b")), 1: SchemaPlan(pending=("b",))}
    assert find_pausing(plans) == "migrations a, b"
    assert find_pausing({1: SchemaPlan(pending=("b",))}) == "migration b"
    assert find_pausing({}) == ""
