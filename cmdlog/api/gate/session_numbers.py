"""The number of a call in a client's session: `Cmdlog-Session: <uuid>; number=17; floor=12`, and members of a batch's line.

One rule: `floor < number <= floor + session_window`, found here, so that nothing else reaches the log.

The UUID, of version 7, is the client's; within the scope of the caller's credential it stands for one session. Its fingerprint
takes longer to make than all the rest, and a client sends the same one again and again: the last ones are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from cmdlog.api.gate.problem import Problem, invalid
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.idempotency.session_calls import NUMBER_MAX, SENT

HEADER_NAME: Final = "Cmdlog-Session"
FINGERPRINTS_MAX: Final = 16_384  # that are kept, about 300 bytes each
SESSION_UUID: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
UUID_BYTES: Final = 36
BARE: Final = re.compile(SESSION_UUID.encode())
NUMBERS: Final = re.compile(rb"(?:;[ \t]*number=([0-9]{1,20}))?(?:;[ \t]*floor=([0-9]{1,20}))?")
NAMES: Final = ("session", "number", "floor")  # of a line's members
FORM: Final = "must be a UUID of version 7, `; number=` and `; floor=` with whole numbers"

Window = tuple[bytes, int]
"""Fingerprint of a session, and a floor."""


_kept: dict[str, dict[bytes, bytes]] = {}  # scope -> UUID -> fingerprint
_NONE_KEPT: Final[dict[bytes, bytes]] = {}


def session_fingerprint(scope: str, uuid: bytes) -> bytes:
    """What stands for a session of these callers; empty when it is no UUID of version 7."""
    found = _kept.get(scope, _NONE_KEPT).get(uuid)
    if found is None:
        if not BARE.fullmatch(uuid):
            return b""
        if sum(map(len, _kept.values())) >= FINGERPRINTS_MAX:
            _kept.clear()
        found = _kept.setdefault(scope, {})[uuid] = key_fingerprint(scope, uuid.decode().lower())
    return found


def named_call(scope: str, value: bytes, window: int) -> bytes:
    """What a single call brings to the log, from its header. Raises: Problem."""
    session, number, floor = _parts_of(scope, value)
    if number is None:
        raise invalid([(HEADER_NAME, "needs `; number=`: which of the session's calls this is")])
    return sent_number(session, int(number), int(floor or b"0"), window, HEADER_NAME)


def _parts_of(scope: str, value: bytes) -> tuple[bytes, bytes | None, bytes | None]:
    """Fingerprint, number and floor. Raises: Problem."""
    found, session = NUMBERS.fullmatch(value, UUID_BYTES), session_fingerprint(scope, value[:UUID_BYTES])
    if found is None or not session:
        raise invalid([(HEADER_NAME, FORM)])
    number, floor = found.groups()
    return session, number, floor


def window_of_lines(scope: str, value: bytes) -> Window:
    """Session and floor of a batch's lines that say no others, from its header. Raises: Problem."""
    session, number, floor = _parts_of(scope, value)
    if number is not None:
        raise invalid([(HEADER_NAME, "must not have `number` here: each line has its own")])
    return session, int(floor or b"0")


def line_names(lines: Window, window: int) -> Callable[[int], bytes]:
    """A function that gives what a line brings to the log, by its number in the request's session. It raises: Problem."""
    session, floor = lines
    highest, pack = min(floor + window, NUMBER_MAX), SENT.pack

    def name(number: int) -> bytes:
        return pack(session, number, floor) if floor < number <= highest else sent_number(session, number, floor, window)

    return name


def named_line(scope: str, entry: dict[str, Any], lines: Window | None, window: int) -> bytes:
    """What a line of a session brings to the log; takes the members `NAMES` out of it. Raises: Problem."""
    if "number" not in entry:
        given = " and ".join(f"`{name}`" for name in NAMES if name in entry)
        raise invalid([("number", f"is missing: a line with {given} says which of the session's calls it is")])
    number = entry.pop("number")
    session, floor = lines or (b"", 0)
    if "session" in entry:
        uuid = entry.pop("session")
        session, floor = session_fingerprint(scope, checked_uuid(uuid)), 0
    elif not session:
        raise invalid([("number", "needs a session: in the line, or in the header Cmdlog-Session")])
    floor = entry.pop("floor", floor)
    if type(number) is not int:
        raise invalid([("number", "must be a whole number from 1")])
    if type(floor) is not int or floor < 0:
        raise invalid([("floor", "must be a whole number from 0")])
    return sent_number(session, number, floor, window, "number")


def checked_uuid(uuid: object) -> bytes:
    """The UUID of a session. Raises: Problem."""
    found = uuid.encode() if isinstance(uuid, str) and uuid.isascii() else b""
    if not BARE.fullmatch(found):
        raise invalid([("session", "must be a UUID of version 7")])
    return found


def check_one_name(key: bytes | None) -> None:
    """A call has a key of its own or a number in a session. Raises: Problem."""
    if key is not None:
        raise Problem("bad_request", f"send either Idempotency-Key or {HEADER_NAME}")


def sent_number(session: bytes, number: int, floor: int, window: int, field: str = "number") -> bytes:
    """What a call of a session brings to the log. Raises: Problem."""
    if not floor < number <= floor + window or number > NUMBER_MAX:
        raise invalid([(field, _problem_of(number, floor, window))])
    return SENT.pack(session, number, floor)


def _problem_of(number: int, floor: int, window: int) -> str:
    if number <= floor:
        return f"number {number} must be above the floor {floor}, up to which the client has seen all outcomes"
    if number > NUMBER_MAX:
        return f"number {number} must be at most {NUMBER_MAX}"
    return (
        f"number {number} must be above the floor {floor} by at most {window} (session_window): a session keeps that many "
        f"outcomes. Raise `floor` as outcomes arrive; a cmdlog client accepts `session_window={window}`"
    )
