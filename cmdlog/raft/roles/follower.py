"""Following a leader: taking entries, heartbeats and snapshots.

One rule: an acknowledgement speaks of this log as it is when everything taken so far is durable, so it waits for that write.
The term was checked before; so was that no other leader of the same term spoke (`core`).
"""

from __future__ import annotations

from typing import Final

from cmdlog.raft.entries import has_special
from cmdlog.raft.errors import Drop
from cmdlog.raft.messages import (
    ENTRY_KINDS,
    Append,
    AppendReply,
    Entries,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    ReadReply,
)
from cmdlog.raft.ready import ReadResult
from cmdlog.raft.state import State
from cmdlog.wal.ids import Index

_KNOWN_KINDS: Final = bytes(ENTRY_KINDS)


def on_append(state: State, message: Append) -> None:
    """AppendEntries (paper, Figure 2)."""
    state.elapsed = 0
    log, entries = state.log, message.entries
    prev, reply = entries.first - 1, state.after.append
    # Dropped: what is malformed, or contradicts what is committed here. Answered: with the commit mark, where all of it is older;
    # with a hint, where the logs do not meet; else with the place up to which this log is now the leader's.
    if not _well_formed(message, entries):
        state.drop(Drop.BAD_ENTRIES)
        return
    configurations = state.decoded(entries) if has_special(entries) else ()
    if configurations is None:
        return
    if prev <= log.commit and _contradicts(state, message):
        state.drop(Drop.CONTRADICTED)
        return
    if prev < log.commit:
        reply(AppendReply(state.id, message.sender, state.term, log.commit))
        return
    if log.term_at(prev) != message.prev_term:
        hint = log.agreeing(prev, message.prev_term)
        hint_term = log.term_at(hint)
        assert hint_term is not None
        reply(AppendReply(state.id, message.sender, state.term, Index(prev), True, hint, hint_term))
        return
    log.merge(entries, configurations)
    verified = Index(prev + len(entries.terms))
    log.commit_to(min(message.commit, verified))
    reply(AppendReply(state.id, message.sender, state.term, verified))


def _contradicts(state: State, message: Append) -> bool:
    """Whether the leader has other entries where this log has committed ones: every leader has all that is committed (paper,
    section 5.4.3), so some disk went back, of a majority that elected this leader, or all of this is of another history. What
    this log has stays as it is, and nothing of it is acknowledged: the leader would count it as its own entries."""
    log, entries = state.log, message.entries
    terms = [message.prev_term, *entries.terms[: log.commit - entries.first + 1]]
    differs = (at for at, term in enumerate(terms, entries.first - 1) if (log.term_at(Index(at)) or term) != term)
    if not state.contradicted and (at := next(differs, None)) is not None:
        state.contradicted = Index(at)
    return state.contradicted > 0


def _well_formed(message: Append, entries: Entries) -> bool:
    """Whether the columns are of one length and kind, and terms go up from `prev_term` to at most the message's."""
    terms, kinds, count = entries.terms, entries.kinds, len(entries.terms)
    if entries.first < 1 or len(kinds) != count or len(entries.payloads) != count:
        return False
    if not count:
        return True
    first = terms[0]
    if not message.prev_term <= first <= terms[-1] <= message.term or kinds.strip(_KNOWN_KINDS):
        return False
    return terms.count(first) == count or sorted(terms) == terms


def on_heartbeat(state: State, message: Heartbeat) -> None:
    """The leader lives, and its commit index as far as it knows that we have it."""
    state.elapsed = 0
    if message.commit > state.log.last:
        state.drop(Drop.BEYOND_LOG)
        return
    if not state.contradicted:
        state.log.commit_to(message.commit)
    state.now.append(HeartbeatReply(state.id, message.sender, state.term, message.round))


def on_install_snapshot(state: State, message: InstallSnapshot) -> None:
    """The leader's log does not reach back to ours: a copy is needed, unless this log has all of it after all.

    A log that has the snapshot's last entry has all of it, and it is committed, since snapshots are of applied entries (paper,
    section 7).
    """
    state.elapsed = 0
    manifest, log = message.manifest, state.log
    if manifest.term > message.term:
        state.drop(Drop.BAD_ENTRIES)
        return
    if not manifest.configuration.voters:
        state.drop(Drop.BAD_CONFIGURATION)
        return
    if manifest.index > log.commit and log.term_at(manifest.index) == manifest.term:
        log.commit_to(manifest.index)
    if manifest.index <= log.commit:
        state.after.append(AppendReply(state.id, message.sender, state.term, log.commit))
        state.copying = None
    elif state.copying != manifest:
        state.copying = state.offered_copy = manifest


def on_read_reply(state: State, message: ReadReply) -> None:
    """The leader confirmed reads; those that were given up meanwhile are passed over."""
    for number in message.contexts:
        if (asked := state.reads.asked.pop(number, None)) is None:
            state.drop(Drop.STALE_REPLY)
        else:
            state.read_results.append(ReadResult(asked[0], message.index))
