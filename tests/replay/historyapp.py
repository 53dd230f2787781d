"""The application of made-up clusters: the rig's, and a procedure on all partitions that writes a replicated table."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import orjson

from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from tests.replay.rig import APP, PROCEDURES

NOTES = """

from sqlalchemy import insert

notes = db.table("notes", Column("number", Integer, primary_key=True), replicated=True)
WRITE = insert(notes).values(number=bindparam("number_"))


@db.procedure()
def write_note(tx, number: int) -> int:
    tx.execute(WRITE, number_=number)
    return number
"""
WRITE_NOTE = len(PROCEDURES)  # its number in the procedure list, by name


@functools.cache
def history_bundle(factor: int) -> Bundle:
    """The application whose deposits count `factor` times."""
    procedures = [{"name": name, "parameters": ["account", *more]} for name, *more in PROCEDURES]
    content: dict[str, Any] = {
        "target": "ledger:db",
        "modules": {"ledger": f"FACTOR = {factor}\n{APP}{NOTES}"},
        "packages": [],
        "dialect": 1,
        "sql": {},
        "procedures": [*procedures, {"name": "write_note", "parameters": ["number"]}],
    }
    return Bundle(**content, hash=hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest())


@functools.cache
def history_schema() -> list[str]:
    """Statements that make its tables."""
    return list(load_bundle(history_bundle(1)).schema_statements())
