"""Whether a declaration is of code that the log has: a later version that refuses more must still replay it.

One rule: what was accepted when it was deployed stays accepted in the bundle, and is refused in the program that deploys next.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

from procedures.context_flags import raised

_DEPLOYED: Final[ContextVar[bool]] = ContextVar("code_is_deployed", default=False)


def deployed_code() -> AbstractContextManager[None]:
    """Databases declared inside were accepted when their code was deployed."""
    return raised(_DEPLOYED)


def is_deployed() -> bool:
    return _DEPLOYED.get()
