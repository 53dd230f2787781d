"""What a leader may send to one follower, and what late and repeated answers may change."""

from __future__ import annotations

from cmdlog.raft import Configuration, RaftSettings, SnapshotDescriptor
from cmdlog.raft.configuration import nodes
from cmdlog.raft.progress import FollowerProgress, Sending
from cmdlog.wal.ids import Index, Term


def a_progress(following: int = 9, *, messages_max: int = 2, bytes_max: int = 100) -> FollowerProgress:
    """A follower of which nothing is known yet; the log ends at `following`."""
    return FollowerProgress(Index(following), heard=0, messages_max=messages_max, bytes_max=bytes_max)


def replicating(match: int = 5) -> FollowerProgress:
    """A follower whose log meets the leader's at `match`."""
    progress = a_progress()
    progress.accepted(Index(match))
    progress.replicate()
    return progress


def test_a_probe_is_one_message_at_a_time() -> None:
    """After a probe was sent, nothing more goes until there is an answer; next stays where it was."""
    progress = a_progress()
    assert progress.open
    progress.sent(Index(12), 10)
    assert (progress.open, progress.next) == (False, 10)


def test_a_probe_is_a_small_message() -> None:
    """A follower whose log is full takes nothing of it, and is sent it again with each sign of life."""
    settings, small = RaftSettings(append_bytes_max=1000, probe_bytes_max=100), RaftSettings(append_bytes_max=10)
    assert (a_progress().message_bytes_max(settings), replicating().message_bytes_max(settings)) == (100, 1000)
    assert a_progress().message_bytes_max(small) == 10


def test_a_probe_rejected_goes_back_to_the_hint() -> None:
    """The next probe is behind the highest index that could match, and always lower than the rejected one."""
    progress = a_progress()
    progress.sent(Index(12), 10)
    assert progress.rejected(Index(9), Index(4))
    assert (progress.next, progress.open) == (5, True)
    assert progress.rejected(Index(4), Index(4))
    assert progress.next == 4


def test_a_stale_rejection_of_a_probe_is_ignored() -> None:
    """A rejection speaks of one probe; any other index is of an older one."""
    progress = a_progress()
    assert not progress.rejected(Index(7), Index(1))
    assert progress.next == 10


def test_a_probe_never_goes_back_behind_the_match() -> None:
    """What was acknowledged once is durable there, whatever a hint says."""
    progress = a_progress()
    progress.accepted(Index(6))
    progress.probe()
    progress.next = Index(8)
    assert progress.rejected(Index(7), Index(2))
    assert progress.next == 7


def test_match_never_falls_and_repeated_answers_are_no_news() -> None:
    """Acknowledgements come in any order."""
    progress = replicating(5)
    assert progress.accepted(Index(8))
    assert not progress.accepted(Index(8))
    assert not progress.accepted(Index(6))
    assert (progress.match, progress.next) == (8, 9)


def test_the_window_closes_by_messages_and_by_bytes_and_opens_with_answers() -> None:
    """A slow follower holds back what is sent to it."""
    progress = replicating(5)
    progress.sent(Index(6), 1)
    progress.sent(Index(7), 1)
    assert (progress.open, progress.next) == (False, 8)
    progress.accepted(Index(6))
    assert progress.open
    progress.sent(Index(8), 99)
    assert (progress.open, progress.in_flight_bytes) == (False, 100)
    progress.accepted(Index(8))
    assert (progress.open, progress.in_flight_bytes) == (True, 0)


def test_a_rejection_while_replicating_means_a_loss_and_goes_back_to_the_match() -> None:
    """Something under way was lost: the follower is probed from what it acknowledged last."""
    progress = replicating(5)
    progress.sent(Index(8), 1)
    assert progress.rejected(Index(8), Index(5))
    assert (progress.sending, progress.next, progress.in_flight_bytes) == (Sending.PROBE, 6, 0)


def test_a_stale_rejection_while_replicating_is_ignored() -> None:
    """A rejection at or below the match is older than the acknowledgement."""
    progress = replicating(5)
    assert not progress.rejected(Index(5), Index(1))
    assert progress.sending is Sending.REPLICATE


def test_a_copy_closes_the_window_and_ends_with_a_probe_or_a_match() -> None:
    """While a follower copies a snapshot it is sent no entries; the log behind the snapshot follows."""
    progress = a_progress()
    manifest = SnapshotDescriptor(Index(50), Term(2), Configuration(voters=nodes((1,))))
    progress.copy(manifest)
    assert (progress.open, progress.next, progress.manifest) == (False, 51, manifest)
    assert not progress.rejected(Index(50), Index(4))
    progress.accepted(Index(50))
    progress.replicate()
    assert (progress.open, progress.next, progress.manifest) == (True, 51, None)


def test_a_rejection_of_what_was_acknowledged_brings_no_message() -> None:
    """A disk that lost it will not take it any better the next moment; every such answer, some twice, would bring another."""
    progress = replicating(match=5)
    progress.probe()
    progress.sent(Index(12), 10)
    assert not progress.rejected(Index(5), Index(0))
    assert (progress.open, progress.match, progress.next) == (False, 5, 6)
