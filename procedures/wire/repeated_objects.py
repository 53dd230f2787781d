"""Objects whose class runs code of its own when it is made: a parameter comes back equal from its wire form, or is refused.

One rule: what the log holds makes, live and in every replay, the object that the caller meant. An object that a caller gives is
finished, so making it again from its fields must change nothing. A JSON object is made once: the log holds what that object says
of itself, if this makes an equal one (a `__post_init__` that strips a text, or sets what was left out), else what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, Field
from typing import Any, Final

from procedures.wire.scalar_codecs import Codec, NotRepeatable, WireError

UNCHECKED: Final[ContextVar[bool]] = ContextVar("objects_unchecked", default=False)
"""Up while the codecs of results are built: a replay of an old log has to answer what the call answered."""


class ObjectFields:
    """What is known of a dataclass, or a named tuple, with code of its own."""

    def __init__(
        self,
        kind: type,
        codecs: Mapping[str, Codec],
        more: tuple[str, ...],
        make: Callable[[Any], Any],
        write: Callable[[Any], Any],
    ) -> None:
        """`codecs` of the fields that make an object, `more` that its code sets; `make` and `write` as for any class."""
        self.name = kind.__name__
        self._codecs, self._more, self._make, self.write = codecs, more, make, write

    def check_object(self, value: Any) -> Any:
        """The wire form of a finished object. Raises: WireError."""
        wire = self.write(value)
        if field := self._difference(value, self._make_again(wire)):
            raise NotRepeatable(
                f"{self.name} does not come back equal from its wire form: {field} is another once it is made again. Its code "
                "(__post_init__, __new__ or __init__) must leave the values of a finished object as they are"
            )
        return wire

    def settle_request(self, sent: Any) -> Any:
        """The wire form to be logged for an object that was sent with these values. Raises: WireError."""
        made, field, said = self._make_again(sent), "", sent
        with contextlib.suppress(WireError):  # its code has put values of other types into the fields
            said = self.write(made)
        for wire in (said, sent):
            field = self._difference(made, self._make_again(wire))
            if not field:
                return wire
        raise NotRepeatable(
            f"{self.name} is another object each time it is made of the same values: {field}. A replay would see other values "
            "than the call: make them before, or in the procedure (tx.uuid(), tx.now, tx.random)"
        )

    def _make_again(self, wire: Any) -> Any:
        try:
            return self._make(wire)
        except Exception as error:
            raise WireError(f"{self.name} refuses it: {error}") from error

    def _difference(self, one: Any, other: Any) -> str:
        """The first field in which two objects differ; "" where they are equal."""
        for name, codec in self._codecs.items():
            if not _equal_on_the_wire(codec, getattr(one, name), getattr(other, name)):
                return name
        return next((name for name in self._more if not is_equal(getattr(one, name, None), getattr(other, name, None))), "")


def _equal_on_the_wire(codec: Codec, one: Any, other: Any) -> bool:
    try:
        return bool(codec.to_wire(one) == codec.to_wire(other))
    except WireError:
        return is_equal(one, other)


def stated_default(field: Field[Any]) -> tuple[Any, Any]:
    """(default, factory) of a dataclass's field, MISSING for none; a dataclass of pydantic may hold both in a `FieldInfo`."""
    held = field.default
    if type(held).__module__ != "pydantic.fields":
        return held, field.default_factory
    if held.default_factory is not None:  # type: ignore[union-attr] # a FieldInfo, whose package may not be there
        return MISSING, MISSING if held.default_factory_takes_validated_data else held.default_factory  # type: ignore[union-attr]
    return MISSING if held.is_required() else held.default, MISSING  # type: ignore[union-attr]


def is_equal(one: Any, other: Any) -> bool:
    """Whether they are of one class that calls them equal."""
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001 - the caller's class decides what its `==` raises
        return False
