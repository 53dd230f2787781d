"""Which application is checked: by the name of its `Database`, or the object itself."""

from __future__ import annotations

import importlib
import sys

from procedures.declaration.database import Database
from procedures.errors import BundleError


def resolve_target(target: str | Database) -> tuple[str, Database]:
    """Its name, module:attribute, and the database. Raises: BundleError."""
    if isinstance(target, Database):
        for name, module in sorted(sys.modules.items()):
            for variable, value in list(vars(module).items()):
                if value is target:
                    return f"{name}:{variable}", target
        raise BundleError(f"database {target.name!r} is not an attribute of an imported module")
    name, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(name), attribute or "db", None)
    except ImportError as error:
        raise BundleError(f"{name!r} cannot be imported: {error}") from None
    if not isinstance(found, Database):
        raise BundleError(f"{target!r} is no Database; give module:attribute")
    return f"{name}:{attribute or 'db'}", found
