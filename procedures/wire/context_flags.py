"""A flag that is up for what runs inside of a `with` block, in this context alone.

One rule: who declares something asks the flag at that moment, and keeps the answer; nothing looks at it later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


@contextmanager
def raised(flag: ContextVar[bool]) -> Iterator[None]:
    """The flag is up inside; afterwards it is as it was."""
    token = flag.set(True)
    try:
        yield
    finally:
        flag.reset(token)
