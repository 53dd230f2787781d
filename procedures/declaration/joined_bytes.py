"""Bytes in a statement: `+` and `||` join them, as `||` does in PostgreSQL.

SQLite has no operation for it. Its `+` reads a blob as a number: `b"ab" + b"c"` is 0, `b"5" + b"7"` is 12. Its `||` keeps every
byte, NUL and what is no UTF-8 among them, but calls the result text, which equals no blob and fits no BLOB column. So both are
written as `CAST(a || b AS BLOB)`, and NULL joined with anything stays NULL.

One rule: bytes meet bytes alone. Other arithmetic, an operand of another type and one without a type are refused when the
statement is compiled.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import types
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter, Grouping, Label, Null
from sqlalchemy.sql.functions import FunctionElement

from procedures.declaration.stored_types import StoredBytes
from procedures.errors import StatementRefused
from procedures.numeric.operands import with_type

_KINDS: Final = (types.LargeBinary, types.VARBINARY, types.BINARY)
_JOINING: Final = frozenset(("+", "||"))
_SIGNS: Final[dict[Any, str]] = {
    operators.add: "+", operators.concat_op: "||", operators.sub: "-", operators.mul: "*", operators.truediv: "/",
    operators.floordiv: "//", operators.mod: "%",
}  # fmt: skip
_OF_FIRST: Final = frozenset(("substr", "substring", "nullif"))  # SQLAlchemy gives their result no type
_BYTES: Final = frozenset(("zeroblob", "unhex"))
_TO_TEXT: Final = frozenset(("concat", "concat_ws"))


def is_bytes(element: Any) -> bool:
    """Whether it is known to give bytes, or NULL."""
    element = _bare(element)
    if isinstance(element, FunctionElement) and isinstance(element.type, types.NullType):
        name, arguments = str(getattr(element, "name", "")).lower(), list(element.clauses)
        return name in _BYTES or (name in _OF_FIRST and bool(arguments) and is_bytes(arguments[0]))
    type_ = getattr(element, "type", None)
    while isinstance(type_, types.TypeDecorator):
        type_ = type_.impl_instance
    return isinstance(type_, _KINDS)


def works_on_bytes(element: Any, operator: Any) -> bool:
    """Whether it is arithmetic or a concatenation, and one of its operands is bytes."""
    return _sign_of(operator) in _SIGNS.values() and any(map(is_bytes, element.get_children()))


def sides_of_join(binary: Any, operator: Any) -> tuple[Any, Any] | None:
    """The operands of an operation on bytes; None: it has nothing to do with them.

    Raises: StatementRefused, saying which operand cannot be joined.
    """
    if not works_on_bytes(binary, operator):
        return None
    if _sign_of(operator) not in _JOINING:
        raise StatementRefused(f"<{binary}>: bytes are joined with +, and are no numbers; compute it in Python")
    return _side(binary, binary.left), _side(binary, binary.right)


def check_no_text_of_bytes(function: Any) -> None:
    """Raises: StatementRefused for `concat`, which makes text of bytes."""
    name = function.name.lower()
    if name in _TO_TEXT and any(map(is_bytes, function.clauses)):
        raise StatementRefused(f"{name}() makes text of bytes, which equals no bytes; join them with +")


def _sign_of(operator: Any) -> str | None:
    return _SIGNS.get(operator) or getattr(operator, "opstring", None)  # that of `op("||")`


def _side(binary: Any, side: Any) -> Any:
    bare = _bare(side)
    if isinstance(bare, BindParameter) and isinstance(bare.type, (*_KINDS, types.NullType)):
        return with_type(bare, BoundBytes())  # SQLAlchemy also calls a str beside bytes a LargeBinary
    if is_bytes(side) or isinstance(bare, Null):
        return side
    if isinstance(bare.type, types.NullType):
        raise StatementRefused(
            f"<{binary}> joins bytes with <{side}>, whose type is not known; if it gives bytes, write type_coerce(…, LargeBinary)"
        )
    raise StatementRefused(
        f"<{binary}> joins bytes with <{side}>, which is {bare.type!r}: bytes are joined with bytes; convert it in Python, or "
        "cast a text to LargeBinary"
    )


def _bare(element: Any) -> Any:
    while isinstance(element, Grouping | Label):
        element = element.element
    return element


class BoundBytes(StoredBytes):
    """A value that is joined: SQLite would join the characters of another one."""

    cache_ok = True

    def bind_processor(self, dialect: Any) -> Any:
        def to_sqlite(value: Any) -> Any:
            if value is not None and not isinstance(value, bytes | bytearray | memoryview):
                raise TypeError(f"bytes are joined with bytes, not with {type(value).__name__}")
            return value

        return to_sqlite
