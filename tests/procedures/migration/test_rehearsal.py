"""What a rehearsal says of a change, and the example of WRITING.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, Numeric, Text

from procedures import Database
from tests.procedures.migration.people import ChangingSite, program

GUIDE = Path(__file__).parents[3] / "procedures" / "WRITING.md"


def test_example_of_the_guide_runs(tmp_path: Path) -> None:
    """On rows of the program before it; the steps say which SQL ran and how many rows it copied."""

    def before(db: Database) -> None:
        name, balance = Column("name", Text, nullable=False), Column("balance", Numeric(10, 2), nullable=False)
        db.table("person", Column("id", Integer, primary_key=True), name, balance, partition_by="id")

    (example,) = [block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "@db.migration" in block]
    module: dict[str, Any] = {}
    exec(compile(example, str(GUIDE), "exec"), module)  # noqa: S102 - our own document
    site = ChangingSite(tmp_path / "guide.db", program(before))
    site.start()
    site.run_sql("INSERT INTO person (id, name, balance) VALUES (1, 'Ada', 1050)")
    rehearsal = site.rehearse(module["db"], keep=True)
    assert rehearsal is not None
    assert [(step.what, step.sql.split()[0], step.rows) for step in rehearsal.steps if step.sql.startswith(("INS", "UPD"))] == [
        ("0001_split_name", "INSERT", 1),
        ("0001_split_name", "UPDATE", 1),
    ]
    assert sum(step.seconds for step in rehearsal.steps) >= 0 < rehearsal.seconds
    site.apply(rehearsal.change)
    assert site.rows("SELECT id, given, family, balance FROM person") == [(1, "Ada", "ADA", 105000)]
    site.close()
