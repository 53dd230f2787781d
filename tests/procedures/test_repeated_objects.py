"""Objects of classes with code of their own: a procedure sees what the caller gave, live and in a replay, or it is refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pytest

from procedures.wire.scalar_codecs import NotRepeatable, WireError
from procedures.wire.type_codecs import codec_for

makings: list[str] = []


@dataclass(frozen=True)
class Cents:
    """Changes a value whenever it is made."""

    amount: int
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", self.amount * 100)


@dataclass(frozen=True)
class Stripped:
    """Comes to rest after it was made once."""

    text: str
    size: int | None = None
    made: str = ""

    def __post_init__(self) -> None:
        makings.append(self.text)
        object.__setattr__(self, "text", self.text.strip())
        object.__setattr__(self, "size", len(self.text))
        object.__setattr__(self, "made", self.made or str(uuid.uuid4()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Has a field that is computed."""

    prices: list[Decimal]
    total: Decimal = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.prices, Decimal()))


@dataclass(frozen=True)
class Ticket:
    """Has a field that is another one each time."""

    seat: int
    number: str = field(init=False, compare=False, default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True)
class Scaled:
    """Needs more than its fields, unless it is given."""

    size: int
    by: InitVar[int] = 2

    def __post_init__(self, by: int) -> None:
        object.__setattr__(self, "size", self.size * by)


@dataclass(frozen=True)
class Positive:
    """Refuses values."""

    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"{self.value} is not positive")


@dataclass(frozen=True)
class Parsed:
    """Puts a value of another type into a field."""

    parts: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts.split()))


@dataclass(frozen=True)
class Plain:
    """Is no more than its fields."""

    value: int = 1


@dataclass(frozen=True)
class Special(Plain):
    """Adds to it."""

    more: int = 2


class Base(NamedTuple):
    """Two fields."""

    x: int
    y: int = 0


class Moved(Base):
    """Changes a value whenever it is made."""

    def __new__(cls, x: int, y: int = 0) -> Moved:
        """One further."""
        return super().__new__(cls, x + 1, y)


@dataclass(frozen=True)
class Doubled:
    """Has an `__init__` of its own."""

    size: int

    def __init__(self, size: int) -> None:
        object.__setattr__(self, "size", size * 2)


class _Tenfold(type):
    def __call__(cls, size: int) -> Any:
        """What makes its objects."""
        return super().__call__(size * 10)


@dataclass(frozen=True)
class Grown(metaclass=_Tenfold):
    """Its metaclass changes a value."""

    size: int


@dataclass(frozen=True)
class Shown:
    """Is not what it holds."""

    size: int

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found + 1 if name == "size" else found


class _Halved:
    def __get__(self, held: Any, kind: Any) -> Any:
        return 8 if held is None else held.__dict__["half"]

    def __set__(self, held: Any, size: int) -> None:
        held.__dict__["half"] = size // 2


@dataclass(frozen=True)
class Bent:
    """A descriptor stands before its field."""

    size: int = _Halved()  # type: ignore[assignment]


def replayed(hint: Any, given: Any) -> Any:
    """What the procedure gets: of the log's text."""
    codec = codec_for(hint)
    return codec.from_wire(orjson.loads(orjson.dumps(codec.to_wire(given))))


@pytest.mark.parametrize(
    "around", [lambda hint: hint, list.__class_getitem__, lambda hint: dict.__class_getitem__((str, hint)) | None]
)
@pytest.mark.parametrize(
    ("hint", "value", "field"),
    [(Cents, Cents(5), "amount"), (Scaled, Scaled(3), "size"), (Ticket, Ticket(1), "number"), (Moved, Moved(1), "x"),
     (Doubled, Doubled(1), "size"), (Grown, Grown(1), "size"), (Shown, Shown(1), "size"), (Bent, Bent(8), "size")],
)  # fmt: skip
def test_object_that_would_come_back_changed_is_refused(around: Callable[[Any], Any], hint: Any, value: Any, field: str) -> None:
    """With its class and the field, also inside of lists and objects."""
    form: Any = around(hint)
    placed = {"list": [value], "dict": {"a": value}}.get(str(form).partition("[")[0], value)
    with pytest.raises(NotRepeatable, match=rf"{hint.__name__} does not come back equal .*: {field} "):
        codec_for(form).to_wire(placed)


@pytest.mark.parametrize(
    "value",
    [Stripped(" a "), Total(prices=[Decimal("1.5"), Decimal(2)]), Positive(3), Plain(4), Special(5), Base(1, 2)],
    ids=lambda value: type(value).__name__,
)
def test_finished_object_comes_back_equal(value: Any) -> None:
    """Also where its class has made something of what it was given."""
    again = replayed(type(value), value)
    assert type(again) is type(value)
    assert again == value


def test_values_are_made_an_object_once() -> None:
    """What was sent is logged where the class would change it again; a replay makes the same of it."""
    assert replayed(Cents, {"amount": 5}).amount == 500
    assert replayed(Cents, {"amount": 5, "note": "n"}).amount == 500
    assert replayed(Scaled, {"size": 3}).size == 6
    assert replayed(Moved, [1, 2]) == Moved(1, 2)
    assert replayed(Parsed, {"parts": "a b"}).parts == ("a", "b")
    assert [replayed(kind, {"size": 4}).size for kind in (Doubled, Grown, Shown, Bent)] == [8, 40, 5, 2]
    assert replayed(Total, {"prices": ["1.5"]}).total == Decimal("1.5")


def test_what_a_class_makes_up_is_logged() -> None:
    """Each replay gets the value that was made at the gate."""
    wire = codec_for(Stripped).to_wire({"text": " a "})
    assert (wire["text"], wire["size"]) == ("a", 1)
    makings.clear()
    assert {codec_for(Stripped).from_wire(wire).made for _ in range(3)} == {wire["made"]}
    assert makings == ["a"] * 3


@pytest.mark.parametrize(
    ("hint", "sent", "said"),
    [
        (Ticket, {"seat": 1}, "Ticket is another object each time it is made of the same values: number"),
        (Positive, {"value": -1}, "Positive refuses it: -1 is not positive"),
        (Plain, Special(1), "expected Plain, got its subclass Special"),
        (Cents, {"amount": "x"}, ".amount: expected an integer"),
    ],
)
def test_refusals_name_the_class(hint: Any, sent: Any, said: str) -> None:
    """And what it does."""
    with pytest.raises(WireError) as refused:
        codec_for(hint).to_wire(sent)
    assert str(refused.value).startswith(said)
