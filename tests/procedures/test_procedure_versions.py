"""Versions of procedures in catalog records."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import pytest
from sqlalchemy import JSON, Boolean, Column, Date, DateTime, Integer, Interval, String, Time, Uuid

from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle
from procedures.code.procedure_versions import catalog_value, check_rows, source_hash
from procedures.errors import SchemaConflict
from procedures.samples import bank
from tests.node.apps import voter


def test_record_names_every_procedure_with_its_version_and_source_hash() -> None:
    """Name, parameters, version and the hash of a source that stands in the bundle; in the order of the numbers."""
    bundle = capture_bundle(bank.db)
    value = catalog_value(bank.db, bundle, 3, None, partitions=4)
    assert [stated["name"] for stated in value["procedures"]] == [procedure.name for procedure in bank.db.procedure_list]
    assert {stated["version"] for stated in value["procedures"]} == {3}
    for stated, procedure in zip(value["procedures"], bank.db.procedure_list, strict=True):
        source = inspect.getsource(procedure.function)
        assert source in bundle.modules[procedure.function.__module__]
        assert stated["source_hash"] == hashlib.sha256(source.encode()).hexdigest()
        assert tuple(stated["parameters"]) == procedure.parameter_names


def test_version_is_that_in_which_the_procedure_became_what_it_is() -> None:
    """What did not change keeps its version; what has another source, or no known one, gets the new one."""
    bundle = capture_bundle(voter.db)
    first = catalog_value(voter.db, bundle, 1, None, partitions=4)
    before: dict[str, Any] = {**first, "procedures": [dict(stated) for stated in first["procedures"]]}
    before["procedures"][0]["source_hash"] = "of another time"
    del before["procedures"][-1]["source_hash"]  # a record of a release that did not state it
    versions = [stated["version"] for stated in catalog_value(voter.db, bundle, 2, before, partitions=4)["procedures"]]
    assert versions == [2, *[1] * (len(versions) - 2), 2]


def test_procedure_without_source_has_no_hash() -> None:
    """What was typed at a prompt is nowhere to be read: it counts as new in every version."""
    space: dict[str, Any] = {"Database": Database}
    code = "db = Database('typed')\n@db.procedure(partition_by='n')\ndef give(tx, n: int) -> int:\n    return n\n"
    exec(code, space)  # noqa: S102 - as a prompt does
    assert source_hash(space["give"]) == ""


def _placed(by: str | None) -> Database:
    db = Database("placed")
    columns = [Column("id", Integer, primary_key=True), Column("owner", Integer, nullable=False)]
    db.table("t", *columns, **({"replicated": True} if by is None else {"partition_by": by}))
    return db


@pytest.mark.parametrize(("before", "after"), [("id", "owner"), ("id", None), (None, "id")])
def test_code_that_would_move_rows_is_refused(before: str | None, after: str | None) -> None:
    """With the way to do it; a renamed column, a new table and a record that does not say it pass."""
    with pytest.raises(SchemaConflict, match="no migration moves them; make a new directory"):
        check_rows(_placed(after), {"tables": {"t": before}})
    check_rows(_placed(after), {"tables": {"t": after, "gone": "id"}})
    check_rows(_placed(after), {})
    check_rows(_placed("id"), {"tables": {"t": "former_name"}})


def _with_column(type_: Any, *migrations: str) -> Database:
    db = Database("formed")
    db.table("t", Column("id", Integer, primary_key=True), Column("at", type_), partition_by="id")
    for name in migrations:
        db.migration(name)(lambda tx, op: None)
    return db


def _stated(db: Database) -> dict[str, Any]:
    return catalog_value(db, Bundle("formed:db", {}, [], {}, [], hash=""), 1, None, partitions=1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Date, DateTime), (DateTime, Date), (String, Uuid), (String, JSON), (Uuid, JSON), (Integer, Boolean), (Integer, Interval),
        (String, Time),
    ],
)  # fmt: skip
def test_code_that_would_read_rows_as_something_else_is_refused(before: Any, after: Any) -> None:
    """Their tables look alike. A new migration may convert them, one that has run has not; an early record says nothing."""
    stated = _stated(_with_column(before, "0001_first"))
    with pytest.raises(SchemaConflict, match=r"'at' of table 't' is (an? )?\w+ in the log .* op\.alter_column\('t', 'at', type_"):
        check_rows(_with_column(after, "0001_first"), stated)
    check_rows(_with_column(after, "0001_first", "0002_at"), stated)
    check_rows(_with_column(before, "0001_first"), stated)
    check_rows(_with_column(after, "0001_first"), {name: value for name, value in stated.items() if name != "forms"})


def test_a_form_that_reads_as_it_was_written_is_no_other() -> None:
    """Times as the text that they are, flags as numbers."""
    for before, after in ((Date, String), (Uuid, String), (Boolean, Integer), (String(5), String(9))):
        check_rows(_with_column(after), _stated(_with_column(before)))
