"""A state machine of the log against a list: append, seal, kill, power cut, reopen, let go, in any order."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cmdlog.wal.log import Log
from tests.wal.logkit import SEGMENT_BYTES, ListSource, append, at, create, hard_state, numbers_in, open_log
from tests.wal.sim.simfiles import SimFiles


class LogMachine(RuleBasedStateMachine):
    """The model is the list of what was taken, and how far of it was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimFiles()
        self.log: Log
        self.source: ListSource
        self.model: list[int] = []  # what the log may hold, in order
        self.safe = 0  # of it, how much was acknowledged
        self.next_number = 0
        self.generation = 2000

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.files = SimFiles(seed)
        create(self.files, initial=[hard_state(1, 7)])
        self.start()

    def start(self) -> None:
        self.generation += 100
        self.log, self.source = open_log(self.files, first_generation=self.generation)
        found = numbers_in(self.log)
        first = self.model.index(found[0]) if found else len(self.model)
        assert found == self.model[first : first + len(found)]
        assert first + len(found) >= self.safe, "acknowledged records are gone"
        self.model = self.model[: first + len(found)]
        self.safe = len(self.model)

    def settle(self) -> None:
        self.model += self.source.sent
        self.safe += len(self.source.acknowledged)
        self.source.sent.clear()
        self.source.acknowledged.clear()

    @rule(count=st.integers(1, 3), size=st.integers(16, 7000))
    def write(self, count: int, size: int) -> None:
        if self.log.room_bytes > 3 * SEGMENT_BYTES // 4:
            append(self.log, self.source, range(self.next_number, self.next_number + count), size)
            self.next_number += count
            self.settle()

    @rule()
    def tend(self) -> None:
        self.log.run_background_work()

    @rule()
    def let_go(self) -> None:
        self.log.anchors.set("model", at(self.log.durable_block))
        self.log.run_background_work()

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.settle()
        self.start()

    @rule()
    def kill(self) -> None:
        self.files = self.files.kill()
        self.start()

    @rule(seed=st.integers(0, 1 << 30))
    def cut_power(self, seed: int) -> None:
        self.files = self.files.power_cut(random.Random(seed))
        self.start()

    @rule(operation=st.integers(1, 12), size=st.integers(16, 7000), seed=st.integers(0, 1 << 30), power=st.booleans())
    def crash_while_writing(self, operation: int, size: int, seed: int, power: bool) -> None:
        from tests.wal.sim.simfiles import SimCrash

        self.files.crash_at(operation)
        try:
            if self.log.room_bytes > 3 * SEGMENT_BYTES // 4:
                append(self.log, self.source, [self.next_number], size)
            self.log.run_background_work()
        except SimCrash:
            pass
        self.next_number += 1
        self.settle()
        self.files = self.files.power_cut(random.Random(seed)) if power else self.files.kill()
        self.start()

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def holds_the_model(self) -> None:
        found = numbers_in(self.log)
        assert found == self.model[len(self.model) - len(found) :]
        assert self.log.recovered.groups.votes == {0: (1, 7)}


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
