"""Errors on their way to Spark, which shows the traceback of a Python process in front of what the error says.

One rule: an error that somebody can act on goes without the frames of this package, which only bury its sentence; a defect keeps
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
    """For what Spark calls."""

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except OperatorError as error:
            raise error.with_traceback(None) from None

    return called


def spoken_rows(function: Callable[Given, Iterator[Answer]]) -> Callable[Given, Iterator[Answer]]:
    """The same for what gives rows, and may fail behind some of them."""

    @functools.wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Iterator[Answer]:
        try:
            yield from function(*args, **kwargs)
        except OperatorError as error:
            raise error.with_traceback(None) from None

    return called
