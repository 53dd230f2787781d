"""Commands about one node as a whole: many groups over one log, and what comes to it as sealed frames.

One rule: a message reaches a group only through a frame that the node's link has opened, as on the wire.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cmdlog.raft import (
    Configuration,
    Entries,
    HardState,
    InvariantBroken,
    NodeId,
    RaftCore,
    RaftSettings,
    Ready,
    Restored,
    SnapshotDescriptor,
)
from cmdlog.raft.configuration import nodes
from cmdlog.raft.multi_raft import GroupRecord, Parcel, RaftGroups, Round
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import FrameSealer, Link, Opener, Peer, Seal, Secret
from cmdlog.wal.ids import Index, PartitionId, Term
from tests.raft.cluster import Disk
from tests.raft.scenario_text import entries_text, manifest_text, message_of, message_text, write_text
from tests.raft.scenario_world import SPREAD, Scripted, Violation
from tests.raft.wirekit import field, meta_of, sealed_by_hand

if TYPE_CHECKING:
    from tests.raft.scenario_script import Script

SECRET: Final = Secret(b"the secret of this cluster......")
FIRST: Final = SnapshotDescriptor(configuration=Configuration(voters=nodes([1, 2, 3])))
LIFE: Final = b"life-one"


class Host:
    """This node: its groups, what its log has, and a link from each peer."""

    def __init__(self, node: NodeId, settings: RaftSettings, tell: Callable[[str], None]) -> None:
        self.node, self.settings, self.tell = node, settings, tell
        self.groups = RaftGroups(node)
        self.written: list[GroupRecord] = []  # of durable rounds, in the order of the log
        self.rounds: list[Round] = []  # not durable yet
        self.slow = False
        self.sealers = {sender: FrameSealer(self.link(sender), SECRET, SECRET.encoder(Seal.HEADS)) for sender in nodes([1, 2, 3])}
        self.openers = {sender: Opener(self.link(sender), SECRET) for sender in nodes([1, 2, 3])}
        self.frames: dict[NodeId, bytes] = {}  # the last one from each peer

    def link(self, sender: NodeId) -> Link:
        """From a peer to this node."""
        return Link(b"this cluster....", Peer(sender, LIFE), Peer(self.node, LIFE), b"session!", Seal.HEADS)

    def add(self, group: int, restored: Restored) -> None:
        """One more group."""
        self.groups.add(
            PartitionId(group), RaftCore(self.node, rng=Scripted(SPREAD, group), settings=self.settings, restored=restored)
        )

    def open(self, sender: NodeId, frame: bytes) -> None:
        """What the wire brings. Refused and skipped things are told."""
        opener = self.openers[sender]
        before = dict(opener.faults)
        with suppress(BadFrame):
            for group, message in opener.open(frame):
                known = group in self.groups.cores
                self.groups.step(group, message)  # type: ignore[arg-type]  # scripts say no bundles
                if not known:
                    self.tell(f"no group {group} here")
        for fault, count in opener.faults.items():
            if count > before[fault]:
                self.tell(f"refused: {fault.value}")

    def pump(self) -> None:
        """Collects rounds; a disk that is done at once makes them durable."""
        while (made := self.groups.collect()) is not None:
            self.send(made.send_now)
            records = "; ".join(f"{record.group}: {_record_text(record)}" for record in made.records)
            if records:
                self.tell(f"round {made.number} writes {records}")
            self.rounds.append(made)
            for group, entries in made.committed:
                self.tell(f"{group} applies {entries_text(entries)}")
            for group, manifest in made.copies:
                self.tell(f"{group} begins to copy {manifest_text(manifest)}")
            if not self.slow:
                self.durable()

    def durable(self) -> None:
        """Everything that was collected is on disk."""
        rounds, self.rounds = self.rounds, []
        for made in rounds:
            self.written += made.records
            self.send(self.groups.durable(made.number))

    def send(self, parcels: list[Parcel]) -> None:
        """Tells what leaves; heartbeats of all groups to one peer are one bundle."""
        for parcel in parcels:
            for group, message in parcel.messages:
                self.tell(f"{group}: {message_text(message)}")
            for bundle in parcel.bundles:
                named = bundle.kind.name.lower().replace("_", " ")
                self.tell(f"{bundle.sender}>{bundle.receiver} {named} of groups {' '.join(map(str, bundle.groups))}")

    def disks(self) -> dict[int, Disk]:
        """What a replay of the one log gives for each group."""
        found: dict[int, Disk] = {}
        for record in self.written:
            disk = found.setdefault(record.group, Disk(manifest=FIRST))
            disk.write(_as_ready(record))
        return found


def _as_ready(record: GroupRecord) -> Ready:
    return Ready(record.hard_state, record.snapshot, record.entries, [], [], None, [], None, None)


def _record_text(record: GroupRecord) -> str:
    return write_text(_as_ready(record))


# -- commands ------------------------------------------------------------------------------------------------------------


def host(script: Script, words: list[str]) -> None:
    """`host`"""
    settings = RaftSettings(pre_vote="pre_vote=no" not in words)
    script.host = made = Host(NodeId(int(words[0])), settings, script.world.tell)
    for word in words[1:]:
        if word.isdigit():
            made.add(int(word), Restored(manifest=FIRST))


def _host(script: Script) -> Host:
    if script.host is None:
        raise ValueError("no host yet")
    return script.host


def frame(script: Script, words: list[str]) -> None:
    """`frame`"""
    here = _host(script)
    options = dict(word.split("=") for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    if plain[0] == "again":
        sender = NodeId(int(plain[1]))
        here.open(sender, here.frames[sender])
        return
    group, message = PartitionId(int(plain[0])), message_of(" ".join(plain[1:]))
    here.frames[message.sender] = made = _sealed(here, group, message, options)
    here.open(message.sender, made)


def _sealed(here: Host, group: PartitionId, message: Any, options: dict[str, str]) -> bytes:
    link = here.link(message.sender)
    if "cluster" in options:
        link = replace(link, cluster=b"another cluster.")
    if "life" in options:
        end = "receiver" if options["life"] == "mine" else "sender"
        link = replace(link, **{end: replace(getattr(link, end), incarnation=b"life-old")})
    if "session" in options:
        link = replace(link, session=b"earlier!")
    secret = Secret(b"what a stranger guesses........") if "secret" in options else SECRET
    if link != here.link(message.sender) or secret is not SECRET:
        return FrameSealer(link, secret, secret.encoder(Seal.HEADS)).seal([(group, message)])[0]
    sealer = here.sealers[message.sender]
    if "field" not in options and "kind" not in options:
        return sealer.seal([(group, message)])[0]
    meta, bulk = SECRET.encoder(Seal.HEADS).encode(group, message)
    more = field(int(options.get("field", 0)), b"said by a newer version")
    meta = (len(meta) + len(more)).to_bytes(4, "little") + meta[4:] + more
    if "kind" in options:
        meta = meta_of(int(options["kind"]), b"news", bulk)
    sealer._sequence += 1
    return sealed_by_hand(meta, bulk, link=link, sequence=sealer._sequence, secret=SECRET)


def add(script: Script, words: list[str]) -> None:
    """`add`"""
    given = dict(word.split("=") for word in words[1:])
    vote = NodeId(int(given["vote"])) if "vote" in given else None
    hard = HardState(Term(int(given.get("term", 0))), vote, Index(0))
    try:
        _host(script).add(int(words[0]), Restored(hard, FIRST, Entries(Index(1), [], b"", [])))
    except ValueError as error:
        script.world.tell(f"refused: {error}")


def remove(script: Script, words: list[str]) -> None:
    """`remove`"""
    grave = _host(script).groups.remove(PartitionId(int(words[0])))
    script.world.tell(f"group {words[0]} is gone, but for term {grave.term} and vote {grave.vote or '-'}")


def spoil(script: Script, words: list[str]) -> None:
    """`spoil`"""
    group = PartitionId(int(words[0]))
    with suppress(InvariantBroken):
        _host(script).groups.ask(group, lambda core: core.become_follower(Term(core.term - 1), None))
    script.world.tell(f"group {group} has ended: {_host(script).groups.failed[group].invariant}")


def pass_time(script: Script, words: list[str]) -> None:
    """`ticks`"""
    for _ in range(int(words[0]) if words else 1):
        _host(script).groups.tick()
        _host(script).pump()


def wait(script: Script, _: list[str]) -> None:
    """`wait`"""
    _host(script).slow = True


def written(script: Script, _: list[str]) -> None:
    """`written`"""
    here = _host(script)
    here.durable()
    here.pump()


def replay(script: Script, _: list[str]) -> None:
    """`replay`"""
    here = _host(script)
    for group, disk in sorted(here.disks().items()):
        core = here.groups.cores.get(PartitionId(group))
        if core is not None:
            again = RaftCore(here.node, rng=random.Random(0), restored=disk.restored())
            durable = core.log.payloads[: core.log.stable - core.log.base]
            if again.log.payloads != durable or (not here.rounds and (again.term, again.vote) != (core.term, core.vote)):
                raise Violation(f"group {group} is not what its core knows to be durable")
        hard = disk.hard_state
        script.world.tell(f"{group}: t{hard.term} vote {hard.vote or '-'}, log {entries_text(disk.entries)}")


HOST_COMMANDS: Final[dict[str, Callable[[Script, list[str]], None]]] = {
    "host": host,
    "frame": frame,
    "add": add,
    "remove": remove,
    "spoil": spoil,
    "ticks": pass_time,
    "wait": wait,
    "written": written,
    "replay": replay,
}
