"""Parameters of a query: by place, or by name.

One rule: what is neither a list nor a dict is refused by its type. A text is no list of letters, and a set has no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmdlog.errors import InvalidParameters

QueryParameters = Sequence[Any] | Mapping[str, Any]

_TEXTS: Final = (str, bytes, bytearray, memoryview)


def read_parameters(params: Any) -> list[Any] | dict[str, Any]:
    """As a query is run with them. Raises: InvalidParameters, naming the type."""
    if params is None:
        return []
    if isinstance(params, Mapping):
        if wrong := next((name for name in params if not isinstance(name, str)), None):
            raise _refused(f"names of parameters are text, not {type(wrong).__name__}")
        return dict(params)
    if isinstance(params, Sequence) and not isinstance(params, _TEXTS):
        return list(params)
    raise _refused(f"must be a list, or a dict by name, not {type(params).__name__}")


def _refused(problem: str) -> InvalidParameters:
    return InvalidParameters(problems=[("params", problem)])
