"""What nodes of a simulated cluster have said to each other, and must still know when they start again.

One rule: a promise is noted when it leaves the node, and looked for in what its log says after a crash: a term, a vote, an entry
that was accepted or handed out as committed. Later entries may have replaced an accepted one, and then have a higher term.
"""

from __future__ import annotations

from cmdlog.raft.core import RaftCore
from cmdlog.raft.messages import AppendReply, Bundle, Campaign, Message, VoteReply, VoteRequest
from cmdlog.wal.group_state import GroupStates

Life = tuple[int, bytes]
"""A node and the incarnation of its disk: another one has promised nothing."""


class Promises:
    """Of all nodes."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Life, int], tuple[int, int]] = {}  # (life, group) -> term and index of an entry that is there
        self._terms: dict[tuple[Life, int], int] = {}
        self._votes: dict[tuple[Life, int, int], int] = {}  # (life, group, term) -> candidate

    def note(self, life: Life, group: int, message: Message | Bundle, core: RaftCore | None) -> None:
        """The message leaves the node, whose group is `core`."""
        if not isinstance(message, Message) or core is None:
            return
        place, term = (life, group), int(message.term)
        campaign = message.campaign if isinstance(message, VoteRequest | VoteReply) else Campaign.REAL
        if campaign is Campaign.PRE:
            return
        self._terms[place] = max(self._terms.get(place, 0), term)
        if isinstance(message, VoteRequest):
            self._vote(life, group, term, life[0])
        elif isinstance(message, VoteReply) and message.granted:
            self._vote(life, group, term, int(message.receiver))
        elif isinstance(message, AppendReply) and not message.rejected:
            self.note_entry(life, group, int(core.log.term_at(message.index) or 0), int(message.index))

    def note_entry(self, life: Life, group: int, term: int, index: int) -> None:
        """The node says that it has this entry."""
        self._entries[life, group] = max(self._entries.get((life, group), (0, 0)), (term, index))

    def check(self, life: Life, states: GroupStates) -> None:
        """Of a node that starts: its log knows what the node has said."""
        for (of, group), entry in self._entries.items():
            if of == life:
                state = states.state(group)
                found = (state.last_term, state.last_index)
                assert found >= entry, f"node {life[0]} said that group {group} has entry {entry}, and starts with {found}"
        for (of, group), term in self._terms.items():
            if of == life:
                assert states.state(group).term >= term, f"node {life[0]} spoke in term {term} of group {group}, and forgot it"

        for (of, group, term), candidate in self._votes.items():
            found_term, vote = states.votes.get(group, (0, None))
            if of == life and found_term == term:
                assert vote == candidate, f"node {life[0]} voted for {candidate} in term {term} of {group}, and knows {vote}"

    def _vote(self, life: Life, group: int, term: int, candidate: int) -> None:
        known = self._votes.setdefault((life, group, term), candidate)
        assert known == candidate, f"node {life[0]} votes for {known} and {candidate} in term {term} of group {group}"
