"""What a caller sent, as a number: by it a call is known again, whatever its type makes of it.

One rule: the text that is hashed holds what the caller gave and nothing that the code adds. Defaults, clocks and factories of the
parameters' types come after it. So the same request has the same hash when a default is made again, and after a deploy that gave
a type another default, more fields, or another order.

Two requests are the same when they are equal as JSON values: order of members, white space, escapes and the spelling of a number
(1 or 1.0) make no difference. In Python a caller gives objects: a field that has its default counts as left out, as does a text,
number or time whose default a function makes; a pydantic model knows what it was given.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import google_crc32c
import orjson

from procedures.wire.repeated_objects import is_equal, stated_default
from procedures.wire.result_json import to_json

_crc, _crc32, _dumps = google_crc32c.extend, zlib.crc32, orjson.dumps
_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_MADE: Final = (str, int, float, bytes, date, time, UUID)  # what functions that make defaults return
_POINT: Final = ord(".")
_EXACT_MAX: Final = 2.0**53  # up to it every whole float is that integer


class SentParameters(list[Any]):
    """Parameters in wire form whose caller sent something else, such as fewer fields."""

    __slots__ = ("_given", "_names", "_procedure")

    def __init__(self, procedure: str, names: Sequence[str], given: Mapping[str, Any], wire: list[Any]) -> None:
        """`names` of all parameters; `given`: those that the caller gave."""
        super().__init__(wire)
        self._procedure, self._names, self._given = procedure, names, given

    def request(self) -> int:
        """The hash of what was sent."""
        given = self._given
        try:
            return given_hash(self._procedure, given)
        except TypeError:  # a type of the caller's own, which its codec has written
            wire = dict(zip(self._names, self, strict=True))
            return given_hash(self._procedure, {name: wire[name] for name in given})


def call_text(params: list[Any]) -> bytes:
    """The parameters as JSON, and after them in 16 hexadecimal digits the hash of what was sent, if that is something else."""
    return b"%b%016x" % (_dumps(params), params.request()) if isinstance(params, SentParameters) else _dumps(params)


@dataclass(frozen=True, slots=True)
class SentSignature:
    """How the request of a call is hashed whose parameters in the log are what its caller sent."""

    seed: int
    pick: Callable[[list[Any]], Sequence[Any]] | None  # puts them in the order of their names; None: they are

    @classmethod
    def of(cls, procedure: str, names: Sequence[str]) -> SentSignature:
        ordered = tuple(sorted(names))
        pick = None if ordered == tuple(names) else itemgetter(*[names.index(name) for name in ordered])
        return cls(_seed(procedure, ordered), pick)

    def values(self, params: list[Any]) -> Sequence[Any]:
        """What is hashed after the seed."""
        return params if self.pick is None else self.pick(params)

    def hash_of(self, params: list[Any]) -> int:
        """The hash of the request."""
        return sent_hash(self.seed, self.values(params))


@lru_cache(1024)
def _seed(procedure: str, names: tuple[str, ...]) -> int:
    return int(google_crc32c.value(f"{procedure}({','.join(names)})".encode()))


def given_hash(procedure: str, given: Mapping[str, Any]) -> int:
    """The hash of a request with these parameters. Raises: TypeError, when a value has no form."""
    names = tuple(sorted(given))
    return _text_hash(_seed(procedure, names), _dumps([given[name] for name in names], _form, _OPTIONS))


def sent_hash(seed: int, values: Sequence[Any]) -> int:
    """The same of a request that was logged as it was sent: its values are then numbers, texts, booleans and nulls."""
    data = _dumps(values)
    if _POINT in data and data.find(b".0") >= 0:  # two steps: `in` of bytes takes ten times as long
        return _text_hash(seed, data)
    request: int = _crc(seed, data) << 32 | _crc32(data)
    return request or 1


def _text_hash(seed: int, data: bytes) -> int:
    """64 bits, never 0: two CRCs, against accidents. They are stored with outcomes, so they never change."""
    if data.find(b".0") >= 0:
        data = _dumps(_whole_numbers(orjson.loads(data)), option=_OPTIONS)
    request: int = _crc(seed, data) << 32 | _crc32(data)
    return request or 1


def _whole_numbers(value: Any) -> Any:
    """JSON in which a float that is a whole number is an integer."""
    if type(value) is float and value.is_integer() and abs(value) < _EXACT_MAX:
        return int(value)
    if type(value) is list:
        return [_whole_numbers(element) for element in value]
    if type(value) is dict:
        return {name: _whole_numbers(element) for name, element in value.items()}
    return value


def _form(value: Any) -> Any:
    """What orjson writes in place of an object of Python's. Raises: WireError, ValueError and what its class raises."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if _was_given(field, value)}
    if hasattr(kind, "__pydantic_validator__"):
        return value.model_dump(exclude_unset=True, by_alias=True, round_trip=True, warnings=False)
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda element: _dumps(element, _form, _OPTIONS))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(kind, "_field_defaults"):
        return _without_defaults(value, kind._fields, kind._field_defaults)
    if isinstance(value, list | tuple):
        return list(value)
    return to_json(value)


def _was_given(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether the object's maker gave the field, as far as its value shows."""
    if not field.init:
        return False
    held, (default, factory) = getattr(value, field.name), stated_default(field)
    if factory is dataclasses.MISSING:
        return default is dataclasses.MISSING or not is_equal(held, default)
    if isinstance(factory, type):  # `list`, or a class of defaults: to call it changes nothing
        return not is_equal(held, factory())
    return not (isinstance(held, _MADE) or any(is_equal(held, kind()) for kind in (list, dict, tuple)))


def _without_defaults(value: tuple[Any, ...], names: Sequence[str], defaults: Mapping[str, Any]) -> list[Any]:
    """A tuple's elements up to the last one that is not a default."""
    count = len(value)
    while count and names[count - 1] in defaults and is_equal(value[count - 1], defaults[names[count - 1]]):
        count -= 1
    return list(value[:count])
