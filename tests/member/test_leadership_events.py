"""What a member does at changes of leadership: whom its refusals name, who is answered, what begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.member.leading.leadership_events import NAMELESS_TICKS, LeadershipEvents
from cmdlog.node.outcome import CallRefused, NoLeader, NotLeading, NotReady, Reply
from cmdlog.node.sequencing.intake import Closed
from cmdlog.raft.configuration import NodeId

US, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)


class Parts:
    """Stand-ins that note what is done to them."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        note = self.done.append
        self.follows = True
        self.told: list[Reply] = []
        self.transfer = cast(Any, SimpleNamespace(target=None, end_offer=lambda: note("end offer")))
        machine = SimpleNamespace(
            run_marked=lambda partitions: note(("run", list(partitions))), follow=lambda: [self.told.append], partitions=[0, 1]
        )
        self.admission = SimpleNamespace(refusal=None)

        def step_down(refusal: CallRefused, _why: str) -> int:
            self.refuse(Closed.LEADER, refusal)
            return 3

        self.sequencer: Any = SimpleNamespace(
            admission=self.admission, intake=SimpleNamespace(refuse=self.refuse), replicated=SimpleNamespace(step_down=step_down)
        )
        marks = SimpleNamespace(lead=lambda: note("lead"), follow=lambda: note("follow"))
        parts: tuple[Any, ...] = (US, lambda node: f"http://node{node}", machine, self.sequencer, marks)
        self.events = LeadershipEvents(
            *parts, take_over=lambda terms: note(("take over", terms)), transfer=self.transfer,
        )  # fmt: skip

    def refuse(self, _reason: Closed, refusal: CallRefused) -> None:
        self.admission.refusal = refusal

    def named(self) -> tuple[type, dict[str, Any]]:
        """What calls are refused with."""
        return type(self.admission.refusal), self.admission.refusal.more()

    def see(self, leader: NodeId | None, ticks: int = 0) -> tuple[type, dict[str, Any]]:
        self.events.name_leader(leader, follows=self.follows, ticks=ticks)
        return self.named()


@pytest.fixture
def parts() -> Parts:
    """A node that follows nobody yet."""
    made = Parts()
    made.refuse(Closed.LEADER, NoLeader("none yet"))
    return made


def test_leading_begins_with_what_is_committed(parts: Parts) -> None:
    """The take-over begins, which runs it; until then calls are refused."""
    parts.events.begin_leading((3, 4))
    assert parts.done == [("take over", (3, 4))]
    assert parts.named() == (NotLeading, {})


def test_lost_leadership_answers_whoever_waits(parts: Parts) -> None:
    """Calls are sent to who leads now."""
    parts.events.end_leading(OTHER, "")
    assert parts.done == ["follow", "end offer"]
    assert [type(reply) for reply in parts.told] == [NotReady]
    assert parts.named() == (NotLeading, {"leader": "http://node2"})


def test_leadership_that_was_offered_is_looked_for_at_the_successor(parts: Parts) -> None:
    """It has begun its campaign; nobody has told that it won."""
    parts.transfer.target = OTHER
    parts.events.end_leading(None, "")
    assert parts.named() == (NotLeading, {"leader": "http://node2"})
    parts.transfer.target = None
    parts.events.end_leading(None, "")
    assert parts.named() == (NoLeader, {})


def test_another_leader_is_named_at_once(parts: Parts) -> None:
    """Not a tick later."""
    assert parts.see(OTHER) == (NotLeading, {"leader": "http://node2"})
    assert parts.see(THIRD) == (NotLeading, {"leader": "http://node3"})


def test_between_two_leaders_the_last_one_is_named_for_a_while(parts: Parts) -> None:
    """It knows its successor when leadership was handed over; when it is gone there is no leader."""
    parts.see(OTHER)
    assert parts.see(None) == (NotLeading, {"leader": "http://node2"})
    assert parts.see(None, NAMELESS_TICKS - 1) == (NotLeading, {"leader": "http://node2"})
    assert parts.see(None, 1) == (NoLeader, {})
    assert parts.see(OTHER) == (NotLeading, {"leader": "http://node2"})
    assert parts.see(None, NAMELESS_TICKS - 1) == (NotLeading, {"leader": "http://node2"}), "counted anew"


def test_other_refusals_stay(parts: Parts) -> None:
    """A node that has failed, or takes calls, names nobody."""
    parts.refuse(Closed.NODE, NotReady("the node must be restarted"))
    assert parts.see(OTHER) == (NotReady, {})
    parts.refuse(Closed.LEADER, NoLeader("none"))
    parts.follows = False
    assert parts.see(OTHER) == (NoLeader, {})
