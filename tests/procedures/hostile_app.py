"""Procedures that raise what lies about itself, fails when it is read, or does work meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sqlalchemy import Column, Integer, bindparam, func, insert, select

from procedures import Abort, Database, Transaction

db = Database("hostile")
kept = db.table("kept", Column("id", Integer, primary_key=True), partition_by="id")
KEEP = insert(kept).values(id=bindparam("id"))
COUNT = select(func.count()).select_from(kept)


def _fails(*_: Any) -> Any:
    raise RuntimeError("read me not")


def _exits(*_: Any) -> Any:
    raise SystemExit(3)


class _OddMeta(type):
    __name__ = property(_fails)
    __instancecheck__ = __eq__ = _fails
    __hash__ = type.__hash__

    def __subclasscheck__(cls, subclass: type) -> bool:
        return True


class _Odd(Exception, metaclass=_OddMeta):
    pass


class _NoClass(Exception):
    __class__ = property(_fails)


class _NoAttribute(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class _NoText(Exception):
    __str__ = __repr__ = _fails


class _ExitsAsText(Exception):
    __str__ = __repr__ = _exits


class _AbortsAsText(Exception):
    def __str__(self) -> str:
        raise Abort("inner", "of the text")


class _NumberAsText(Exception):
    def __str__(self) -> str:
        return cast("str", 7)


class _Text(str):
    replace = encode = __getitem__ = __str__ = _fails  # type: ignore[assignment]


class _OddText(Exception):
    def __str__(self) -> str:
        return _Text("odd text")


class _LongText(Exception):
    def __str__(self) -> str:
        return "long " * 1_000_000


class _Deep(Exception):
    def __str__(self) -> str:
        return str(self)


class _NoCause(Exception):
    __cause__ = __context__ = __suppress_context__ = __traceback__ = property(_fails)


class _NoTruth(Exception):
    __bool__ = __len__ = __eq__ = _fails
    __hash__ = _fails


class _NoStart(Exception):
    def __init__(self) -> None:
        raise LookupError("not made")


class _NoEnd(Exception):
    def __del__(self) -> None:
        raise RuntimeError("not ended")


class _OddAbort(Abort):
    def __init__(self) -> None:
        super().__init__("odd", "")
        self.code = 5  # type: ignore[assignment]


class _OddName(Exception):
    pass


_OddName.__name__ = _Text("Renamed")


def _caused() -> BaseException:
    error = ValueError("caused")
    error.__cause__ = _NoText()
    error.__cause__.__context__ = _NoTruth()
    return error


def _tampered() -> BaseException:
    error = ValueError("tampered")
    error.args = (_NoText(),)
    return error


# What is raised -> class and text of the outcome; None for an abort.
RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "odd": (_Odd, "_Odd", ""),
    "no_class": (_NoClass, "_NoClass", ""),
    "no_attribute": (_NoAttribute, "_NoAttribute", ""),
    "no_text": (_NoText, "_NoText", "(the exception has no text)"),
    "exits_as_text": (_ExitsAsText, "_ExitsAsText", "(the exception has no text)"),
    "aborts_as_text": (_AbortsAsText, "_AbortsAsText", "(the exception has no text)"),
    "number_as_text": (_NumberAsText, "_NumberAsText", "(the exception has no text)"),
    "odd_text": (_OddText, "_OddText", "odd text"),
    "long_text": (_LongText, "_LongText", ("long " * 200)),
    "deep": (_Deep, "_Deep", "(the exception has no text)"),
    "no_cause": (_NoCause, "_NoCause", ""),
    "no_truth": (_NoTruth, "_NoTruth", ""),
    "no_start": (_NoStart, "LookupError", "not made"),
    "no_end": (_NoEnd, "_NoEnd", ""),
    "odd_abort": (_OddAbort, "_OddAbort", "('odd', '')"),
    "odd_name": (_OddName, "Renamed", ""),
    "caused": (_caused, "ValueError", "caused"),
    "tampered": (_tampered, "ValueError", "(the exception has no text)"),
    "group": (lambda: BaseExceptionGroup("all", [_NoText(), SystemExit(4)]), "BaseExceptionGroup", "all (2 sub-exceptions)"),
    "exit": (lambda: SystemExit(5), "SystemExit", "5"),
    "generator": (GeneratorExit, "GeneratorExit", ""),
    "surrogate": (lambda: ValueError("\ud800"), "ValueError", "?"),
}


@db.procedure(partition_by="item")
def keep(tx: Transaction, item: int) -> int:
    """A call that does its work."""
    tx.execute(KEEP, id=item)
    return item


@db.procedure(partition_by="item")
def fail(tx: Transaction, item: int, how: str, write: bool) -> int:
    """A call that raises, after it changed rows or before."""
    if write:
        tx.execute(KEEP, id=item)
    raise RAISED[how][0]()


@db.procedure(partition_by="item")
def fail_and_write(tx: Transaction, item: int, when: str) -> None:
    """A call whose exception changes rows when it is read, or when it ends."""

    class Writes(Exception):
        def __str__(self) -> str:
            if when == "text":
                tx.execute(KEEP, id=item)
            return "written"

        def __del__(self) -> None:
            if when == "end":
                tx.execute(KEEP, id=item)

    raise Writes


@db.procedure(partition_by="item", read_only=True)
def fail_read(tx: Transaction, item: int, how: str) -> int:
    """A read that raises."""
    raise RAISED[how][0]()


@db.procedure(partition_by="item", read_only=True)
def count(tx: Transaction, item: int) -> int:
    """How many rows there are."""
    found: int = tx.scalar(COUNT)
    return found
