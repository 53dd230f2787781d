"""How a scenario writes messages, entries and configurations, and reads messages back.

One rule: what `message_text` writes, `message_of` reads; so a script can say any message that a trace can show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from cmdlog.raft import Configuration, Entries, HardState, Message, NodeId, Ready, SnapshotDescriptor
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import (
    KIND_CONFIGURATION,
    KIND_EMPTY,
    KIND_NORMAL,
    Append,
    AppendReply,
    Campaign,
    Forward,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    ReadReply,
    ReadRequest,
    Removed,
    SnapshotCopyFailed,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from cmdlog.wal.ids import Index, Term

SHOWN_BYTES_MAX: Final = 16  # of a payload; a longer one is told by its size

CAMPAIGNS: Final = {Campaign.PRE: "pre-vote", Campaign.REAL: "vote", Campaign.TRANSFER: "transfer vote"}
_CAMPAIGN_OF: Final = {text: campaign for campaign, text in CAMPAIGNS.items()}


def payload_of(word: str) -> bytes:
    """`a*300` is three hundred times `a`."""
    text, times, count = word.rpartition("*")
    return text.encode() * int(count) if times and count.isdigit() else word.encode()


def payload_text(payload: bytes) -> str:
    """In quotes, or its size."""
    return f'"{payload.decode()}"' if len(payload) <= SHOWN_BYTES_MAX else f"{len(payload)} bytes"


def configuration_text(configuration: Configuration) -> str:
    """Members by role; only what there is."""
    parts = [
        f"{name} {' '.join(map(str, members))}"
        for name, members in (
            ("voters", configuration.voters),
            ("outgoing", configuration.outgoing),
            ("learners", configuration.learners),
            ("next learners", configuration.learners_next),
        )
        if members
    ]
    parts += [name for name, holds in (("auto-leave", configuration.auto_leave), ("forced", configuration.forced)) if holds]
    parts += [f"epoch {configuration.epoch}"] * bool(configuration.epoch)
    return ", ".join(parts) or "nobody"


def entry_text(entries: Entries, offset: int) -> str:
    """`4@2 "a"`: index, term, payload."""
    kind, payload = entries.kinds[offset], entries.payloads[offset]
    place = f"{entries.first + offset}@{entries.terms[offset]}"
    if kind == KIND_NORMAL:
        return f"{place} {payload_text(payload)}"
    return f"{place} empty" if kind == KIND_EMPTY else f"{place} [{configuration_text(Configuration.from_bytes(payload))}]"


def entries_text(entries: Entries) -> str:
    """All of them."""
    return ", ".join(entry_text(entries, offset) for offset in range(len(entries))) or "nothing"


def manifest_text(manifest: SnapshotDescriptor) -> str:
    """Where the snapshot stands."""
    return f"{manifest.index}@{manifest.term} [{configuration_text(manifest.configuration)}]"


def write_text(ready: Ready) -> str:
    """What a Ready wants written, in order."""
    hard: HardState | None = ready.hard_state
    parts = [] if hard is None else [f"t{hard.term} vote {hard.vote or '-'} commit {hard.commit}"]
    parts += [] if ready.snapshot is None else [f"snapshot {manifest_text(ready.snapshot)}"]
    parts += [] if ready.entries is None else [entries_text(ready.entries)]
    return "; ".join(parts)


# -- messages ------------------------------------------------------------------------------------------------------------


def message_text(message: Message) -> str:
    """`1>2 heartbeat t3 round 4, commit 7`."""
    return f"{message.sender}>{message.receiver} {_TEXTS[type(message)](message)}"


def _vote_request(m: VoteRequest) -> str:
    return f"{CAMPAIGNS[m.campaign]} request t{m.term}, log ends {m.last_index}@{m.last_term}"


def _vote_reply(m: VoteReply) -> str:
    return f"{CAMPAIGNS[m.campaign]} {'granted' if m.granted else 'refused'} t{m.term}"


def _append(m: Append) -> str:
    return f"append t{m.term} after {m.prev_index}@{m.prev_term}, commit {m.commit}: {entries_text(m.entries)}"


def _append_reply(m: AppendReply) -> str:
    if m.rejected:
        return f"append refused t{m.term} at {m.index}, try {m.hint_index}@{m.hint_term}"
    return f"append taken t{m.term} up to {m.index}"


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


_TEXTS: Final[dict[type[Message], Callable[[Any], str]]] = {
    VoteRequest: _vote_request,
    VoteReply: _vote_reply,
    Append: _append,
    AppendReply: _append_reply,
    Heartbeat: lambda m: f"heartbeat t{m.term} round {m.round}, commit {m.commit}",
    HeartbeatReply: lambda m: f"heartbeat reply t{m.term} round {m.round}",
    InstallSnapshot: lambda m: f"snapshot t{m.term} {manifest_text(m.manifest)}",
    SnapshotCopyFailed: lambda m: f"snapshot failed t{m.term} at {m.index}",
    TimeoutNow: lambda m: f"campaign now t{m.term}",
    Removed: lambda m: f"removed t{m.term} by {m.index}",
    ReadRequest: lambda m: f"read request t{m.term}: {_numbers(m.contexts)}",
    ReadReply: lambda m: f"read reply t{m.term} at {m.index}: {_numbers(m.contexts)}",
    Forward: lambda m: f"forward t{m.term}: {', '.join(map(payload_text, m.payloads))}",
}

Ends = tuple[NodeId, NodeId, Term]
_ENTRY: Final = re.compile(r'(\d+)@(\d+) (?:"([^"]*)"|(empty)|\[([^\]]*)\])')


def message_of(text: str) -> Message:
    """The inverse of `message_text`. Raises: ValueError."""
    for pattern, make in _READERS:
        found = re.fullmatch(rf"(\d+)>(\d+) {pattern}", text)
        if found:
            sender, receiver, *rest = found.groups()
            return make(NodeId(int(sender)), NodeId(int(receiver)), rest)
    raise ValueError(f"no message: {text}")


def _i(text: str) -> Index:
    return Index(int(text))


def _t(text: str) -> Term:
    return Term(int(text))


def _entries(first: int, text: str) -> Entries:
    terms: list[Term] = []
    kinds: list[int] = []
    payloads: list[bytes] = []
    for index, term, normal, empty, configuration in _ENTRY.findall(text):
        if int(index) != first + len(terms):
            raise ValueError(f"entry {index} is not next")
        terms.append(Term(int(term)))
        kinds.append(KIND_EMPTY if empty else KIND_CONFIGURATION if configuration else KIND_NORMAL)
        payloads.append(configuration_of(configuration).to_bytes() if configuration else normal.encode())
    return Entries(Index(first), terms, bytes(kinds), payloads)


def configuration_of(text: str) -> Configuration:
    """The inverse of `configuration_text`."""
    members: dict[str, tuple[NodeId, ...]] = {}
    flags, epoch = set(), 0
    for part in filter(None, text.split(", ")):
        name, _, numbers = part.partition(" ") if not part.startswith("next") else ("learners_next", "", part[14:])
        if name == "epoch":
            epoch = int(numbers)
        elif numbers:
            members[name] = nodes(map(int, numbers.split()))
        else:
            flags.add(name)
    configuration = Configuration(**members, auto_leave="auto-leave" in flags)  # type: ignore[arg-type]  # members alone
    return replace(configuration, forced="forced" in flags, epoch=epoch)


_READERS: Final[list[tuple[str, Callable[[NodeId, NodeId, list[str]], Message]]]] = [
    (
        r"(pre-vote|vote|transfer vote) request t(\d+), log ends (\d+)@(\d+)",
        lambda s, r, f: VoteRequest(s, r, _t(f[1]), _CAMPAIGN_OF[f[0]], _i(f[2]), _t(f[3])),
    ),
    (
        r"(pre-vote|vote|transfer vote) (granted|refused) t(\d+)",
        lambda s, r, f: VoteReply(s, r, _t(f[2]), _CAMPAIGN_OF[f[0]], f[1] == "granted"),
    ),
    (
        r"append t(\d+) after (\d+)@(\d+), commit (\d+): (.*)",
        lambda s, r, f: Append(s, r, _t(f[0]), _t(f[2]), _i(f[3]), _entries(int(f[1]) + 1, f[4])),
    ),
    (r"append taken t(\d+) up to (\d+)", lambda s, r, f: AppendReply(s, r, _t(f[0]), _i(f[1]))),
    (
        r"append refused t(\d+) at (\d+), try (\d+)@(\d+)",
        lambda s, r, f: AppendReply(s, r, _t(f[0]), _i(f[1]), True, _i(f[2]), _t(f[3])),
    ),
    (r"heartbeat t(\d+) round (\d+), commit (\d+)", lambda s, r, f: Heartbeat(s, r, _t(f[0]), _i(f[2]), int(f[1]))),
    (r"heartbeat reply t(\d+) round (\d+)", lambda s, r, f: HeartbeatReply(s, r, _t(f[0]), int(f[1]))),
    (
        r"snapshot t(\d+) (\d+)@(\d+) \[(.*)\]",
        lambda s, r, f: InstallSnapshot(s, r, _t(f[0]), SnapshotDescriptor(_i(f[1]), _t(f[2]), configuration_of(f[3]))),
    ),
    (r"snapshot failed t(\d+) at (\d+)", lambda s, r, f: SnapshotCopyFailed(s, r, _t(f[0]), _i(f[1]))),
    (r"campaign now t(\d+)", lambda s, r, f: TimeoutNow(s, r, _t(f[0]))),
    (r"removed t(\d+) by (\d+)", lambda s, r, f: Removed(s, r, _t(f[0]), _i(f[1]))),
    (r"read request t(\d+): ([\d ]+)", lambda s, r, f: ReadRequest(s, r, _t(f[0]), tuple(map(int, f[1].split())))),
    (
        r"read reply t(\d+) at (\d+): ([\d ]+)",
        lambda s, r, f: ReadReply(s, r, _t(f[0]), _i(f[1]), tuple(map(int, f[2].split()))),
    ),
    (
        r"forward t(\d+): (.*)",
        lambda s, r, f: Forward(s, r, _t(f[0]), [word.encode() for word in re.findall(r'"([^"]*)"', f[1])]),
    ),
]
