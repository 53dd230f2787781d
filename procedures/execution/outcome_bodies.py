"""Bodies of calls that did not succeed.

They are compared between replicas and replays, so they hold nothing that differs between processes: no memory addresses,
no traceback, and a class of the main module is called as it was live. The length is bounded, and text that is no Unicode is
replaced.
"""

from __future__ import annotations

import orjson

from procedures.execution.context import Abort
from procedures.idempotency.known_outcome import Status
from procedures.statements.raised import ADDRESS

MESSAGE_CHARACTERS_MAX = 1000
MAIN = "__main__"
BUNDLED_MAIN = "cmdlog_bundled_main"  # what a bundle calls the program's main module, see bundle.py


class ResultTooLarge(Exception):
    """The answer is longer than what may be kept under an idempotency key."""


class ReadOnlyProcedure(Exception):
    """A read-only procedure is in a batch of the log."""


def outcome_of(error: BaseException) -> tuple[Status, bytes]:
    """Status and body of a call that raised."""
    if isinstance(error, Abort):
        return Status.ABORTED, orjson.dumps({"code": _clean(error.code), "message": _clean(error.message)})
    return Status.FAILED, failure_body(type(error).__name__, _message_of(error))


def failure_body(kind: str, message: str) -> bytes:
    return orjson.dumps({"type": _clean(kind), "message": _clean(message)})


def describe_error(error: BaseException) -> str:
    """Class and message, as a caller gets them."""
    message = _message_of(error)
    return _clean(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of the procedure's own making may fail to describe itself
        return "(the exception has no text)"


def _clean(text: str) -> str:
    text = text.replace(BUNDLED_MAIN, MAIN)
    text = ADDRESS.sub("", text[: 2 * MESSAGE_CHARACTERS_MAX])[:MESSAGE_CHARACTERS_MAX]
    return text.encode("utf-8", "replace").decode()


# An outcome like any other: digests of the log hold its bytes, so its words cannot change.
SKIPPED = failure_body("Skipped", "taken out of its batch: it did not end, or a recovery could not replay it and set it aside")
