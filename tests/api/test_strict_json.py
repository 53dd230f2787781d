"""Strict JSON: what has one meaning passes and keeps it; the pass over the bytes, in C or Python, and an exact parser agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.api.gate import strict_json
from cmdlog.api.gate.strict_json import DEPTH_MAX, NUMBER_CHARS_MAX, STRICT, NotStrict, loads_strict
from cmdlog.api.native import steps
from tests.api.exact_json import loads_exactly


def loads_in_python(text: bytes, *, around: int = 0) -> Any:
    """As `loads_strict` where no compiler built the steps in C."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "_examine", strict_json._examine_in_python)
        return loads_strict(text, around=around)


def loads_in_pieces(text: bytes, *, around: int = 0) -> Any:
    """As a long text is read: in pieces of an element or two."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "PIECE_BYTES", 2)
        return loads_strict(text, around=around)


LOADERS = (loads_strict, loads_in_python, loads_in_pieces, loads_exactly)


def verdict(load: Callable[[bytes], Any], text: bytes) -> str:
    """The value with every bit of it (-0.0 is not 0.0, 1 is not 1.0), or that there is none."""
    try:
        return "value " + repr(load(text))
    except NotStrict:
        return "refused"


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": {"b": 1, "c": 2, "b": 3}}',
        b'[[{"x": null, "x": null}]]',
        b'{"a":1,"a":"b:c"}',
        b'{"a" :1,"a"\n:2,"b":"x"}',
        b'{"": 1, "": 2}',
        b"NaN",
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b"[nan]",
        b"[1e999]",
        b"[-1e999]",
        b"[1e309]",
        b"[1.8e308]",
        b"[9223372036854775808]",
        b"[-9223372036854775809]",
        b"[18446744073709551615]",
        b"[18446744073709551616]",
        b'{"a": 99999999999999999999}',
        b"9" * 5000,
        b'{"a": -' + b"9" * 5000 + b"}",
        b"[0." + b"3" * 5000 + b"]",
        b"[1" + b"0" * 5000 + b"e-5000]",
        b'"\\ud800"',
        b'["\\udc00\\ud800"]',
        b'{"\\ud800": 1}',
        b'"\xed\xa0\x80"',
        b'"\\u0000"',
        b'{"a\\u0000b": 1}',
        b'["x\\u0000y"]',
        b'"\0"',
        b'"\n"',
        b"\xff",
        b'"\xc0\x80"',
        b"\xef\xbb\xbf1",
        b"",
        b" ",
        b"1 2",
        b'{"a": 1} x',
        b"[1,]",
        b'{"a": 1,}',
        b'[1,,"longer than a piece"]',
        b'[1, ,"longer than a piece"]',
        b'["longer than a piece", ]',
        b'{"a": 1,,"b": "longer than a piece"}',
        b'{"a": 1,"b" "longer than a piece"}',
        b'{"a": 1,"a": "longer than a piece"}',
        b'["longer than a piece"],["longer than a piece"]',
        b"{'a': 1}",
        b"[01]",
        b"[+1]",
        b"[.5]",
        b"[1.]",
        b"[0x10]",
        b"// no\n1",
        b"[" * 65 + b"]" * 65,
        b"[" * 500 + b"]" * 500,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
    ],
    ids=lambda value: repr(value)[:32],
)
def test_text_with_more_than_one_meaning_is_refused(load: Callable[[bytes], Any], text: bytes) -> None:
    """Each of these would be read differently somewhere, or not be kept; every one is refused."""
    with pytest.raises(NotStrict):
        load(text)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"[-0.0]", [-0.0]),
        (b"[-0]", [0]),
        (b"[5e-324, -5e-324]", [5e-324, -5e-324]),
        (b"[2.2250738585072011e-308]", [2.2250738585072011e-308]),
        (b"[1.7976931348623157e308]", [1.7976931348623157e308]),
        (b"[9007199254740991, 9007199254740992, 9007199254740993]", [2**53 - 1, 2**53, 2**53 + 1]),
        (b"[9223372036854775807, -9223372036854775808]", [2**63 - 1, -(2**63)]),
        (
            b"[1e18, 1e19, 12345678901234567890e0, 123456789012345678901.5]",
            [1e18, 1e19, 1.2345678901234567e19, 1.2345678901234568e20],
        ),
        (b"[9223372036854775808.0]", [9.223372036854775808e18]),
        (b'{"at": "2026-01-31T12:00:00Z", "a:b": "c\\":\\"d"}', {"at": "2026-01-31T12:00:00Z", "a:b": 'c":"d'}),
        (b'{"a" \t\r\n: 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}', {"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}),
        (b'["\\\\u0000", "\\\\\\\\u0000"]', ["\\u0000", "\\\\u0000"]),
        (b'["\\ud83d\\ude00", "\xf0\x9f\x98\x80"]', ["\U0001f600", "\U0001f600"]),
        (b'["\\u202e", "\\u00e9", "e\\u0301", "\\uffff", "\\u007f"]', ["\u202e", "\u00e9", "e\u0301", "\uffff", "\x7f"]),
        (b'{"\xc3\xa9": 1, "e\xcc\x81": 2}', {"\u00e9": 1, "e\u0301": 2}),
        (b"[" * 64 + b"]" * 64, orjson.loads(b"[" * 64 + b"]" * 64)),
        (b'"' + b"[" * 1000 + b'"', "[" * 1000),
        (b'"\\"' + b"[" * 1000 + b'"', '"' + "[" * 1000),
        (b'"' + b"1" * 5000 + b'"', "1" * 5000),
        (b" 7 ", 7),
        (b"null", None),
        (b"{}", {}),
    ],
)
def test_text_with_one_meaning_keeps_it_to_the_bit(load: Callable[[bytes], Any], text: bytes, value: Any) -> None:
    """Denormals, minus zero, 2^53 + 1, the ends of 64 bits, characters of every plane and both normal forms arrive as sent."""
    assert repr(load(text)) == repr(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1))
def test_number_survives_its_own_text(number: float) -> None:
    """Every double and every integer of 64 bits comes back with the same bits."""
    got = loads_strict(b"[" + repr(number).encode() + b"]")[0]
    assert type(got) is type(number)
    assert repr(got) == repr(number)


# Texts near the borders of the checks: colons in strings, equal keys, escapes, long digits, white space. Drawn from a seed,
# which hypothesis draws: a hundred times as many texts in the same time as from strategies.
KEYS = ["a", "b", "a:b", ":", "", '"', "\\", "\0", "k" * 30, "\u00e9", "e\u0301", "\\u0000", "12:30", "\U0001f600"]
NUMBERS = [
    "0", "-0", "-0.0", "1", "1.5", "1e999", "1e19", "1e18", "5e-324", "1e-400", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "9" * 25, "9" * 400,
    "1" * 400 + ".5", "0." + "1" * (NUMBER_CHARS_MAX - 2), "0." + "1" * (NUMBER_CHARS_MAX - 1), "9223372036854775807.9",
    "NaN", "Infinity", "-Infinity", "01", "1.", "-",
]  # fmt: skip
OTHERS = [
    "true",
    "false",
    "null",
    "[]",
    "{}",
    '"\\ud800"',
    '"\\/"',
    "[" * 63 + "]" * 63,
    "[" * 70,
    '"\\ud83d\\ude00"',
    '"\u202e"',
]
SPACE = ["", "", "", "", " ", "\n", "\t", "\r", " \n"]
BYTES = [b"", b":", b'"', b"\\", b"{", b"}", b",", b"\0", b"\xff", b" ", b"0", b"e", b"-"]


def make_string(random: Random, text: str) -> str:
    """A JSON string of the text, some characters escaped."""
    parts = []
    for char in text:
        if char in '"\\' or char < " " or random.random() < 0.1:
            units = char.encode("utf-16-be").hex()
            parts.append("".join("\\u" + units[at : at + 4] for at in range(0, len(units), 4)))
        else:
            parts.append(char)
    return '"' + "".join(parts) + '"'


def make_text(random: Random, depth: int = 0) -> str:
    """A text that is JSON or nearly so; members are drawn one by one, so keys repeat."""
    kind = random.randrange(7 if depth < 4 else 4)
    if kind == 0:
        body = random.choice(NUMBERS if random.random() < 0.3 else NUMBERS[:5])
    elif kind == 1:
        body = random.choice(OTHERS if random.random() < 0.2 else OTHERS[:5])
    elif kind in (2, 3):
        body = make_string(random, random.choice(KEYS))
    elif kind == 4:
        body = "[" + ",".join(make_text(random, depth + 1) for _ in range(random.randrange(4))) + "]"
    else:
        members = (
            f"{make_string(random, random.choice(KEYS))}{random.choice(SPACE)}:{make_text(random, depth + 1)}"
            for _ in range(random.randrange(5))
        )
        body = "{" + ",".join(members) + "}"
    return random.choice(SPACE) + body + random.choice(SPACE)


def check_agreement(seed: int) -> None:
    """The text of a seed, and the same with a byte changed, added or taken away."""
    random = Random(seed)
    text = make_text(random).encode()
    damaged = bytearray(text)
    at = random.randrange(len(damaged) + 1)
    damaged[at : at + random.randrange(2)] = random.choice(BYTES)
    for data in (text, bytes(damaged)):
        assert len({verdict(load, data) for load in LOADERS}) == 1, data


SEEDS = st.integers(0, 2**64 - 1)


@given(SEEDS)
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_checks_and_exact_parser_agree(seed: int) -> None:
    """For any text the verdict is the same, and so is the value, to the bit."""
    check_agreement(seed)


@pytest.mark.fuzz
def test_checks_and_exact_parser_agree_for_minutes() -> None:
    """The same for half a million texts."""
    for seed in range(500_000):
        check_agreement(seed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def has_nul(value: Any) -> bool:
    """Whether a string or key of it holds U+0000."""
    return "\\u0000" in orjson.dumps(value).decode().replace("\\\\", "")


@given(JSON)
@settings(max_examples=40, deadline=None)
def test_what_a_serializer_writes_is_read_back(value: Any) -> None:
    """No value that JSON can hold is refused, except for U+0000, and none is changed."""
    data = orjson.dumps(value)
    if has_nul(value):
        assert verdict(loads_strict, data) == "refused"
    else:
        assert repr(loads_strict(data)) == repr(value)


def test_a_member_added_twice_is_always_found() -> None:
    """Whatever else is in an object, a second member of the same name is refused, at every depth up to the limit."""
    for depth in range(DEPTH_MAX - 1):
        text = b'{"k":' * depth + b'{"x": "1:2", "y": ":::", "x": 3}' + b"}" * depth
        assert verdict(loads_strict, text) == "refused"


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("last", [b"", b'"\\u0001"', b"9e99"])
def test_levels_around_a_value_do_not_count(load: Callable[..., Any], last: bytes) -> None:
    """Whichever of the readers decides: a text may have as many more levels as are said to be around its values."""
    for around in range(3):
        deepest = b"[" * (DEPTH_MAX + around) + last + b"]" * (DEPTH_MAX + around)
        assert repr(load(deepest, around=around)) == repr(orjson.loads(deepest))
        with pytest.raises(NotStrict):
            load(b"[%b]" % deepest, around=around)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'["\xc3\xa9",'])
@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 1023, 1024, 1025, 100_000])
def test_whatever_is_too_deep_is_refused_alike(opening: bytes, levels: int) -> None:
    """The parser's own limit is no other one; what is malformed before it gets deep is named as that."""
    for load in LOADERS:
        with pytest.raises(NotStrict, match=f"^is nested deeper than {DEPTH_MAX} levels$"):
            load(opening * levels + b"1" + (b"]" if opening[:1] == b"[" else b"}") * levels)
    if levels <= 1025:
        with pytest.raises(NotStrict, match="is not JSON"):
            loads_strict(b"[," + b"[" * levels)


