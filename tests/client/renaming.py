"""Names of calls as a test wants them."""

from __future__ import annotations

from collections.abc import Callable

from cmdlog.client.request import Ask
from cmdlog.client.session import CallName


class Renaming:
    """What a client takes its names from: `better` is the test's, and `finished` tells what was given back."""

    def __init__(self, better: Callable[[CallName, str], CallName | None] = lambda _name, _date: None) -> None:
        self.better = better
        self.finished: list[tuple[CallName, bool]] = []

    def new(self) -> str:
        """No test of this kind asks for it."""
        raise NotImplementedError

    def finish(self, name: CallName, *, known: bool = True) -> None:
        """See `CallNames`."""
        self.finished.append((name, known))


def text_key(ask: Ask) -> str | None:
    """The key of a call that is in no session."""
    assert ask.key is None or isinstance(ask.key, str)
    return ask.key
