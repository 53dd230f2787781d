"""Versions of procedures: what a catalog record states of each of them.

A bundle is one version of all the code, and that is what a replay goes by: a procedure may behave otherwise because of a helper
that it calls. For people, and for whoever compares two versions, the record also says of each procedure the hash of its own
source, and `version`: the first catalog version in which it had this source and these parameters. The source itself is in the
bundle's modules.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .bundle import Bundle
from .database import Database


def catalog_value(db: Database, bundle: Bundle, version: int, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Value of the CATALOG record of this version; `before` is that of the version before it."""
    return {
        "version": version,
        "hash": bundle.hash,
        "database": db.name,
        "procedures": _stated(db, bundle, version, before),  # readers of the log need the names, not the code
        "bundle": bundle.to_bytes().decode(),
    }


def _stated(db: Database, bundle: Bundle, version: int, before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    known = {stated["name"]: stated for stated in (before or {}).get("procedures", ())}
    found = []
    for stated in bundle.procedures:
        facts = {**stated, "source_hash": source_hash(db.procedures[stated["name"]].function)}
        last = known.get(stated["name"], {})
        same = bool(facts["source_hash"]) and all(last.get(name) == value for name, value in facts.items())
        found.append({**facts, "version": last["version"] if same else version})
    return found


def source_hash(function: Callable[..., Any]) -> str:
    """SHA-256, hexadecimal, of the function's own source with its decorators; "" where there is none to be had."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()