def test_messages_show_no_values() -> None:
    """A refusal names the kind of defect and a place, never what the text holds; of a repeated key its beginning."""
    secret = "hunter2" * 3
    for text in (f'{{"a": "{secret}', f'["{secret}", NaN]', f'["{secret}", 1{"0" * 400}]', f'{{"a": "{secret}", "a": 1}}'):
        for load in LOADERS:
            with pytest.raises(NotStrict) as refused:
                load(text.encode())
            assert "hunter2" not in str(refused.value)
    with pytest.raises(NotStrict) as refused:
        loads_strict(b'{"' + b"k" * 7000 + b'": 1, "' + b"k" * 7000 + b'": 1}')
    assert len(str(refused.value)) < 200


def test_repeated_key_is_named_in_a_short_text() -> None:
    """Where it stands deep and escaped, too; a long text is refused without the name, which takes another parser to find."""
    short = b'[{"a": 1}, {"a": {"b:": 1, "\\u0062:": 2}}'
    with pytest.raises(NotStrict, match=r"^the key 'b:' occurs twice$"):
        loads_strict(short + b"]")
    with pytest.raises(NotStrict, match=r"^has an object in which a key occurs twice$"):
        loads_strict(short + b', "' + b"x" * strict_json.NAMED_BYTES_MAX + b'"]')


