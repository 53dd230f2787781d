"""What TPC-C draws at random: strings, last names, and the skewed choice NURand (clauses 2.1.6 and 4.3.2).

One rule: everything comes from the generator that is passed in, so the same seed draws the same.
"""

from __future__ import annotations

import random

_SYLLABLES = ("BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING")
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
# One table lookup per character; the first letters are drawn a little more often, about which the specification is silent.
_ALPHANUMERIC = bytes(_LETTERS[number % len(_LETTERS)] for number in range(256))
_DIGITS = bytes(b"0123456789"[number % 10] for number in range(256))
_CAPITALS = bytes(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 26] for number in range(256))

NAMES = 1000  # last names that three syllables give
A_NAME, A_CUSTOMER, A_ITEM = 255, 1023, 8191  # the constants A of NURand


def text(chance: random.Random, low: int, high: int) -> str:
    """A random a-string of `low` to `high` characters."""
    return chance.randbytes(chance.randint(low, high)).translate(_ALPHANUMERIC).decode()


def digits(chance: random.Random, count: int) -> str:
    """A random n-string."""
    return chance.randbytes(count).translate(_DIGITS).decode()


def state(chance: random.Random) -> str:
    return chance.randbytes(2).translate(_CAPITALS).decode()


def zip_code(chance: random.Random) -> str:
    """Clause 4.3.2.7."""
    return digits(chance, 4) + "11111"


def data(chance: random.Random) -> str:
    """Data of an item or a stock row: 26 to 50 characters, in one of ten with ORIGINAL somewhere in them."""
    drawn = text(chance, 26, 50)
    if chance.randrange(10):
        return drawn
    at = chance.randrange(len(drawn) - 7)
    return f"{drawn[:at]}ORIGINAL{drawn[at + 8 :]}"


def last_name(number: int) -> str:
    """Clause 4.3.2.3: three syllables, by the digits of a number below 1000."""
    return _SYLLABLES[number // 100] + _SYLLABLES[number // 10 % 10] + _SYLLABLES[number % 10]


def nurand(chance: random.Random, *, a: int, c: int, low: int, high: int) -> int:
    """Clause 2.1.6: a choice from [low, high] that prefers some."""
    return ((chance.randint(0, a) | chance.randint(low, high)) + c) % (high - low + 1) + low


def name_constants(seed: int) -> tuple[int, int]:
    """The constants C of last names, when loading and when running; clause 2.1.6.1 says how far apart they are."""
    chance = random.Random(f"names {seed}")
    load = chance.randint(0, 136)
    return load, load + chance.choice([delta for delta in range(65, 120) if delta not in (96, 112)])
