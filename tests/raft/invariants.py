"""What must always hold, each with its place in the paper ("In Search of an Understandable Consensus Algorithm", extended
version) or in Ongaro's dissertation.

One rule: nothing in here is needed to run; simulations and tests call it after every event.
`check_invariants` is about one core; `check_group` compares the cores of one group at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cmdlog.raft.errors import InvariantBroken
from cmdlog.raft.progress import Sending
from cmdlog.raft.ready import Role
from cmdlog.raft.state import State
from cmdlog.wal.ids import Index


def _marks_in_order(state: State) -> bool:
    log = state.log
    return log.base <= log.held <= log.handed <= min(log.commit, log.stable) and log.stable <= log.taken <= log.last >= log.commit


def _columns_agree(state: State) -> bool:
    log = state.log
    return log.last - log.base == len(log.terms) == len(log.kinds) and log.last - log.held == len(log.payloads)


def _sizes_are_counted(state: State) -> bool:
    log = state.log
    above = sum(map(len, log.payloads[log.taken - log.held :]))
    return log.held_bytes == sum(size for _, size in log.sizes) and log.untaken_bytes == above


def _marks_of_the_end_agree(state: State) -> bool:
    log = state.log
    return log.last_term == (log.terms[-1] if log.terms else log.base_term)


def _terms_rise(state: State) -> bool:
    terms = [state.log.base_term, *state.log.terms, state.term]
    return terms == sorted(terms)


def _writes_in_order(state: State) -> bool:
    log = state.log
    proofs = [*(write.proves for write in log.writes), log.taken]
    numbers = [*(write.number for write in log.writes), state.write_number]
    return proofs == sorted(proofs) and numbers == sorted(numbers)


def _configurations_follow_the_log(state: State) -> bool:
    log = state.log
    at = [index for index, _ in log.configurations]
    return at == sorted(set(at)) and at[0] <= log.base and at[-1] <= log.last and all(index > log.base for index in at[1:])


def _one_configuration_uncommitted(state: State) -> bool:
    """Two above a follower's commit mark are normal: the mark comes late. The leader of the term knows better."""
    pending = sum(index > state.log.commit for index, _ in state.log.configurations)
    return state.role is not Role.LEADER or not state.term_committed or pending <= 1


def _reachable_by_log_or_snapshot(state: State) -> bool:
    return state.manifest.index >= state.log.base


def _candidates_voted_for_themselves(state: State) -> bool:
    return state.role not in {Role.CANDIDATE, Role.LEADER} or state.vote == state.id


def _campaigners_may(state: State) -> bool:
    """A leader may have appended its own removal, and then leads until that is committed; a pre-candidate may not."""
    if state.role in {Role.PRE_CANDIDATE, Role.CANDIDATE}:
        return state.promotable
    return state.role is not Role.LEADER or state.enfranchised


def _leaders_know_themselves(state: State) -> bool:
    return (state.role is Role.LEADER) == (state.leader == state.id)


def _leader_has_its_term(state: State) -> bool:
    return state.role is not Role.LEADER or state.log.last_term == state.term


def _progress_is_of_members(state: State) -> bool:
    members = set(state.configuration.members()) - {state.id}
    order = list(state.progress)
    return order == sorted(order) and (members <= set(order) if state.role is Role.LEADER else not order)


def _progress_is_possible(state: State) -> bool:
    return all(0 <= each.match < each.next and each.match <= state.log.last for each in state.progress.values())


def _copies_are_kept_for(state: State) -> bool:
    copying = [each for each in state.progress.values() if each.sending is Sending.SNAPSHOT]
    manifests = [each.manifest for each in state.progress.values() if each.manifest is not None]
    return len(copying) == len(manifests) and all(manifest.index >= state.log.base for manifest in manifests)


def _windows_are_counted(state: State) -> bool:
    return all(
        each.in_flight_bytes == sum(size for _, size in each.in_flight) and len(each.in_flight) <= each.messages_max
        for each in state.progress.values()
    )


def _proposed_is_counted(state: State) -> bool:
    return state.proposed_bytes == sum(size for _, size in state.proposed) and (state.role is Role.LEADER or not state.proposed)


