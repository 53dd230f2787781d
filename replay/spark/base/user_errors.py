"""Prepares errors for Spark, which shows the traceback of a Python process before the message.

One rule: an error that a user can act on omits the frames of this package, which only bury its message; a defect keeps
all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from cmdlog.operator_error import OperatorError

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def spoken(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Wraps functions that Spark calls."""

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except OperatorError as error:
            raise error.with_traceback(None) from None

    return called


def spoken_rows(function: Callable[Given, Iterator[Answer]]) -> Callable[Given, Iterator[Answer]]:
    """The same for generators of rows, which may fail after some of them."""

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Iterator[Answer]:
        try:
            yield from function(*args, **kwargs)
        except OperatorError as error:
            raise error.with_traceback(None) from None

    return called
