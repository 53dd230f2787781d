"""How much of something scarce each credential holds, so that none of them can take all of it.

One rule: a credential may hold as much as it leaves free (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998), or
`times` as much. Alone it gets half. Of n that want all, each gets one part in n + 1, and one part stays free for the next. One
that holds nothing may take all that is free, so the first of everybody's fits if anything does.

A credential is known by `Credential.name`, or by what stands for it; all callers without one are a single name. No clock and no
waiting here. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UNCOUNTED_BYTES: Final = 64 << 10  # of an answer: a connection may hold as much that is not sent yet


class Shares:
    """Invariant: `total` is the sum of `held`, whose values are above 0; at most `whole`, but for what was held unasked."""

    def __init__(self, whole: int, *, times: int = 1) -> None:
        """`times`: more than 1 where most have one credential, which then gets `times` parts in `times` + 1."""
        self.whole, self.total, self._times = whole, 0, times
        self.held: dict[str, int] = {}  # by name of the credential
        self.on_room: dict[Callable[[], None], None] = {}  # called whenever something was given back, the oldest first

    def allows(self, name: str, amount: int) -> bool:
        """Whether the credential may hold so much more."""
        held, free = self.held.get(name, 0), self.whole - self.total - amount
        return free >= 0 and (not held or held + amount <= self._times * free)

    def room(self, name: str) -> int:
        """How much more the credential may hold beside what it holds."""
        spare = self._times * (self.whole - self.total) - self.held.get(name, 0)
        return max(0, spare // (self._times + 1))

    def take_share(self, name: str, amount: int) -> bool:
        """Holds so much more, if that is allowed."""
        if amount and self.allows(name, amount):
            self.hold(name, amount)
            return True
        return not amount

    def hold(self, name: str, amount: int) -> None:
        """Holds so much more, as is known from elsewhere."""
        self.held[name] = self.held.get(name, 0) + amount
        self.total += amount

    def clear(self) -> None:
        """Nobody holds anything."""
        self.held.clear()
        self.total = 0

    def largest(self) -> float:
        """The largest part of the whole that one credential holds. Any thread."""
        return max(list(self.held.values()), default=0) / self.whole

    def give_back(self, name: str, amount: int) -> None:
        """Holds so much less."""
        if not amount:
            return
        rest = self.held.pop(name) - amount
        if rest:
            self.held[name] = rest
        self.total -= amount
        for tell in list(self.on_room):
            tell()