def _reads_are_counted(state: State) -> bool:
    reads = state.reads
    parked = sum(len(contexts) for _, contexts in reads.parked)
    rounds = [read.round for read in reads.waiting]
    return reads.count == parked + sum(len(read.contexts) for read in reads.waiting) and rounds == sorted(rounds)


INVARIANTS: Final[Sequence[tuple[str, Callable[[State], bool]]]] = (
    ("paper 5.3, 5.4: handed out <= committed and durable <= written <= last", _marks_in_order),
    ("the three columns of the log have one length", _columns_agree),
    ("bytes of payloads count what is in memory", _sizes_are_counted),
    ("the log ends with the term that is noted beside its last index", _marks_of_the_end_agree),
    ("paper 5.1: terms never fall along the log, and none is above the current term", _terms_rise),
    ("paper 5.2 (persistent state): writes complete in order, and prove no more than later ones", _writes_in_order),
    ("paper 6: configurations in force are those of the log", _configurations_follow_the_log),
    ("dissertation 4.1: a leader has at most one configuration that is not committed", _one_configuration_uncommitted),
    ("paper 7: whatever the log no longer has, the snapshot has", _reachable_by_log_or_snapshot),
    ("paper 5.2: a candidate has voted for itself", _candidates_voted_for_themselves),
    ("paper 6, dissertation 4.2.2: only voters campaign, of the last committed configuration or a later one", _campaigners_may),
    ("paper 5.2: a node is its own leader exactly when it leads", _leaders_know_themselves),
    ("paper 5.4.2: a leader has an entry of its term", _leader_has_its_term),
    ("paper 5.3: a leader, and no other node, keeps progress of every other member, in order", _progress_is_of_members),
    ("paper Figure 2 (volatile state on leaders): match < next, and match is in the log", _progress_is_possible),
    ("paper 7: the log after a snapshot is kept while a follower copies it", _copies_are_kept_for),
    ("windows count what is in flight", _windows_are_counted),
    ("the bytes of proposals count what is not committed", _proposed_is_counted),
    ("dissertation 6.4: reads wait for rounds in order", _reads_are_counted),
)


def check_invariants(state: State) -> None:
    """Raises InvariantBroken, naming the first invariant that does not hold; the group is ended by it."""
    for name, holds in INVARIANTS:
        if not holds(state):
            raise state.broken(name, f"term {state.term}, {state.role.value}, log {state.log.base}..{state.log.last}")


def check_group(states: Iterable[State]) -> None:
    """Compares the nodes of one group. Raises: InvariantBroken."""
    present = sorted(states, key=lambda state: state.id)
    leaders = [(state.term, state.id) for state in present if state.role is Role.LEADER]
    if len({term for term, _ in leaders}) != len(leaders):
        raise InvariantBroken("paper 5.2, Election Safety: at most one leader in a term", str(leaders))
    for position, one in enumerate(present):
        for other in present[position + 1 :]:
            _check_pair(one, other)


def _check_pair(one: State, other: State) -> None:
    low = Index(max(one.log.base, other.log.base))
    high = Index(min(one.log.last, other.log.last))
    agree = [one.log.term_at(Index(index)) == other.log.term_at(Index(index)) for index in range(low, high + 1)]
    if agree != sorted(agree, reverse=True):
        raise InvariantBroken("paper 5.3, Log Matching: logs that meet are equal before", f"nodes {one.id}, {other.id}")
    same = sum(agree)
    seen, upto = max(low, one.log.held, other.log.held) + 1, low + same - 1
    if seen <= upto and one.log.slice(seen, upto) != other.log.slice(seen, upto):
        raise InvariantBroken("paper 5.3, Log Matching: same index and term, same entry", f"nodes {one.id}, {other.id}")
    if low + same - 1 < min(one.log.commit, other.log.commit):
        raise InvariantBroken("paper 5.4.3, State Machine Safety: committed entries are equal", f"nodes {one.id}, {other.id}")
    leader, follower = (one, other) if one.term >= other.term else (other, one)
    if leader.role is Role.LEADER and leader.term > follower.term and leader.log.last < follower.log.commit:
        raise InvariantBroken("paper 5.4, Leader Completeness: a leader has what was committed", f"nodes {one.id}, {other.id}")
