"""What a deploy answers."""

from __future__ import annotations

from cmdlog.node.deploying.deployer import DeployAnswer, statements_of
from procedures.declaration.schema_plan import SchemaPlan

ENTRY = {
    "statements": ["CREATE INDEX i ON t (a)"],
    "migrations": [{"name": "0001", "steps": [["ALTER TABLE t ADD COLUMN a TEXT"], []]}],
}


def test_sql_comes_in_the_order_of_its_run() -> None:
    """Of migrations before additions."""
    assert statements_of(ENTRY) == ["ALTER TABLE t ADD COLUMN a TEXT", "CREATE INDEX i ON t (a)"]
    assert statements_of({"statements": []}) == []


def test_answers_name_what_was_done_or_would_be() -> None:
    """Each migration once; partitions that do not change are left out."""
    done = DeployAnswer.of_entries(3, {0: ENTRY, 1: ENTRY}, 1.5).to_json()
    assert (done["version"], done["migrations"], done["pause_ms"]) == (3, ["0001"], 1.5)
    assert done["partitions"].keys() == {"0", "1"}
    plan = DeployAnswer.of_plan(3, {1: SchemaPlan(("x",), ("0001",))}, "migration 0001").to_json()
    assert (plan["partitions"], plan["migrations"], plan["pauses"]) == ({"1": ["x"]}, ["0001"], "migration 0001")
    assert DeployAnswer(2, changed=False).to_json()["partitions"] == {}
