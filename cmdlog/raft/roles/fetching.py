"""Feeding followers with entries that are no longer in memory: the caller reads them from its log.

One rule: one read at a time, of bounded size, and always answered. So memory is bounded however far a follower is behind, and a
follower that is near is never kept waiting by one that is far. Terms stay in memory, so what is read is compared with what the
log says; followers that want the same range are fed by one read, and those that want different ones take turns.
"""

from __future__ import annotations

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Append, Entries, InstallSnapshot
from cmdlog.raft.progress import FollowerProgress
from cmdlog.raft.ready import EntriesWanted, Role
from cmdlog.raft.state import State
from cmdlog.wal.ids import Index, Term


def send_fetched(state: State, peer: NodeId, progress: FollowerProgress, prev_term: Term) -> bool:
    """Sends what was read last, when it has the follower's next entry; else that is read. Returns whether something was sent."""
    fetched = state.fetched
    if fetched is None or not fetched.first <= progress.next <= fetched.last:
        _want(state, peer, progress)
        return False
    begin, settings = progress.next - fetched.first, state.settings
    end, size, bytes_max = begin, 0, progress.message_bytes_max(settings)
    for payload in fetched.payloads[begin : begin + settings.append_entries_max]:
        if end > begin and size + len(payload) > bytes_max:
            break
        end, size = end + 1, size + len(payload)
    part = Entries(progress.next, fetched.terms[begin:end], fetched.kinds[begin:end], fetched.payloads[begin:end], size)
    state.now.append(Append(state.id, peer, state.term, prev_term, state.log.commit, part))
    progress.sent(part.last, size)
    return True


def _want(state: State, peer: NodeId, progress: FollowerProgress) -> None:
    """Asks for the follower's next entries, unless a read is under way. Of several followers, the one after the last has its
    turn."""
    turn = state.offered_fetch is not None and state.fetch_for <= state.fetched_for < peer
    if state.fetching is not None and not turn:
        return
    last = min(state.log.held, Index(progress.next + state.settings.ready_entries_max - 1))
    state.offered_fetch = state.fetching = EntriesWanted(progress.next, last, state.settings.fetch_bytes_max)
    state.fetch_for = peer


def take_report(state: State, wanted: EntriesWanted, entries: Entries | None) -> None:
    """Takes what was read. An answer to a question that is no longer open, of an earlier leadership say, means nothing."""
    if state.role is not Role.LEADER or state.fetching != wanted:
        return
    state.fetching, state.dirty = None, True
    log, state.fetched_for = state.log, state.fetch_for
    if entries is not None and entries.first == wanted.first and entries.terms and wanted.first > log.base:
        known = log.terms[entries.first - log.base - 1 : entries.last - log.base]
        if known == entries.terms:
            state.fetched = entries
            return
    # It is gone, or damaged: the followers get a copy, if a snapshot has what they lack, or are probed again later.
    for peer, progress in state.progress.items():
        if progress.next != wanted.first:
            continue
        if progress.next <= state.manifest.index:
            progress.copy(state.manifest)
            state.now.append(InstallSnapshot(state.id, peer, state.term, state.manifest))
        else:
            progress.probe()
            progress.paused = True  # until it is heard from
