"""Times and limits of one group's consensus, and how slow disks and ways turn out to be.

One rule: time is counted in ticks, which the caller gives; every limit has a name, a unit and a reason. What was seen makes waits
longer, never shorter, and by two election time-outs at most: a campaign is not given up while its answers are on their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REMEMBERED_TICKS: Final = 300  # half a minute: the next election may come long after the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """The same on all nodes of a group, except `patience`; mixed values cost liveness at most."""

    election_ticks: int = 10  # a follower waits for between one and two of these before it campaigns
    heartbeat_ticks: int = 1  # must be well below election_ticks, so that one lost heartbeat costs no election
    pre_vote: bool = True  # ask before a term is spent on a campaign (dissertation, section 9.6)
    check_quorum: bool = True  # a leader that hears no majority steps down; voters shield a leader that they hear from
    patience: int = 0  # election time-outs to wait longer than others: a hint where leaders should rather not be
    append_entries_max: int = 1024  # of one message: bounds the work of one step
    append_bytes_max: int = 1 << 20  # of one message, unless its first entry alone is larger
    probe_bytes_max: int = 64 << 10  # likewise, to a follower that may not take it: a full one is sent it again and again
    window_messages_max: int = 64  # under way to one follower
    window_bytes_max: int = 8 << 20  # under way to one follower: a slow one costs this much memory of its socket, not more
    entry_bytes_max: int = 8 << 20  # of one payload; a batch of the log has 1 MiB
    ready_bytes_max: int = 8 << 20  # of the entries to write, and of those to apply, in one Ready, unless the first is larger
    ready_entries_max: int = 1 << 16  # likewise: entries may be empty
    proposed_bytes_max: int = 64 << 20  # proposed and not yet committed; beyond, proposals are refused
    proposed_entries_max: int = 1 << 18  # likewise: payloads may be empty
    log_bytes_max: int = 64 << 20  # payloads in memory; older ones, durable and handed out, are read from the caller's log
    fetch_bytes_max: int = 4 << 20  # of what is read there at once, unless its first entry is larger
    undurable_bytes_max: int = 64 << 20  # appended and not durable on the leader's own disk; beyond, proposals are refused
    reads_max: int = 16_384  # reads without an answer yet
    read_ticks: int = 20  # a follower's read that its leader has not answered is given up
    transfer_ticks: int = 10  # a transfer that has not succeeded is given up, and proposals are taken again
    copy_ticks_max: int = 12_000  # entries after a snapshot are kept so long for a follower that copies it
    copy_bytes_max: int = (
        256 << 20
    )  # entries after a snapshot that are kept for such a follower, though a later snapshot has them
    promotion_entries_max: int = 1_000  # a learner this close to the leader's end may become a voter

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeat_ticks {self.heartbeat_ticks} must be below election_ticks {self.election_ticks}")


class Pace:
    """In ticks, as far as one group has seen. Invariant: none is negative.

    sync        from a write's begin to its end, its place in the queue included
    answer      from a question about votes to the answer that decided it: the way there and back, and a voter's sync
    undecided   campaigns in a row that ended without an answer: some voter is slower than all that was seen here
    """

    __slots__ = ("_answer_seen", "_most", "_step", "_sync_seen", "answer_ticks", "sync_ticks", "undecided")

    def __init__(self, election_ticks: int) -> None:
        self._most = 2 * election_ticks
        self._step = election_ticks // 2
        self.sync_ticks = self.answer_ticks = self.undecided = 0
        self._sync_seen = self._answer_seen = 0  # the tick at which the slowest one was seen

    def note_sync(self, took: int, now: int) -> None:
        """A write took so long."""
        if took >= self.sync_ticks or now - self._sync_seen > REMEMBERED_TICKS:
            self.sync_ticks, self._sync_seen = took, now

    def note_answer(self, took: int, now: int) -> None:
        """An answer took so long."""
        if took >= self.answer_ticks or now - self._answer_seen > REMEMBERED_TICKS:
            self.answer_ticks, self._answer_seen = took, now

    @property
    def extra_ticks(self) -> int:
        """What a wait for votes has beside its election time-out."""
        return min(self.sync_ticks + self.answer_ticks + self.undecided * self._step, self._most)

    @property
    def stall_ticks(self) -> int:
        """What a write may take beside an election time-out before the disk counts as stalled: there may be one before it."""
        return min(2 * self.sync_ticks, self._most)
