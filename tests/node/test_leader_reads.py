"""A read waits for a majority; what consensus does not take is no answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from cmdlog.cluster.replication import Replication
from cmdlog.node.member.leader_reads import LeaderReads
from cmdlog.node.member.member_ground import NoLeader
from cmdlog.node.member.sequenced_machine import SequencedMachine
from cmdlog.raft import ProposalRefused, Refusal


class Consensus:
    """Driver and machine at once: says `answer` to each read, or refuses."""

    def __init__(self, answer: bool | None) -> None:
        self.answer, self.lock = answer, threading.RLock()
        self.waiting: dict[int, Callable[[bool], None]] = {}

    def ask(self, group: int, request: Any) -> None:
        if self.answer is None:
            raise ProposalRefused(Refusal.NOT_LEADER)
        for done in list(self.waiting.values()):
            done(self.answer)
        self.waiting.clear()

    def await_read(self, done: Callable[[bool], None]) -> int:
        self.waiting[1] = done
        return 1

    def forget_read(self, context: int) -> None:
        del self.waiting[context]


@pytest.mark.parametrize("answer", [True, False, None])
def test_read_knows_whether_this_node_leads(answer: bool | None) -> None:
    """Each read is answered once; a query that is not confirmed is refused by name."""
    consensus, heard = Consensus(answer), list[bool]()
    reads = LeaderReads(cast(Replication, consensus), cast(SequencedMachine, consensus))
    reads.confirm(heard.append)
    assert heard == [bool(answer)]
    assert not consensus.waiting
    if answer:
        reads.wait_until_confirmed()
    else:
        with pytest.raises(NoLeader, match="safe to repeat"):
            reads.wait_until_confirmed()
