"""Procedures whose outcome a setting of the interpreter would decide."""

from __future__ import annotations

import datetime
import locale
import sys
import warnings

from sqlalchemy import Column, Integer, Text, bindparam, insert

from procedures import Database, Transaction

db = Database("settings")
seen = db.table("seen", Column("id", Integer, primary_key=True), Column("text", Text), partition_by="id")
SEE = insert(seen).values(id=bindparam("id"), text=bindparam("text"))
PROCEDURES = ("warn", "warn_recorded", "compare_bytes", "descend", "measure", "digits", "say", "say_bytes", "formats", "asserts")


def _down(depth: int) -> int:
    return 0 if depth == 0 else 1 + _down(depth - 1)


def _bottom(depth: int) -> int:
    try:
        return _bottom(depth + 1)
    except RecursionError:
        return depth


@db.procedure(partition_by="item")
def warn(tx: Transaction, item: int) -> str:
    """Warns of something, in each category that a filter may name."""
    tx.execute(SEE, id=item, text="warned")
    for category in (DeprecationWarning, UserWarning, ResourceWarning, BytesWarning):
        warnings.warn("careful", category, stacklevel=1)
    return "warned"


@db.procedure(partition_by="item")
def warn_recorded(tx: Transaction, item: int) -> int:
    """Counts warnings, with the filters of the process and with its own."""
    with warnings.catch_warnings(record=True) as first:
        warnings.warn("careful", UserWarning, stacklevel=1)
    with warnings.catch_warnings(record=True) as second:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    return 10 * len(first) + len(second)


@db.procedure(partition_by="item")
def compare_bytes(tx: Transaction, item: int) -> bool:
    """Compares what `python -bb` refuses to compare."""
    texts: list[object] = ["a"]
    return b"a" in texts or str(b"a") in texts


@db.procedure(partition_by="item")
def descend(tx: Transaction, item: int) -> int:
    """Goes as deep as any program may."""
    return _down(900)


@db.procedure(partition_by="item")
def measure(tx: Transaction, item: int) -> int:
    """Says how deep the stack may get."""
    return _bottom(0)


@db.procedure(partition_by="item", read_only=True)
def measure_read(tx: Transaction, item: int) -> int:
    """The same, of a read."""
    return _bottom(0)


@db.procedure(partition_by="item")
def measure_and_fail(tx: Transaction, item: int) -> None:
    """The same, of a call that makes its batch run with savepoints."""
    tx.execute(SEE, id=item, text="")
    raise ValueError(_bottom(0))


@db.procedure(partition_by="item")
def digits(tx: Transaction, item: int) -> int:
    """Writes a long number, and then one that is too long."""
    short = len(str(10**4000))
    try:
        return len(str(10**5000))
    except ValueError:
        return short


@db.procedure(partition_by="item")
def say(tx: Transaction, item: int) -> int:
    """Prints what a pipe or an encoding may not take, more than a buffer holds."""
    print("über \ud800 " * 4000, flush=True)
    print("again", file=sys.stderr)
    return sys.stdout.write("€\n")


@db.procedure(partition_by="item")
def say_bytes(tx: Transaction, item: int) -> int:
    """Writes to the stream below."""
    sys.stdout.buffer.write(b"bytes\n")
    sys.stdout.flush()
    return 1


@db.procedure(partition_by="item")
def formats(tx: Transaction, item: int) -> str:
    """Formats by the locale, and names an error of the system."""
    day = datetime.date(2026, 3, 2)
    try:
        open("/nowhere/at/all")  # noqa: SIM115 - it fails
    except OSError as error:
        return f"{1234567.5:n} {day:%A} {locale.strcoll('a', 'B')} {error.strerror}"
    return ""


@db.procedure(partition_by="item")
def asserts(tx: Transaction, item: int) -> str:
    """Fails where asserts are compiled."""
    assert item < 0, "negative"
    return "no asserts"
