"""Consensus as reads see it: driver, machine and core at once; it answers when a test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, cast

from cmdlog.cluster.replication import Replication
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.sequenced_machine import SequencedMachine

NEVER = -1  # in place of an index: it does not answer by itself


class AskedConsensus:
    """Keeps the questions that have no answer."""

    def __init__(self, *, leads: bool = True, at_once: int | None = NEVER) -> None:
        """`at_once`: what every question is answered before `ask` returns."""
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.id, self.leader = 1, 1 if leads else 2
        self.questions = 0
        self.waiting: dict[int, Callable[[int | None], None]] = {}
        self._at_once, self._contexts = at_once, itertools.count(1)

    # -- the driver, and its core

    def ask(self, _group: int, request: Callable[[Any], Any]) -> None:
        request(self)

    def read_index(self, context: int) -> None:
        self.questions += 1
        if self._at_once != NEVER:
            self.waiting.pop(context)(self._at_once)

    # -- the machine

    def await_read(self, done: Callable[[int | None], None]) -> int:
        context = next(self._contexts)
        self.waiting[context] = done
        return context

    def forget_read(self, context: int) -> None:
        self.waiting.pop(context, None)

    # -- a test

    def answer(self, index: int | None) -> None:
        """Answers the oldest question, as the driver does: under its lock."""
        with self.lock:
            self.waiting.pop(min(self.waiting))(index)


def as_driver(consensus: AskedConsensus) -> tuple[Replication, SequencedMachine]:
    """As driver, and as machine."""
    return cast(Replication, consensus), cast(SequencedMachine, consensus)


def leader_reads(consensus: AskedConsensus) -> ReadRounds:
    """The reads of a leader over it."""
    return ReadRounds(*as_driver(consensus), reads_max=4)
