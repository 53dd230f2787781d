"""Why a site ended, what is done about it, and how it is tried again when no other try would help at once.

One rule: decisions only; the supervisor acts on them. The watch thread owns everything here, but for `SiteOutage.note_applied`,
and for `ReadSuspects`, which belongs to the lock of the reads.
"""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

FULL: Final = "disk_full"
DIVERGED: Final = "diverged"  # from the other nodes' state; no site can change that
RETRY_S: Final = 1.0  # before the first try of a site that cannot run; each further one waits twice as long
RETRY_MAX_S: Final = 10.0
ROOM_BYTES: Final = 1 << 20  # that came free since the last try are worth another one at once
LASTING: Final = (FULL, "io", "refused")  # faults that another try at once would meet again
OWN_SIGNALS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
"""What a process is ended by for what it does itself; others are sent by an operator, or by the out-of-memory killer."""
SUSPECTS_MAX: Final = 16  # reads at which a site ended; a read that is forgotten is refused once more before it fails


@dataclass(frozen=True, slots=True)
class SiteFault:
    """Why a site ended. `kind` is one of the executor's environment faults, `refused` (it does not fit), `died` or `hung`."""

    kind: str
    message: str
    partition: int | None = None
    index: int = 0  # of the entry that it was at; 0 = none: it was reading, or idle
    position: int = 0  # of the call in the entry; -1 = none of them: the batch as a whole
    attempts: int = 1  # at the call, by this run of the node; known when the call is skipped
    read: int = 0  # the node's number for the read that ran; 0 = none
    signal: int = 0  # that ended it, or had stopped it; 0 = none

    def why_skipped(self, procedure: str) -> str:
        """A sentence for people. It is no part of the outcome, which every replay has to repeat to the byte."""
        tried = f"{procedure} was left out after {self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{tried}: {'its site process ended, ' if self.kind == 'died' else ''}{self.message}"

    def why_failed(self, procedure: str) -> str:
        """A sentence for people about the read that ran."""
        return f"{procedure} {'was stopped' if self.kind == 'hung' else 'ended its site process'}: {self.message}"


class Remedies:
    """What is done before a successor starts. Only a call that ran as part of an entry can be skipped, and only once."""

    def __init__(self, *, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._deaths: Counter[tuple[int, int, int]] = Counter()  # per partition, index, position
        self._skipped: set[tuple[int, int, int]] = set()

    def attempts_at(self, fault: SiteFault) -> int:
        """How often a site has ended at the call."""
        return self._deaths[fault.partition or 0, fault.index, fault.position]

    def choose(self, fault: SiteFault) -> Literal["restart", "skip", "wait"]:
        """Counts the fault."""
        if fault.kind in LASTING:
            return "wait"
        if fault.partition is None or not fault.index:
            return "restart"
        where = (fault.partition, fault.index, fault.position)
        self._deaths[where] += 1
        if fault.kind != "hung" and self._deaths[where] < self._restarts_max:
            return "restart"
        if fault.position < 0 or where in self._skipped:
            return "wait"
        self._skipped.add(where)
        return "skip"


class ReadSuspects:
    """Which read has ended its site, so that its caller gets a failure instead of a refusal, which clients repeat.

    it ran too long; it ended the process by itself                  -> at once
    a signal that others send, a fault of the machine such as memory -> when the same read was running the last time, too
    a fault that lasts, which another call would have met            -> never
    """

    def __init__(self) -> None:
        self._reads: dict[tuple[int, bytes], None] = {}  # partition and call, the oldest first; none was answered since

    def is_to_blame(self, fault: SiteFault, partition: int, calls: bytes) -> bool:
        """Whether the read that ran has ended its site; remembers one that may have."""
        if fault.kind in LASTING:
            return False
        if fault.kind in ("hung", "died") and fault.signal in (0, *OWN_SIGNALS):
            return True
        again = (partition, calls) in self._reads
        self._reads[partition, calls] = None
        if len(self._reads) > SUSPECTS_MAX:
            del self._reads[next(iter(self._reads))]
        return again

    def acquit(self, partition: int, calls: bytes) -> None:
        """The read was answered."""
        if self._reads:
            self._reads.pop((partition, calls), None)


class OutageStage(Enum):
    """Where a site is that cannot run its next batch."""

    DOWN = auto()  # no site; the next try is due later
    READ_ONLY = auto()  # a successor serves reads, and gets no batch before the next try
    TRYING = auto()  # a successor was given the batch, or is about to start for it
    OVER = auto()  # the batch is applied, or a successor serves although no batch was to blame


class SiteOutage:
    """From the first fault until a successor has run what the site could not.

        DOWN -> READ_ONLY (full volume alone) -> TRYING -> OVER
    A fault leads back to DOWN from anywhere, also from OVER: that end was seen by the reader, and not acted on yet.
    """

    def __init__(self, fault: SiteFault, now: float, *, give_up_after_s: float) -> None:
        self.fault, self.stage, self.tries = fault, OutageStage.DOWN, 0
        self._due = self._free_bytes = 0.0  # when the next try is; room of the volume when it was tried last
        self._give_up_at = now + give_up_after_s

    def fail(self, fault: SiteFault, now: float, *, free_bytes: int) -> None:
        """The site cannot run, once more: it is tried again later."""
        self.fault, self.stage = fault, OutageStage.DOWN
        self.tries += 1
        self._due, self._free_bytes = now + pause_s(self.tries), free_bytes

    def start(self, positions: Mapping[int, int], *, held: bool) -> None:
        """A successor has these positions; one that is `held` gets no batch yet."""
        fault = self.fault
        applied = fault.partition is None or positions[fault.partition] >= fault.index
        if applied and (not held or fault.index):
            self.stage = OutageStage.OVER
        else:
            self.stage = OutageStage.READ_ONLY if held else OutageStage.TRYING

    def note_applied(self, partition: int, index: int) -> None:
        """A site has applied an entry; called by the reader."""
        if partition == self.fault.partition and index >= self.fault.index:
            self.stage = OutageStage.OVER

    def give_up(self, now: float) -> bool:
        """Whether callers of what is logged have waited long enough; once."""
        due = now > self._give_up_at
        if due:
            self._give_up_at = math.inf
        return due

    def begin_try(self, now: float, free_bytes: Callable[[], int]) -> OutageStage | None:
        """The stage that a due try begins from, which is TRYING afterwards; None when none is due."""
        before = self.stage
        if before not in (OutageStage.DOWN, OutageStage.READ_ONLY):
            return None
        if now < self._due and not self._room_came(now, free_bytes):
            return None
        self.stage = OutageStage.TRYING
        if before is OutageStage.READ_ONLY and not self.fault.index:
            self.stage = OutageStage.OVER  # it was at no batch: a successor that serves reads has done what there is to do
        return before

    def _room_came(self, now: float, free_bytes: Callable[[], int]) -> bool:
        early = self._due - pause_s(self.tries) + pause_s(1)
        return self.fault.kind == FULL and now >= early and free_bytes() >= self._free_bytes + ROOM_BYTES


def pause_s(tries: int) -> float:
    """How long to wait after so many tries without success, one at least."""
    return min(RETRY_S * float(1 << min(tries - 1, 30)), RETRY_MAX_S)
