"""Code that the log has is loaded by the rules of its time; the program that deploys next is held to today's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from procedures import DefinitionError
from procedures.bundle import capture_bundle, load_bundle
from procedures.deployed_code import deployed_code, is_deployed

APP = """
from sqlalchemy import Column, Float, Integer
from procedures import Database
db = Database("older")
db.table("t", Column("id", Integer, primary_key=True), Column("x", Float(decimal_return_scale=2)), partition_by="id")

@db.procedure(partition_by="number")
def put(tx, number: int) -> None: ...
"""


def test_a_bundle_loads_what_its_program_may_no_longer_declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables can be compared with a state as well."""
    (tmp_path / "older_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    try:
        with pytest.raises(DefinitionError, match="decimal_return_scale"):
            importlib.import_module("older_app")
        with deployed_code():
            assert is_deployed()
            module = importlib.import_module("older_app")
        loaded = load_bundle(capture_bundle(module.db, "older_app:db"))
    finally:
        sys.modules.pop("older_app", None)
    assert not is_deployed()
    assert loaded.plan_schema({}) == loaded.schema_statements()
