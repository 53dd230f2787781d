"""Type hints as wire formats: round trips, strictness, and what a request is told."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procedures import Database, DefinitionError, InvalidParameters, Transaction
from procedures.wire.result_json import encode_any, encoder_for
from procedures.wire.scalar_codecs import INT_MAX, INT_MIN, WireError
from procedures.wire.type_codecs import codec_for


class Color(enum.Enum):
    """An enumeration of strings."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    """A value with a default."""

    price: Decimal
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer:
    """A value that holds values."""

    inner: Inner
    when: datetime
    color: Color | None


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False).filter(
    lambda number: len(number.as_tuple().digits) <= 64 and abs(int(number.as_tuple().exponent)) <= 6144
)
TIMES = st.datetimes(min_value=datetime(1900, 1, 2), max_value=datetime(9998, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
INNERS = st.builds(Inner, DECIMALS, st.lists(TEXTS, max_size=3).map(tuple))
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(INT_MIN, INT_MAX)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (str, TEXTS),
    (bytes, st.binary()),
    (Decimal, DECIMALS),
    (datetime, TIMES),
    (date, st.dates()),
    (UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Literal["a", 1, True], st.sampled_from(["a", 1])),
    (Optional[int], st.none() | st.integers(-5, 5)),  # noqa: UP045 - the older spelling counts, too
    (list[Decimal], st.lists(DECIMALS, max_size=4)),
    (dict[str, UUID], st.dictionaries(TEXTS, st.uuids(), max_size=3)),
    (tuple[int, str], st.tuples(st.integers(-5, 5), TEXTS)),
    (tuple[date, ...], st.lists(st.dates(), max_size=3).map(tuple)),
    (Inner, INNERS),
    (Outer, st.builds(Outer, INNERS, TIMES, st.none() | st.sampled_from(Color))),
]


@pytest.mark.parametrize(("hint", "strategy"), VALUES, ids=lambda value: getattr(value, "__name__", "") or None)
def test_values_come_back_through_json(hint: Any, strategy: st.SearchStrategy[Any]) -> None:
    """Value → wire → JSON → wire → value is the identity, and the wire form of a wire form is itself."""
    codec = codec_for(hint)

    @settings(max_examples=30, deadline=None)
    @given(value=strategy)
    def check(value: Any) -> None:
        wire = codec.to_wire(value)
        read = orjson.loads(orjson.dumps(wire))
        assert codec.from_wire(read) == value
        assert codec.to_wire(read) == read
        if codec.plain:
            assert codec.from_wire(read) is read

    check()


@pytest.mark.parametrize(
    ("hint", "wrong"),
    [
        (int, [True, 1.0, "1", None, INT_MAX + 1, INT_MIN - 1, 10**5000]),
        (float, [float("nan"), float("inf"), -float("inf"), "1", True, None, 1 << 64]),
        (bool, [0, 1, "true", None]),
        (str, [1, None, b"x", "\ud800", "a\udfff"]),
        (bytes, ["a", "YQ", "YQ=", "YR==", "Y Q==", "ä", 1, None]),
        (
            Decimal,
            ["", "x", "1,5", "NaN", "Infinity", "1e99999", "٣", 1.5, True, None, "9" * 70, Decimal("NaN"), Decimal("sNaN")],
        ),
        (
            datetime,
            ["2026-01-31", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z", "2026-01-31 12:00:00Z", 5, None, date(2026, 1, 1)],
        ),
        (datetime, [datetime(2026, 1, 1), "0001-01-01T00:00:00+10:00", "2026-01-31T12:00:00.1234567Z"]),  # noqa: DTZ001 - the point
        (date, ["2026-1-31", "2026-02-30", "20260131", datetime(2026, 1, 1, tzinfo=UTC), 5]),
        (UUID, ["", "x", "{12345678-1234-1234-1234-123456789abc}", "12345678123412341234123456789abc", 5]),
        (Color, ["green", "RED", 1, None]),
        (Literal["a", 1], ["b", True, 1.0, None]),
        (int | None, ["1", False]),
        (list[int], [["1"], (1, True), "12", {"0": 1}, None]),
        (dict[str, int], [{"a": "1"}, {1: 1}, [], {"\ud800": 1}]),
        (tuple[int, str], [[1], [1, "a", "b"], ["a", 1]]),
        (Inner, [{}, {"price": "1", "extra": 1}, {"price": 1.5}, [], {"price": "1", "tags": "abc"}]),
    ],
)
def test_misfits_are_refused(hint: Any, wrong: list[Any]) -> None:
    """Nothing is guessed: bools are no integers, NaN is no number, text is no list."""
    codec = codec_for(hint)
    for value in wrong:
        with pytest.raises(WireError):
            codec.to_wire(value)


def test_wire_forms_are_canonical() -> None:
    """Several spellings of one value become one, so equal requests hash alike."""
    when = codec_for(datetime).to_wire
    offset = timezone(timedelta(hours=2))
    assert when("2026-01-31T14:00:00+02:00") == when(datetime(2026, 1, 31, 14, tzinfo=offset)) == "2026-01-31T12:00:00Z"
    assert codec_for(UUID).to_wire("ABCDEF00-1234-1234-1234-123456789ABC") == "abcdef00-1234-1234-1234-123456789abc"
    assert codec_for(Inner).to_wire({"price": "1.50"}) == {"price": "1.50", "tags": []}
    assert codec_for(float).to_wire(3) == 3.0
    assert codec_for(Decimal).to_wire(7) == "7"


def test_hints_without_wire_form_are_refused_at_declaration() -> None:
    """Sets, ambiguous unions, mutable dataclasses, functions and numbers without a JSON form are refused."""

    @dataclass
    class Mutable:
        """Not frozen."""

        number: int

    for hint in (set[int], str | date, Mutable, Literal[b"x"], Callable[[], int], threading.Lock):
        with pytest.raises(DefinitionError):
            codec_for(hint)


@pytest.fixture
def db() -> Database:
    """An application with one procedure of many parameters."""
    database = Database("signatures")

    @database.procedure(partition_by="account")
    def pay(tx: Transaction, account: int, amount: Decimal, note: str = "-", when: datetime | None = None) -> None: ...

    return database


def test_bind_gives_the_list_of_the_log(db: Database) -> None:
    """Parameters come in the order of the signature, in wire form, defaults filled in, from wire or Python values."""
    pay = db.procedures["pay"]
    assert pay.bind({"amount": "1.5", "account": 3}) == [3, "1.5", "-", None]
    assert pay.bind({"amount": Decimal("1.5"), "account": 3, "note": "x", "when": None}) == [3, "1.5", "x", None]
    assert pay.partition_value([3, "1.5", "-", None]) == 3
    assert pay.decode is not None
    assert pay.decode([3, "1.5", "-", "2026-01-31T12:00:00Z"]) == [3, Decimal("1.5"), "-", datetime(2026, 1, 31, 12, tzinfo=UTC)]


def test_bind_names_every_problem_at_once(db: Database) -> None:
    """Missing, wrong and unknown parameters are all reported, in the order of the signature."""
    with pytest.raises(InvalidParameters) as caught:
        db.procedures["pay"].bind({"note": 5, "amount": "x", "extra": 1, "more": 2})
    assert [field for field, _ in caught.value.problems] == ["account", "amount", "note", "extra", "more"]
    assert caught.value.problems[0] == ("account", "missing")
    assert caught.value.problems[-1] == ("more", "unknown parameter")
    others: list[Any] = [[], "x", 5, None]
    for not_an_object in others:
        with pytest.raises(InvalidParameters):
            db.procedures["pay"].bind(not_an_object)


def test_json_schema_states_the_contract(db: Database) -> None:
    """The schema of a request names types, what is required, and defaults."""
    schema = db.procedures["pay"].json_schema()
    assert schema["required"] == ["account", "amount"]
    assert schema["properties"]["account"]["type"] == "integer"
    assert schema["properties"]["note"]["default"] == "-"
    assert schema["additionalProperties"] is False
    assert db.procedures["pay"].result_schema() == {"type": "null"}


def test_signatures_that_are_no_contract_are_refused() -> None:
    """No hint, *args, parameters without a name, no `tx`, coroutines, generators, bad names and defaults are refused."""
    db = Database("refusals")
    procedure = db.procedure(partition_by="n")

    def no_hint(tx, n): ...  # type: ignore[no-untyped-def]
    def star(tx: Transaction, n: int, *rest: int) -> None: ...
    def by_place(tx: Transaction, n: int, /) -> None: ...
    def no_tx(n: int) -> None: ...
    async def coroutine(tx: Transaction, n: int) -> None: ...
    def generator(tx: Transaction, n: int) -> Any:
        yield n

    def Upper(tx: Transaction, n: int) -> None: ...
    def bad_default(tx: Transaction, n: int = "x") -> None: ...  # type: ignore[assignment]
    def other_parameter(tx: Transaction, m: int) -> None: ...
    def float_partition(tx: Transaction, n: float) -> None: ...
    def set_result(tx: Transaction, n: int) -> set[int]: ...  # type: ignore[empty-body]

    for function in (
        no_hint, star, by_place, no_tx, coroutine, generator, Upper, bad_default, other_parameter, float_partition, set_result
    ):  # fmt: skip
        with pytest.raises(DefinitionError):
            procedure(function)
    assert db.procedure_list == ()


def test_procedures_are_numbered_by_name() -> None:
    """The number in the log is the place in the sorted list, whatever the order of declaration; names are unique."""
    db = Database("numbers")

    def one(tx: Transaction, n: int) -> None: ...

    for name in ("zebra", "ant", "mule"):
        db.procedure(partition_by="n", name=name)(one)
    assert [procedure.name for procedure in db.procedure_list] == ["ant", "mule", "zebra"]
    with pytest.raises(DefinitionError, match="twice"):
        db.procedure(partition_by="n", name="ant")(one)


@pytest.mark.parametrize(
    ("hint", "value", "body"),
    [
        (int, 5, b"5"),
        (None, None, b"null"),
        (bool, True, b"true"),
        (Decimal, Decimal("1.50"), b'"1.50"'),
        (Inner, Inner(Decimal(1)), b'{"price":"1","tags":[]}'),
        (list[tuple[str, int]], [("a", 1)], b'[["a",1]]'),
        (Any, {"when": datetime(2026, 1, 1, tzinfo=UTC), "raw": b"a"}, b'{"when":"2026-01-01T00:00:00Z","raw":"YQ=="}'),
        (Any, (Color.RED, UUID(int=5), -0.0), b'["red","00000000-0000-0000-0000-000000000005",-0.0]'),
        (dict, {"a": None}, b'{"a":null}'),
    ],
)
def test_results_are_json(hint: Any, value: Any, body: bytes) -> None:
    """Results of all types become one stated JSON text."""
    encode, _ = encoder_for(hint)
    assert encode(value) == body


@pytest.mark.parametrize(
    ("hint", "value"), [(int, 1.0), (int, True), (int, None), (int, INT_MAX + 1), (None, 0), (str, 5), (list[int], ["a"])]
)
def test_result_against_its_annotation_is_refused(hint: Any, value: Any) -> None:
    """The annotation of a result is a contract with the caller."""
    encode, _ = encoder_for(hint)
    with pytest.raises(WireError):
        encode(value)


def test_result_nested_without_end_is_refused() -> None:
    """A result that holds itself, or is nested too deep, is refused instead of recursing."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="deeper"):
        encode_any(endless)


