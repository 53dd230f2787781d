"""The client's side of its sessions: which number a call gets, and up to which one all outcomes are known.

One rule: the floor never passes a number whose call may still be asked for. So a call takes its number once, and gives it back
when it has a definite answer, or when its caller has left and cannot ask again. A number whose outcome stayed unknown is kept for
ever: its session's floor stays below it, and the error names it for a later retry.

A session gives numbers up to `window` above its floor, as the server allows. Beyond that, another one is used until the floor has
moved: with n calls under way there are about n / window sessions. One that is older than AGE_S_MAX gets no more calls, so that a
server's limits of age are never near; nor does a full one that waits for an unknown outcome. When the last call of such a session
is over, the session is to be ended on the server, which `pop_drained` asks for.

A fork begins new sessions: parent and child would give the same numbers to different calls. No socket here. The models are RIFL
(Lee et al., SOSP 2015) and Raft's dissertation, 6.3.

Keys are UUIDs of version 7, so that a server can tell from the key alone that it is too old. Their time follows the server's
clock when ours is behind: a machine that woke up with its clock an hour back could call nothing at all.
"""

from __future__ import annotations

import email.utils
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from cmdlog.errors import InvalidParameters

KEY_CHARS_MAX: Final = 255
VISIBLE: Final = re.compile(rf"[!-~]{{1,{KEY_CHARS_MAX}}}", re.ASCII)
VARIANTS: Final = "89ab"  # first digit of a UUID's fourth group
SKEW_S_MIN: Final = 5.0  # a smaller difference is the way between us
DATE_STEP_S: Final = 1.0  # a `Date` leaves out the fraction; a key must not be born a second old


def uuid7(milliseconds: int, chance: bytes) -> str:
    """A UUID of version 7 (RFC 9562, 5.7). `chance` holds 10 bytes."""
    text = (milliseconds.to_bytes(6) + chance).hex()
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-{VARIANTS[chance[2] >> 4 & 3]}{text[17:20]}-{text[20:]}"


def time_of(key: str) -> float:
    """The time in a key of `uuid7`, in seconds."""
    return int(key[:8] + key[9:13], 16) / 1000


class KeyGenerator:
    """New keys. As `CallNames` a key of its own for each call: for programs that make a few, and would leave a session for each.

    Threads may share one.
    """

    def __init__(self, *, wall: Callable[[], float] = time.time, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._wall, self._entropy = wall, entropy
        self._behind_s = 0.0  # what our clock lacks, as a server has shown

    def new(self) -> str:
        return uuid7(int((self._wall() + self._behind_s) * 1000), self._entropy(10))

    def better(self, name: CallName, date: str) -> str | None:
        """A key in place of one that was made here and carries a time of the past, as the server's `Date` shows."""
        there = self.follow_clock(date)
        return None if there is None or not isinstance(name, str) or there - time_of(name) < SKEW_S_MIN else self.new()

    def finish(self, name: CallName, *, known: bool = True) -> None:
        """See `CallNames`."""

    def follow_clock(self, date: str) -> float | None:
        """The time of the server's `Date`, which keys bear from now on; None: it states none."""
        try:
            there = email.utils.parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError, OverflowError):
            return None
        if abs(there - (self._wall() + self._behind_s)) >= SKEW_S_MIN:
            self._behind_s = there + DATE_STEP_S - self._wall()
        return there


def check_key(key: str | None) -> str | None:
    """The key itself. Raises: InvalidParameters."""
    if key is not None and not VISIBLE.fullmatch(key):
        raise InvalidParameters(problems=[("idempotency_key", f"must have 1 to {KEY_CHARS_MAX} visible ASCII characters")])
    return key


WINDOW: Final = 1024  # the server's `session_window`, unless it was set lower there
AGE_S_MAX: Final = 900.0
LEFT_MAX: Final = 64  # sessions without new calls that are remembered until their last call is over
TEXT: Final = re.compile(
    r"session ([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    r"; number=([0-9]{1,20})(?:; floor=([0-9]{1,20}))?",
    re.ASCII | re.IGNORECASE,
)


class ClientSession:
    """One session. Guarded by the lock of its `ClientSessions`.

    Attributes:
        floor: all numbers up to it are finished. Invariant: floor < next, and it only grows.
        next: the number of the next call.
        lost: there is a number whose outcome stayed unknown.
        left: it gets no more calls.
    """

    __slots__ = ("_finished", "began", "floor", "left", "lost", "next", "uuid")

    def __init__(self, uuid: str, *, began: float = 0.0, floor: int = 0) -> None:
        self.uuid, self.began, self.floor = uuid, began, floor
        self.next = floor + 1
        self.lost = self.left = False
        self._finished: set[int] = set()  # numbers above the floor

    @property
    def drained(self) -> bool:
        """No call of it is under way or unknown."""
        return self.floor == self.next - 1

    def finish(self, number: int) -> None:
        """Nobody asks for this number again."""
        if number != self.floor + 1:
            if number > self.floor:
                self._finished.add(number)
            return
        finished = self._finished
        while finished and number + 1 in finished:
            number += 1
            finished.remove(number)
        self.floor = number


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """What a call in a session is named by. The floor is read when an attempt is sent, not before."""

    session: ClientSession
    number: int

    def header(self) -> str:
        """The value of `Cmdlog-Session`."""
        return f"{self.session.uuid}; number={self.number}; floor={self.session.floor}"

    def __str__(self) -> str:
        """What stands for it in an error's `idempotency_key`, and in an option of the same name."""
        return f"session {self.header()}"


