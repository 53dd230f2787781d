"""A migration: a function of an application that changes tables and rows once on each partition, at its place in the log."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from procedures.errors import DefinitionError

MIGRATION_NAME: Final = re.compile(r"[0-9A-Za-z_]{1,63}", re.ASCII)
_ARGUMENTS: Final = ("tx", "op")


@dataclass(frozen=True, slots=True)
class Migration:
    """A declared migration; made by `Database.migration`."""

    name: str
    function: Callable[[Any, Any], None]


def build_migration(name: str, function: Callable[[Any, Any], None]) -> Migration:
    """Raises: DefinitionError, saying what to write."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionError(f"migration {name!r} must be a plain function")
    if tuple(inspect.signature(function).parameters) != _ARGUMENTS:
        raise DefinitionError(f"migration {name!r}: write `def {getattr(function, '__name__', 'migrate')}(tx, op):`")
    return Migration(name, function)


def check_name(name: object, known: tuple[Migration, ...]) -> str:
    """Raises: DefinitionError."""
    if not isinstance(name, str) or not MIGRATION_NAME.fullmatch(name):
        raise DefinitionError(
            f"migration {name!r}: write @db.migration('0001_what_it_does'); a name is letters, digits and _, at most 63"
        )
    if any(name == migration.name for migration in known):
        raise DefinitionError(f"migration {name!r} is declared twice")
    return name