class Address(TypedDict):
    """A TypedDict with a key that may be missing."""

    street: str
    since: NotRequired[date]


class Span(NamedTuple):
    """A named tuple of a duration and a time of day."""

    length: timedelta
    start: time = time(8)


ItemId = NewType("ItemId", int)

SECOND_FORM: list[tuple[Any, Any, Any]] = [
    (time, time(12, 30, 0, 500), "12:30:00.000500"),
    (timedelta, timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=500_000), "P1DT2H3M4.5S"),
    (timedelta, timedelta(0), "PT0S"),
    (timedelta, timedelta(seconds=-1), "-PT1S"),
    (timedelta, timedelta(microseconds=INT_MAX), "P106751991DT4H54.775807S"),
    (Address, {"street": "a", "since": date(2026, 1, 31)}, {"street": "a", "since": "2026-01-31"}),
    (Address, {"street": "a"}, {"street": "a"}),
    (Span, Span(timedelta(minutes=90), time(9)), ["PT1H30M", "09:00:00"]),
    (ItemId, ItemId(5), 5),
    (list[dict[str, Any]], [{"b": 1, "a": None}], [{"a": None, "b": 1}]),
    (dict[str, Address], {"home": {"street": "a"}}, {"home": {"street": "a"}}),
]


@pytest.mark.parametrize(("hint", "value", "wire"), SECOND_FORM)
def test_second_wire_form_is_stated(hint: Any, value: Any, wire: Any) -> None:
    """Each type of version 2 has these bytes for ever, and gives the value back."""
    codec = codec_for(hint)
    assert orjson.dumps(codec.to_wire(value)) == orjson.dumps(wire)
    assert codec.to_wire(wire) == wire
    back = codec.from_wire(wire)
    assert back == value
    assert not isinstance(value, Span) or isinstance(back, Span)


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (time, time(12, tzinfo=UTC), "without a zone"),
        (time, "25:00:00", "time of day"),
        (timedelta, "1 day", "P1DT2H30M"),
        (timedelta, "P999999999DT99H", "duration"),
        (timedelta, timedelta.min, "of 64 bits"),
        (timedelta, "P106751991DT4H54.775808S", "of 64 bits"),
        (Address, {"since": "2026-01-31"}, "missing key street"),
        (Address, {"street": "a", "city": "b"}, "unknown key city"),
        (Span, [], "array of 2"),
    ],
)
def test_misfits_of_the_second_form_are_explained(hint: Any, value: Any, said: str) -> None:
    """The text says what was expected."""
    with pytest.raises(WireError, match=said):
        codec_for(hint).to_wire(value)


def test_a_type_without_wire_form_names_what_has_one() -> None:
    """The message leads to what can be written instead."""
    with pytest.raises(DefinitionError, match="frozen dataclass, a TypedDict or a pydantic model"):
        codec_for(threading.Lock)


def test_keyword_only_parameters_have_a_place_in_the_log(db: Database) -> None:
    """They are logged in the order of the signature and given by name."""

    @db.procedure(partition_by="n")
    def keyed(tx: Transaction, n: int, *, b: str = "b", a: str) -> str:
        return f"{n}{a}{b}"

    keyed_procedure = db.procedures["keyed"]
    assert keyed_procedure.bind({"n": 1, "a": "x"}) == [1, "b", "x"]
    assert keyed_procedure.run(None, 1, "b", "x") == "1xb"
