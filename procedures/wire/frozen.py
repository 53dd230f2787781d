"""Lists and dicts that a procedure receives: readable as usual, and clear about why they cannot be changed.

Parameters are what the log holds. A batch may run twice (see executor.py), and the second run must see the same values.
"""

from __future__ import annotations

from typing import Any, NoReturn


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    kind = "list" if isinstance(self, list) else "dict"
    raise TypeError(f"parameters cannot be changed: they are what the log holds; work on a copy, {kind}(…)")


def thawed(value: Any) -> Any:
    """A result, which belongs to the caller: with lists and dicts that can be changed."""
    if type(value) is FrozenList:
        return [thawed(element) for element in value]
    if type(value) is FrozenDict:
        return {name: thawed(element) for name, element in value.items()}
    return value


class FrozenList(list[Any]):
    """A list whose changing methods raise TypeError."""

    __slots__ = ()
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse


class FrozenDict(dict[str, Any]):
    """A dict whose changing methods raise TypeError."""

    __slots__ = ()
    pop = popitem = clear = update = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse
