"""Keys that a procedure looks for beside the one that routes it."""

from __future__ import annotations

from procedures.checks.check import check
from procedures.checks.routed_keys import find_misrouted
from tests.replay.ledgers import Versions

APP = """
from sqlalchemy import Column, Integer, bindparam, select, update
from procedures import EACH, Database

db = Database("cups")
cup = db.table("cup", Column("id", Integer, primary_key=True), Column("ml", Integer), partition_by="id")
lid = db.table("lid", Column("id", Integer, primary_key=True), Column("cup", Integer), partition_by="cup")
FILL = update(cup).where(cup.c.id == bindparam("which")).values(ml=cup.c.ml + bindparam("ml"))
SEEN = select(cup.c.ml, lid.c.id).where(cup.c.id == lid.c.cup, lid.c.cup == bindparam("which"))
BOTH = select(cup.c.ml).where(cup.c.id == bindparam("which"), cup.c.id.in_([bindparam("other")]))


@db.procedure(partition_by="here")
def fine(tx, here: int, there: int) -> None:
    tx.execute(FILL, which=here, ml=there)
    tx.execute(BOTH, which=here, other=there)
    tx.execute(select(cup).where(cup.c.ml == there, cup.c.id == here))
    there = here
    tx.execute(FILL, which=there, ml=1)


@db.procedure(partition_by=EACH)
def everywhere(tx, there: int) -> None:
    tx.execute(FILL, which=there, ml=1)


@db.procedure(partition_by="here")
def pour(tx, here: int, there: int) -> None:
    tx.execute(FILL, which=here, ml=-1)
    tx.execute(FILL, {"which": there, "ml": 1})


@db.procedure(partition_by="here", read_only=True)
def compare(tx, here: int, there: int, third: int) -> list[int]:
    found = tx.scalars(SEEN, which=there)
    return [*found, tx.scalar(select(cup.c.ml).where(third == cup.c.id))]
"""


def test_a_key_beside_the_one_that_routes_is_a_warning(versions: Versions) -> None:
    """Given to a statement by keyword or in a dict, or compared in the function; each place is named once."""
    db = versions.load("cups", APP)
    found = [(one.function, one.message.partition(", and here says")[0]) for one in find_misrouted(db, {"cups": APP})]
    assert sorted(set(found)) == [
        ("compare", "SEEN looks for cup.id = there"),
        ("compare", "SEEN looks for lid.cup = there"),
        ("compare", "it looks for cup.id = third"),
        ("pour", "FILL looks for cup.id = there"),
    ]
    assert len(found) == 4
    codes = [(one.code, one.severity, one.line) for one in check(db) if one.function == "pour"]
    assert codes == [
        ("other-partition", "warning", 1 + APP.splitlines().index('    tx.execute(FILL, {"which": there, "ml": 1})'))
    ]
