"""Values on their way into SQLite: of the classes that it stores, or made one of them, or refused.

APSW takes whatever is a buffer as bytes. The integers and floats of numpy are buffers: as bytes they equal nothing, and no error
says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import index
from typing import Any, Final

STORED: Final = frozenset((int, str, float, bytes, bool, type(None)))  # as they are
_BY_KIND: Final[dict[str, Callable[[Any], Any]]] = {"b": bool, "i": int, "u": int, "f": float}  # of numpy's scalars


def stored_value(value: Any) -> Any:
    """The value as SQLite stores it; what is no buffer is left to APSW, which says what it is.

    Raises: TypeError, for a buffer whose class says nothing of its value.
    """
    kind = type(value)
    if kind in STORED or isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if getattr(value, "shape", None) == () and (convert := _BY_KIND.get(getattr(value.dtype, "kind", ""))) is not None:
        return convert(value)
    if not _is_buffer(value):
        return value
    if hasattr(kind, "__index__") and not isinstance(value, array) and not hasattr(value, "shape"):
        return index(value)
    raise TypeError(
        f"a value of type {kind.__module__}.{kind.__qualname__} is a buffer, and SQLite would take it as bytes; give int(…), "
        "float(…), str(…) or bytes(…) of it"
    )


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except (TypeError, ValueError):
        return False
    return True


def storing(pick: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """The same values, each as SQLite stores it."""

    def pick_stored(params: dict[str, Any]) -> Any:
        values = pick(params)
        return values if STORED.issuperset(map(type, values)) else tuple(map(stored_value, values))

    return pick_stored
