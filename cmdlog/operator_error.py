"""The root of every error that an operator can act on.

One rule: `str()` is what happened and nothing else. What to do about it is `hint`, and the edges show it: the command line on a
line of its own, Python's tracebacks as a note, logs and answers with room for one text by `full_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OperatorError(Exception):
    """What happened, what to do about it, and how the command line ends. A subclass states what all of its kind share."""

    exit_code: int = 1  # of the command line (RUNNING.md "Signals and exit codes")
    hint: str = ""
    kind: str = ""  # the name for machines; unless stated, that of the class
    details: Sequence[str] = ()  # lines below the message

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        exit_code: int | None = None,
        kind: str = "",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.hint = hint or self.hint
        self.exit_code = self.exit_code if exit_code is None else exit_code
        self.kind = kind or self.kind
        self.details = details or self.details

    @property
    def message(self) -> str:
        """What happened, without the hint."""
        return str(self)

    @property
    def headline(self) -> str:
        """The message in one line, where it says several things."""
        return self.message

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # only `add_note` writes it
        """Python prints these below the error in a traceback: the hint as it is then, which may have been set on the way."""
        notes: list[str] = vars(self).get("_notes", [])
        return [*notes, f"hint: {self.hint}"] if self.hint else notes

    def add_note(self, note: str) -> None:
        """As of any exception."""
        vars(self).setdefault("_notes", []).append(note)

    def to_json(self) -> dict[str, Any]:
        """For another process; `replay.errors.RemoteError` reads it."""
        return {"kind": self.kind, "message": self.message, "hint": self.hint, "exit_code": self.exit_code}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as it is: many subclasses are made from something else than their message."""
        return _restored, (type(self), self.args, vars(self))


def _restored(cls: type[OperatorError], args: tuple[Any, ...], attributes: dict[str, Any]) -> OperatorError:
    error = cls.__new__(cls, *args)
    vars(error).update(attributes)
    return error


def full_text(error: BaseException) -> str:
    """An error in one line with its hint, for a log or an answer that has room for one text."""
    return f"{error} ({error.hint})" if isinstance(error, OperatorError) and error.hint else str(error)