CallName = str | NumberedCall
"""An idempotency key, or a number in a session."""


class CallNames(Protocol):
    """Where the names of calls come from."""

    def new(self) -> CallName:
        """The name of the next call."""

    def better(self, name: CallName, date: str) -> CallName | None:
        """A name in place of one that was made here and refused as expired; `date` is the server's. None: it would not help."""

    def finish(self, name: CallName, *, known: bool = True) -> None:
        """A call is over. `known`: it has a definite answer, or nobody can ask for it any more."""


def parse_name(text: str) -> NumberedCall | None:
    """The call of a session that a text names; None: it is a key. Beyond the number it names a floor, or none."""
    found = TEXT.fullmatch(text)
    if found is None:
        return None
    return NumberedCall(ClientSession(found[1].lower(), floor=int(found[3] or 0)), int(found[2]))


class ClientSessions:
    """The sessions of one client. Threads and tasks may share it."""

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
        pid: Callable[[], int] = os.getpid,
        window: int = WINDOW,
    ) -> None:
        self._clock, self._pid, self._window = clock, pid, window
        self._keys = KeyGenerator(wall=wall, entropy=entropy)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()  # a fork copies a lock that another thread may hold
        self._current: ClientSession | None = None
        self._open: list[ClientSession] = []
        self._left: dict[str, ClientSession] = {}
        self._drained: list[str] = []
        self._owner = self._pid()  # last: another thread of the child would else take numbers of the parent's session

    def _begin_after_fork(self) -> None:
        if self._owner != self._pid():
            self._begin_anew()

    def new(self) -> NumberedCall:
        """The name of the next call."""
        self._begin_after_fork()
        with self._lock:
            session = self._current
            if session is None or session.next > session.floor + self._window or self._clock() - session.began > AGE_S_MAX:
                session = self._current = self._switch()
            number = session.next
            session.next = number + 1
        return NumberedCall(session, number)

    def _switch(self) -> ClientSession:
        """An open session with room, or a new one. Sessions that are too old, or waiting in vain, are left."""
        now = self._clock()
        for session in self._open[:]:
            full = session.next > session.floor + self._window
            if now - session.began > AGE_S_MAX or (full and session.lost):
                self._leave(session)
        for session in self._open:
            if session.next <= session.floor + self._window:
                return session
        session = ClientSession(self._keys.new(), began=now)
        self._open.append(session)
        return session

    def _leave(self, session: ClientSession) -> None:
        """It gets no more calls."""
        session.left = True
        self._open.remove(session)
        if session is self._current:
            self._current = None
        if session.drained:
            self._drained.append(session.uuid)
            return
        self._left[session.uuid] = session
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def finish(self, name: CallName, *, known: bool = True) -> None:
        """A call is over. `known`: it has a definite answer, or nobody can ask for it any more."""
        if not isinstance(name, NumberedCall):
            return
        self._begin_after_fork()
        session = name.session
        with self._lock:
            if not known:
                session.lost = True
                return
            session.finish(name.number)
            if session.left and session.drained and self._left.pop(session.uuid, None) is not None:
                self._drained.append(session.uuid)

    def better(self, name: CallName, date: str) -> NumberedCall | None:
        """A name in another session, for a call that was refused as of an expired one; `date` is the server's."""
        if not isinstance(name, NumberedCall):
            return None
        self._begin_after_fork()
        with self._lock:
            self._keys.follow_clock(date)
            if name.session in self._open:
                name.session.lost = True  # the server knows it no more: nothing is to be ended there
                self._leave(name.session)
        return self.new()

    def named(self, text: str) -> NumberedCall | None:
        """The call that a text names, of our own sessions if it is one of them; None: the text is a key."""
        given = parse_name(text)
        if given is None:
            return None
        self._begin_after_fork()
        with self._lock:
            own = (session for session in (*self._open, *self._left.values()) if session.uuid == given.session.uuid)
            session = next(own, given.session)
            return NumberedCall(session, given.number) if session.floor < given.number else given

    @property
    def has_drained(self) -> bool:
        """Whether there are sessions to be ended."""
        return bool(self._drained)

    def pop_drained(self) -> list[str]:
        """Sessions that are over, each once: the server may forget them."""
        with self._lock:
            drained, self._drained = self._drained, []
            return drained

    def close(self) -> list[str]:
        """All that are over now: no more calls are made. One with an unknown outcome stays, to be asked for."""
        self._begin_after_fork()
        with self._lock:
            for session in self._open[:]:
                self._leave(session)
        return self.pop_drained()
