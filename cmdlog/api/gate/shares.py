"""How much of something scarce each credential holds, so that none of them can take all of it.

One rule: a credential may hold as much as it leaves free (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998). Alone it
gets half. Of n that want all, each gets one part in n + 1, and one part stays free for the next. One that holds nothing may take
all that is free, so the first of everybody's fits if anything does.

A credential is known by `Credential.name`; all callers without one are a single name. No clock and no waiting here. One thread.
"""

from __future__ import annotations

from collections.abc import Callable


class Shares:
    """Invariant: `total` is the sum of `held`, whose values are above 0, and at most `whole`."""

    def __init__(self, whole: int) -> None:
        self.whole, self.total = whole, 0
        self.held: dict[str, int] = {}  # by name of the credential
        self.on_room: dict[Callable[[], None], None] = {}  # called whenever something was given back, the oldest first

    def allows(self, name: str, amount: int) -> bool:
        """Whether the credential may hold so much more."""
        held, free = self.held.get(name, 0), self.whole - self.total - amount
        return free >= 0 and (not held or held + amount <= free)

    def take_share(self, name: str, amount: int) -> bool:
        """Holds so much more, if that is allowed."""
        if amount and self.allows(name, amount):
            self.held[name] = self.held.get(name, 0) + amount
            self.total += amount
            return True
        return not amount

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
