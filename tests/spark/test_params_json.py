"""Parameter lists into objects, many rows at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import orjson
import pytest

from replay.spark.reading.params_json import ParameterNames, Texts, lists, objects

NAMES: list[tuple[str, ...] | None] = [("a", "b", "c"), (), ("x",), None, ("käy", 'quo"te')]
PLAIN = [1, -5, 2.5, None, True, "x", "a,b", "é,ü", ""]
ANY = [*PLAIN, 'q"uo\\te', "[1,2]", "{}", "\\", [1, 2, [3]], {"k": [1, ","]}, [], {}]


def texts_of(rows: list[bytes], seed: int = 0) -> Texts:
    """The rows as some batches hold them."""
    chance, parts, lengths = random.Random(seed), list[bytes](), [len(row) + 1 for row in rows]
    while rows:
        size = chance.randint(1, len(rows))
        parts.append(b",".join(rows[:size]) + b"]")
        rows = rows[size:]
    return Texts(parts, np.cumsum([1, *lengths]))


def spliced(rows: list[bytes], procedures: list[int], kept: list[int]) -> list[str]:
    """The kept rows of some batches as objects."""
    texts = texts_of(rows, len(rows))
    if kept != list(range(len(rows))):
        texts = texts.only(np.array(kept, dtype=np.int64))
    made = objects(texts, ParameterNames.of(NAMES), np.array(procedures, dtype=np.int64)[kept])
    made.validate(full=True)
    whole: list[str] = lists(texts).to_pylist()
    assert whole == [rows[n].decode() for n in kept]
    found: list[str] = made.to_pylist()
    return found


@pytest.mark.parametrize("values", [PLAIN, ANY], ids=["plain", "any"])
def test_objects_hold_what_the_lists_held(values: list[Any]) -> None:
    """Any values, any rows left out: the same values under their names; without names the list stays a list."""
    for seed in range(150):
        rng = random.Random(seed)
        procedures = [rng.randrange(len(NAMES)) for _ in range(rng.randint(1, 30))]
        names = [("1", "2") if (of := NAMES[p]) is None else of for p in procedures]
        given = [[rng.choice(values) for _ in of] for of in names]
        kept = [n for n in range(len(given)) if rng.random() < 0.8]
        found = spliced([orjson.dumps(row) for row in given], procedures, kept)
        wanted = [
            row if NAMES[p] is None else dict(zip(of, row, strict=True))
            for row, p, of in zip(given, procedures, names, strict=True)
        ]
        assert [orjson.loads(text) for text in found] == [wanted[n] for n in kept], f"seed {seed}"


def test_numbers_read_as_they_were_written() -> None:
    """Nothing is parsed and written again: not a digit of a long integer or of a float changes."""
    rows = [b"[12345678901234567890123,1.10,1e5]", b'[1.0,"\\u00e9,",[0.10,-0]]']
    assert spliced(rows, [0, 0], [0, 1]) == [
        '{"a":12345678901234567890123,"b":1.10,"c":1e5}',
        '{"a":1.0,"b":"\\u00e9,","c":[0.10,-0]}',
    ]


def test_list_of_another_length_stays_a_list() -> None:
    """A list that does not fit its names is shown as it is, when that shows: no value goes under another one's name."""
    assert spliced([b"[1,2]", b"[1,2,3,4]", b"[]", b"[5]"], [0, 0, 2, 1], [0, 1, 2, 3]) == ["[1,2]", "[1,2,3,4]", "[]", "[5]"]


def test_no_rows_are_no_rows() -> None:
    """A filter may leave nothing of a batch."""
    assert spliced([b"[1]"], [2], []) == []


HOSTILE = [
    *(rb'"\""', rb'"\\"', rb'"\\\","', rb'"a\"],["', rb'"\\,"', rb'"\u0022,"', b'"[{"', b'"}]"', b'""', b'","', b"[]", b"{}"),
    *(
        b'[[[],{"a":[1,","]}],"x"]',
        rb'{"\"":["}"],",":"]"}',
        '"käy,\U0001f600"'.encode(),
        b"null",
        b"true",
        b"1e400",
        b"-0",
        b"-0.0",
    ),
    *(b"123456789012345678901234567890", b"1E+5", b'"' + b"x,[" * 7000 + b'"', b'"' + rb"\\" * 3000 + b'"'),
]


def slow_cuts(row: bytes) -> list[bytes]:
    """The values of a list, sign by sign."""
    values, depth, inside, at = [b""], 0, False, 1
    while at < len(row) - 1:
        sign = row[at : at + 1]
        if inside and sign == b"\\":
            values[-1] += row[at : at + 2]
            at += 2
            continue
        inside ^= sign == b'"'
        depth += 0 if inside else (sign in b"[{") - (sign in b"]}")
        if sign == b"," and not depth and not inside:
            values.append(b"")
        else:
            values[-1] += sign
        at += 1
    return values if values != [b""] else []


def slow(row: bytes, names: tuple[str, ...] | None) -> str:
    """What is to come of a list."""
    values = slow_cuts(row)
    if names is None or len(names) != len(values):
        return row.decode()
    return (
        b"{" + b",".join(orjson.dumps(name) + b":" + value for name, value in zip(names, values, strict=True)) + b"}"
    ).decode()


@pytest.mark.parametrize("extra", [0, 2], ids=["as-many-as-names", "sometimes-more"])
def test_objects_are_the_slow_model_s_byte_by_byte(extra: int) -> None:
    """Escapes, nested lists and objects, commas and brackets in texts, odd numbers: each value keeps its bytes."""
    for seed in range(100):
        rng = random.Random(seed)
        weights = [1.0] * len(HOSTILE)
        weights[-2:] = 0.02, 0.02
        procedures = [rng.randrange(len(NAMES)) for _ in range(rng.randint(1, 40))]
        sizes = [len(NAMES[p] or "ab") + (rng.randint(0, extra) if NAMES[p] else 0) for p in procedures]
        rows = [b"[" + b",".join(rng.choices(HOSTILE, weights, k=size)) + b"]" for size in sizes]
        kept = [n for n in range(len(rows)) if rng.random() < rng.choice((0.5, 1))]
        assert spliced(rows, procedures, kept) == [slow(rows[n], NAMES[procedures[n]]) for n in kept], f"seed {seed}"


@pytest.mark.parametrize("bad", [b'["a,b,c,d]', b"[[1,2,3,4]", b"[1,2],3,4]", rb'["\",1,2,3]', b"[,{,,,]", b",,,,", b'"'])
def test_text_that_is_no_json_harms_no_other_row(bad: bytes) -> None:
    """A list that does not close, or closes too often, spoils itself alone, though the rows of a batch are cut in one go."""
    rows = [b'["a,b",[1,2],3]', bad, b'[{"x":"y,"},"",",,"]', b"[1,2,3]"]
    found = spliced(rows, [0, 0, 0, 0], [0, 1, 2, 3])
    assert found[:1] + found[2:] == [slow(row, NAMES[0]) for row in (rows[0], rows[2], rows[3])]
