"""Bodies of calls that did not succeed.

They are compared between replicas and replays, so they hold nothing that differs between processes: no memory addresses,
no traceback, and a class of the main module is called as it was live. The length is bounded, and text that is no Unicode is
replaced.
"""

from __future__ import annotations

from typing import cast

import orjson

from procedures.execution.context import Abort
from procedures.idempotency.known_outcome import Status
from procedures.raised_errors import ENDS_READING, class_name, is_raised, text_of
from procedures.statements.raised import ADDRESS

MESSAGE_CHARACTERS_MAX = 1000
MAIN = "__main__"
BUNDLED_MAIN = "cmdlog_bundled_main"  # what a bundle calls the program's main module, see bundle.py
_SPAWNED_MAIN = "__mp_main__"  # what `multiprocessing` calls it in a process that it starts


class ResultTooLarge(Exception):
    """The answer is longer than what may be kept under an idempotency key."""


class ReadOnlyProcedure(Exception):
    """A read-only procedure is in a batch of the log."""


def outcome_of(error: BaseException) -> tuple[Status, bytes]:
    """Status and body of a call that raised. Asks the exception for its text, which is code of the application, once.

    Raises: what `raised_errors.text_of` raises.
    """
    if is_raised(error, Abort) and (answer := _answer_of(cast("Abort", error))) is not None:
        return Status.ABORTED, orjson.dumps(answer)
    return Status.FAILED, failure_body(class_name(error), text_of(error))


def _answer_of(error: Abort) -> dict[str, str] | None:
    """What an abort answers; None where its code or message was made something else than a text: it is then a failure."""
    try:
        parts = {"code": error.code, "message": error.message}
    except ENDS_READING:
        raise
    except BaseException:  # noqa: BLE001 - a class that derives from it may have attributes of its own making
        return None
    if not all(issubclass(type(part), str) for part in parts.values()):
        return None
    return {name: _clean(str.__str__(part)) for name, part in parts.items()}


def failure_body(kind: str, message: str) -> bytes:
    return orjson.dumps({"type": _clean(kind), "message": _clean(message)})


def describe_failure(body: bytes) -> str:
    """Class and message of a failure's body, as a caller gets them."""
    failure = orjson.loads(body)
    return ": ".join(filter(None, (failure["type"], failure["message"])))


def _clean(text: str) -> str:
    text = text.replace(BUNDLED_MAIN, MAIN).replace(_SPAWNED_MAIN, MAIN)
    text = ADDRESS.sub("", text[: 2 * MESSAGE_CHARACTERS_MAX])[:MESSAGE_CHARACTERS_MAX]
    return text.encode("utf-8", "replace").decode()


# An outcome like any other: digests of the log hold its bytes, so its words cannot change.
SKIPPED = failure_body("Skipped", "taken out of its batch: it did not end, or a recovery could not replay it and set it aside")
