"""Parameter lists into objects, many rows at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import orjson
import pytest

from replay.spark.params import Keys, lists, objects

NAMES: list[tuple[str, ...] | None] = [("a", "b", "c"), (), ("x",), None, ("käy", 'quo"te')]
PLAIN = [1, -5, 2.5, None, True, "x", "a,b", "é,ü", ""]
ANY = [*PLAIN, 'q"uo\\te', "[1,2]", "{}", "\\", [1, 2, [3]], {"k": [1, ","]}, [], {}]


def spliced(rows: list[bytes], procedures: list[int], kept: list[int]) -> list[str]:
    """The kept rows of one text as objects."""
    text = b"[" + b",".join(rows) + b"]"
    lengths = np.array([len(row) for row in rows])
    starts = 1 + np.cumsum(lengths + 1) - (lengths + 1)
    made = objects(text, starts[kept], (starts + lengths)[kept], Keys.of(NAMES), np.array(procedures)[kept])
    made.validate(full=True)
    whole: list[str] = lists(text, starts[kept], (starts + lengths)[kept]).to_pylist()
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
