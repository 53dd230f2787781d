"""Tests of what a node asks its replicator, alone or as a member."""

import inspect

import pytest

from cmdlog.member.member import Member
from cmdlog.node.replicator import Alone, Replicator

QUESTIONS = (
    "call", "call_many", "call_encoded", "confirm_query", "check_point", "start_log", "attach", "hand_over", "stop", "finish",
)  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_member_answers_every_question(name: str) -> None:
    """With the same parameters."""
    assert inspect.signature(getattr(Member, name)) == inspect.signature(getattr(Replicator, name))


def test_the_questions_are_those_of_the_protocol() -> None:
    """None is left out above."""
    asked = {name for name, value in vars(Replicator).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert asked == set(QUESTIONS)


def test_a_node_alone_hands_nothing_over() -> None:
    """And promises both durabilities: what is durable is committed."""
    assert not Alone.hand_over(None)  # type: ignore[arg-type]
    assert tuple(Alone.durabilities) == ("sync", "async")
    assert tuple(Member.durabilities) == ("sync",)
