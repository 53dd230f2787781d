"""Whether texts of errors show the values of rows: they do not, because texts leave the node and values must not.

A text of the framework is part of an outcome: it goes into the answer, the server's log, `/v1/status` and the page. So it names
table, constraint and columns; a procedure finds the values in the exception's `params`.

One rule: each text that could show a value asks `value_in_text`. Outcomes are compared by replays, so code bundles of before this
rule keep their texts: values are shown while such a bundle is loaded (`bundle_dialect`) and while its calls run (`Catalog.open`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from procedures.context_flags import raised

VALUES_SHOWN: ContextVar[bool] = ContextVar("values_shown", default=False)


def values_shown() -> AbstractContextManager[None]:
    """Errors show values inside, and those of databases that are declared inside: for code bundles of that time."""
    return raised(VALUES_SHOWN)


def values_are_shown() -> bool:
    return VALUES_SHOWN.get()


def value_in_text(value: Any, show: Callable[[Any], str], instead: str) -> str:
    """The words instead of it; in texts of before, the value as `show` writes it."""
    return show(value) if VALUES_SHOWN.get() else instead


def wrong_kind(value: Any) -> str:
    """What a conversion says of a stored value that it cannot read."""
    kind = type(value).__name__
    return value_in_text(value, lambda shown: f"{shown!r} ({kind})", f"a value of type {kind}")
