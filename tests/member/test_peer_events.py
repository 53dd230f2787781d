"""Time and messages of a member: silent until all first members have met it, deaf to a life that is over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cluster.transport.peer_transport import NoticeKind, PeerNotice
from cmdlog.member.peer_events import LOOK_TICKS, PeerEvents
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.group_state import GroupStates

PEER = NodeId(2)


class Heard:
    """Everything that a member's parts are given, in order."""

    def __init__(self) -> None:
        self.hears = True
        self.confirmed = {PEER}
        self.lineage = SimpleNamespace(is_asked_for=False)
        self.calls: list[str] = []
        called = self.calls.append
        driver = SimpleNamespace(
            lock=threading.RLock(), groups=SimpleNamespace(cores={}), tick=lambda: called("driver"),
            receive=lambda of: called(f"got {of}"), pending_bytes=0,
        )  # fmt: skip
        consensus: Any = SimpleNamespace(
            driver=driver, marks=SimpleNamespace(waits=False), network=SimpleNamespace(book=self),
            ground=SimpleNamespace(cluster=SimpleNamespace(members=[1, 2])),
        )  # fmt: skip
        leading: Any = SimpleNamespace(
            note_ticks=lambda ticks: None, look_at_fitness=lambda: called("fitness"),
            look_at_lineage=lambda: called("lineage"), lineage=self.lineage, meet_peer=lambda peer: called(f"met {peer}"),
            commits=SimpleNamespace(check_commits=lambda: called("commits")), leadership=SimpleNamespace(leader=None),
        )  # fmt: skip
        membership: Any = SimpleNamespace(note_ticks=lambda ticks: called("members"), hears=lambda peer: self.hears)
        wal: Any = SimpleNamespace(room_bytes=1 << 20, recovered=SimpleNamespace(groups=GroupStates()))
        life: Any = SimpleNamespace(note_ticks=lambda ticks, **_: called(f"passed {ticks}"))
        reads: Any = SimpleNamespace(tick=lambda ticks: called(f"tick {ticks}"), begin_waiting=lambda: called("reads"))
        progress: Any = SimpleNamespace(tick=lambda ticks: None)
        self.events = PeerEvents(
            consensus, leading, membership, wal, life=life, reads=reads, progress=progress, hold_log=lambda: called("log")
        )  # fmt: skip


@pytest.fixture
def heard() -> Heard:
    """All first members have met it."""
    return Heard()


def test_a_stranger_says_and_hears_nothing(heard: Heard) -> None:
    """Time passes all the same; once it speaks, it does so for good."""
    heard.confirmed = set()
    heard.events.on_tick(3)
    heard.events.on_messages(PEER, [])
    assert heard.calls == ["passed 3", "lineage"]
    heard.confirmed = {PEER}
    heard.events.on_tick(1)
    heard.confirmed = set()
    heard.events.on_messages(PEER, [])
    assert heard.events.speaks
    assert heard.calls[2:] == ["passed 1", "lineage", "driver", "tick 1", "members", "got []", "reads"]


def test_a_start_is_silent_until_each_peer_was_called(heard: Heard) -> None:
    """One of them may have met a later start of this disk: it says so before this node votes."""
    heard.lineage.is_asked_for = True
    heard.events.on_tick(1)
    heard.events.on_messages(PEER, [])
    assert (heard.events.speaks, heard.calls) == (False, ["passed 1", "lineage"])
    heard.lineage.is_asked_for = False
    heard.events.on_tick(1)
    assert heard.events.speaks


def test_a_life_that_is_over_is_not_heard(heard: Heard) -> None:
    """From its entry on; the others are."""
    heard.events.on_tick(1)
    heard.hears = False
    heard.events.on_messages(PEER, [])
    assert "got []" not in heard.calls


def test_a_peer_is_met_whenever_it_can_be_reached_again(heard: Heard) -> None:
    """Not when it is lost: it may have said that it stops."""
    for kind in NoticeKind:
        heard.events.on_notice(PeerNotice(kind, PEER))
    assert [call for call in heard.calls if call != "lineage"] == ["met 2"]
    assert heard.calls.count("lineage") == len(NoticeKind)


def test_the_log_is_held_once_a_second(heard: Heard) -> None:
    """However many ticks come at once."""
    heard.events.on_tick(LOOK_TICKS - 1)
    assert "log" not in heard.calls
    heard.events.on_tick(1)
    assert heard.calls[-4:] == ["log", "lineage", "fitness", "commits"]
    assert heard.calls.count("driver") == LOOK_TICKS
