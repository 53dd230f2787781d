"""The decimal context that calls run in: the values that Python documents as its default, whatever the process has.

Python keeps a decimal context per thread, and a module of the application may set it while it is imported. A call would then
depend on the thread that runs it, and on which other versions of the code were loaded there before.

One rule: every batch, read and migration begins with a context of its own, and the calling thread has its own back after it.

The context is of the batch, not of the call: another copy for each call costs a twentieth of a small one. So what a call sets by
`decimal.getcontext()`, and the flags that it raises, are seen by the later calls of its batch. A replay sees them too: the log
holds batches, one that is cut keeps its first calls, and one that runs a second time begins with a new context. `cmdlog check`
refuses such a call; `decimal.localcontext` ends where its block does.

The same holds while a version's modules are loaded, so that they leave nothing to those of another version.

Versions of the code whose CATALOG record does not state it (`VersionFacts.standard_decimals`) keep the context of the thread:
that is how their calls ran.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from decimal import ROUND_HALF_EVEN, Context, DivisionByZero, InvalidOperation, Overflow, localcontext
from functools import partial
from typing import Final

from procedures.request_history import VersionFacts

# Every value is given: what is left out could come from `decimal.DefaultContext`, which a module may change.
_STANDARD: Final = Context(
    prec=28,
    rounding=ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    capitals=1,
    clamp=0,
    flags=[],
    traps=[InvalidOperation, DivisionByZero, Overflow],
)
_OF_THE_THREAD: Final = nullcontext()

Decimals = Callable[[], AbstractContextManager[object]]  # each call gives a block with a context of its own

standard_decimals: Final[Decimals] = partial(localcontext, _STANDARD)  # in C: a copy, and the way back; 0.5 us


def decimals_of(facts: VersionFacts) -> Decimals:
    """What the calls of this version run in."""
    return standard_decimals if facts.standard_decimals else _decimals_of_the_thread


def _decimals_of_the_thread() -> AbstractContextManager[object]:
    return _OF_THE_THREAD
