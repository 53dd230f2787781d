"""Whether a declaration is of code that the log has: a later version that refuses more must still replay it.

One rule: what was accepted when it was deployed stays accepted in the bundle, and is refused in the program that deploys next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_DEPLOYED: Final[ContextVar[bool]] = ContextVar("code_is_deployed", default=False)


@contextmanager
def deployed_code() -> Iterator[None]:
    """Databases declared inside were accepted when their code was deployed."""
    token = _DEPLOYED.set(True)
    try:
        yield
    finally:
        _DEPLOYED.reset(token)


def is_deployed() -> bool:
    return _DEPLOYED.get()
