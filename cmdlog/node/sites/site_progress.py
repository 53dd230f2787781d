"""What a site is at, by the page that it shares with the node; and sites that make no progress: a call that runs long, a process
that is stopped, does not read, or has ended.

One rule: it only looks, from any thread. What is done about such a site, `call_timeout_s` later, the supervisor decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

BUSY, PARTITION, INDEX, POSITION, HANDLED, STEPS, READ = range(7)
"""Words of the progress page: HANDLED counts frames, STEPS those of captures; READ is the number of the read that runs, or 0."""
PAGE_WORDS: Final = READ + 1
NO_CALL: Final = (1 << 64) - 1  # as POSITION: the entry has no calls, and none can be left out
PROGRESS_BYTES: Final = 4096
VISIBLE_S: Final = 0.5  # without progress; status, probes and metrics show it from then on

StallKind = Literal["running", "stopped", "silent", "restarting"]
MEANINGS: Final[dict[str, str]] = {
    "running": "one call runs",
    "stopped": "the site's process is stopped",
    "silent": "the site's process does not read what it was sent",
    "restarting": "the site's process has ended, and a successor starts",
}


@dataclass(frozen=True, slots=True)
class SiteStall:
    """One site that makes no progress. `index` and `position` name the call, 0 and -1 where no logged call runs."""

    site: int
    kind: StallKind
    seconds: float
    partitions: Sequence[int]  # that wait for it: a site has one thread
    partition: int | None = None  # whose entry or read it is at
    index: int = 0
    position: int = -1


def position_of(page: Sequence[int] | memoryview) -> int:
    """Of the call that a progress page names; -1 where its entry has none."""
    return -1 if page[POSITION] == NO_CALL else page[POSITION]


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a debugger, has stopped the process; False when that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return fields.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])  # the name before it may hold anything


def describe_stall(kind: str, seconds: float, partitions: Sequence[int], procedure: str) -> str:
    """A sentence for people: "partition 3: reserve has been running for 4.2 s"."""
    where = f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}"
    if kind == "running" and procedure:
        return f"{where}: {procedure} has been running for {seconds:.1f} s"
    at = f", at {procedure}" if procedure else ""
    return f"{where}: no progress for {seconds:.1f} s{at}: {MEANINGS.get(kind, kind)}"
