"""What nodes of a simulated cluster have said to each other, and must still know when they start again.

One rule: a promise is noted when it leaves the node, and looked for in what its log says after a crash: a term, a vote, an entry
that was accepted or handed out as committed. Later entries may have replaced an accepted one, and then have a higher term.
"""

from __future__ import annotations

from cmdlog.raft.core import RaftCore
from cmdlog.raft.messages import AppendReply, Bundle, Campaign, Message, VoteReply, VoteRequest
from cmdlog.wal.group_state import GroupStates


class Promises:
    """Of all nodes."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}  # (node, group) -> term and index of an entry that is there
        self._terms: dict[tuple[int, int], int] = {}
        self._votes: dict[tuple[int, int, int], int] = {}  # (node, group, term) -> candidate

    def note(self, node: int, group: int, message: Message | Bundle, core: RaftCore | None) -> None:
        """The message leaves the node, whose group is `core`."""
        if not isinstance(message, Message) or core is None:
            return
        place, term = (node, group), int(message.term)
        campaign = message.campaign if isinstance(message, VoteRequest | VoteReply) else Campaign.REAL
        if campaign is Campaign.PRE:
            return
        self._terms[place] = max(self._terms.get(place, 0), term)
        if isinstance(message, VoteRequest):
            self._vote(node, group, term, node)
        elif isinstance(message, VoteReply) and message.granted:
            self._vote(node, group, term, int(message.receiver))
        elif isinstance(message, AppendReply) and not message.rejected:
            self.note_entry(node, group, int(core.log.term_at(message.index) or 0), int(message.index))

    def note_entry(self, node: int, group: int, term: int, index: int) -> None:
        """The node says that it has this entry."""
        self._entries[node, group] = max(self._entries.get((node, group), (0, 0)), (term, index))

    def check(self, node: int, states: GroupStates) -> None:
        """Of a node that starts: its log knows what the node has said."""
        for (of, group), entry in self._entries.items():
            if of == node:
                state = states.state(group)
                found = (state.last_term, state.last_index)
                assert found >= entry, f"node {node} said that group {group} has entry {entry}, and starts with {found}"
        for (of, group), term in self._terms.items():
            if of == node:
                assert states.state(group).term >= term, f"node {node} spoke in term {term} of group {group}, and forgot it"

        for (of, group, term), candidate in self._votes.items():
            found_term, vote = states.votes.get(group, (0, None))
            if of == node and found_term == term:
                assert vote == candidate, f"node {node} voted for {candidate} in term {term} of group {group}, and knows {vote}"

    def _vote(self, node: int, group: int, term: int, candidate: int) -> None:
        known = self._votes.setdefault((node, group, term), candidate)
        assert known == candidate, f"node {node} votes for {known} and {candidate} in term {term} of group {group}"