LONG = {
    "list": [[number, {"a:": "b,"}] for number in range(9000)],
    "object": {f"key {number}": [number, "x" * 9] for number in range(9000)},
    "one element": {"params": {"account": list(range(30_000)), "memo": "x" * 70_000}},
    "deep": [[[[["y" * 99] * 900]]], {"z": {"z": [None] * 20_000}}],
    "blank": [" " * 70_000, [], {}],
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("option", [0, orjson.OPT_INDENT_2])
def test_long_text_is_read_as_a_short_one(name: str, option: int) -> None:
    """Whatever it is made of; with a comma more, an end less or a key twice it is refused."""
    text = orjson.dumps(LONG[name], option=option)
    assert len(text) > 2 * strict_json.PIECE_BYTES
    assert loads_strict(text) == LONG[name]
    wrong = [
        text[:-1] + b"," + text[-1:],
        text[:1] + b"," + text[1:],
        text[:-1],
        text + b"]",
        b"[" + text,
        text.replace(b",", b",,", 1),
    ]
    if name == "object":
        wrong.append(text[:-1] + b',"key 7":1}')
    for other in wrong:
        with pytest.raises(NotStrict):
            loads_strict(other)


def test_refused_values_of_a_long_text_are_freed_in_steps() -> None:
    """Whoever holds them on the way up, such as a traceback, holds empty lists."""
    given: list[Any] = []

    def refuse(text: bytes) -> None:
        given.append(loads_strict(text))
        raise NotStrict("of another kind")

    with pytest.raises(NotStrict):
        strict_json.read_resting(refuse, orjson.dumps(LONG["one element"]))
    assert given == [{}] or steps is None
    assert strict_json.read_resting(loads_strict, orjson.dumps(LONG["list"])) == LONG["list"]


@pytest.mark.skipif(steps is None, reason="no C compiler")
@given(st.binary(max_size=12) | st.text('[]{}",:\\\\u0189-.e ', max_size=40).map(str.encode), st.integers(0, 3))
@settings(max_examples=100)
def test_any_bytes_are_examined(text: bytes, depth_max: int) -> None:
    """Also those that are no JSON, or its beginning, which the depth is asked of: no byte beyond the end is read."""
    padded = text + b'"[[[['
    assert steps.examine_json(text, depth_max) == steps.examine_json(padded[: len(text)], depth_max) <= max(STRICT, len(text))


def test_underflow_is_a_zero_and_overflow_is_not_an_infinity() -> None:
    """A fraction means the nearest double: below the least one that is zero; above the greatest there is none."""
    assert loads_strict(b"[1e-400]") == [0.0]
    assert not math.isinf(loads_strict(b"[1.7976931348623158e308]")[0])
