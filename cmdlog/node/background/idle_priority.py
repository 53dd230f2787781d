"""Work of other processes in the time that nobody else wants: how it begins, and when it has waited long enough.

One rule: what makes way for others must not be what others wait for. Being nice is not enough: what wakes up waits for the end of
a nice process's slice, 3 ms, and the p99 of calls at half load was half as long again. A process of SCHED_IDLE makes way, if it
rests often (`snapshot.background_io`), but gets nothing where others want all there is, and cannot be raised again without
privilege. So it is given up, and a nice one begins again: when the log cannot wait any longer, or when it takes longer than its
bytes should.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

IDLE_S: Final = 10.0  # of one that takes only time that nobody else wants, beside what its bytes need …
ASKED_S: Final = 2.0  # … the same of one that somebody waits for …
IDLE_BYTES_PER_S_MIN: Final = 5e6  # … a fifth of what a free core does; slower, it may never end on a machine that is always busy

T = TypeVar("T")


def idle_first(
    run: Callable[[int, Callable[[], bool]], T | None],
    *,
    size_bytes: int,
    pressing: Callable[[], bool],
    timeout_s: float,
    asked: bool = False,
    again: Callable[[], bool] = lambda: True,
) -> T | None:
    """What `run(policy, given_up)` makes of it, with SCHED_IDLE first unless it presses, then like everybody else.

    `run` returns None when it was given up, and has ended what it began. `asked`: somebody has asked for it, and waits.
    `again` is asked whether there is still something to do.
    None: it took too long, or there was nothing more to do.
    """
    if not pressing():
        end = time.monotonic() + (ASKED_S if asked else IDLE_S) + size_bytes / IDLE_BYTES_PER_S_MIN
        done = run(os.SCHED_IDLE, lambda: pressing() or time.monotonic() > end)
        if done is not None or not again():
            return done
    end = time.monotonic() + timeout_s
    return run(os.SCHED_OTHER, lambda: time.monotonic() > end)
