"""The commands of a scenario, one method each; `scenario` lists them.

One rule: a command only calls what a caller of the core may call, or moves what the world holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Final

from cmdlog.raft import (
    LEAVE_JOINT,
    Act,
    BadChange,
    Configuration,
    ConfigurationChange,
    CopyOutcome,
    Entries,
    Franchise,
    HardState,
    InvariantBroken,
    MemberChange,
    MembershipGuard,
    Message,
    NodeId,
    PlacedProposals,
    RaftCore,
    RaftRefused,
    RaftSettings,
    Role,
    Segment,
    SnapshotDescriptor,
    Transition,
)
from cmdlog.raft.configuration import nodes
from cmdlog.wal.ids import Index, Term
from tests.raft.cluster import Disk, column
from tests.raft.scenario_host import HOST_COMMANDS, Host
from tests.raft.scenario_text import configuration_text, entry_text, message_of, message_text, payload_of
from tests.raft.scenario_world import Node, World

SETTINGS: Final = {each.name for each in fields(RaftSettings)}
ACTS: Final = {"+": Act.ADD_VOTER, "~": Act.ADD_LEARNER, "-": Act.REMOVE}


class Script:
    """Runs commands on a world."""

    def __init__(self) -> None:
        self.world = World()
        self.first = Configuration()
        self.host: Host | None = None

    def run(self, lines: list[str]) -> list[str]:
        """The trace of these command lines."""
        for line in lines:
            words = line.split()
            quiet = words[0] == "quiet"
            name, *rest = words[quiet:]
            command = COMMANDS.get(name)
            if command is None:
                raise ValueError(f"no such command: {line}")
            kept = len(self.world.trace)
            try:
                command(self, rest)
            except RaftRefused as error:
                self.world.tell(f"refused: {error.reason.value}" + (f", ask {error.leader}" if error.leader else ""))
            except InvariantBroken as error:
                self.world.tell(f"the group ends here: {error}")
            except BadChange as error:
                self.world.tell(f"bad change: {error}")
            self.world.pump()
            if self.host is not None:
                self.host.pump()
            if quiet:
                del self.world.trace[kept:]
            self.world.check()
        trace, self.world.trace = self.world.trace, []
        return trace or ["nothing"]

    def node(self, word: str) -> Node:
        """By its number."""
        return self.world.nodes[NodeId(int(word))]

    def core(self, word: str) -> RaftCore:
        """Of a node that is up."""
        return self.node(word).live()

    # Beginning

    def begin(self, words: list[str]) -> None:
        """`nodes`"""
        plain, settings = _settings(words)
        at = plain.index("learners") if "learners" in plain else len(plain)
        self.first = Configuration(voters=nodes(map(int, plain[:at])), learners=nodes(map(int, plain[at + 1 :])))
        self.world = World()
        for member in self.first.members():
            self.world.nodes[member] = node = Node(member, Disk(manifest=SnapshotDescriptor(configuration=self.first)), settings)
            node.start()

    def start(self, words: list[str]) -> None:
        """`start`"""
        name, *rest = words
        number = NodeId(int(name))
        present = self.world.nodes.get(number)
        plain, settings = _settings(rest, present.settings if present is not None else None)
        given = dict(word.split("=") for word in plain if "=" in word)
        node = Node(number, self._disk(given, blank="blank" in plain), settings)
        node.lives = present.lives if present is not None else 0
        node.completions = present.completions if present is not None else {}
        self.world.nodes = dict(sorted({**self.world.nodes, number: node}.items()))
        if "no-vote" in plain:
            node.disk.franchise = Franchise.NONE
        if "admitted" in given:
            index, _, term = given["admitted"].partition("@")
            node.disk.admitted = PlacedProposals(Index(int(index)), Term(int(term)))
        node.start()

    def _disk(self, given: dict[str, str], *, blank: bool) -> Disk:
        if blank:
            return Disk()
        first = Configuration(voters=nodes(map(int, given["config"].split(",")))) if "config" in given else self.first
        base, _, base_term = given.get("base", "0@0").partition("@")
        terms = [int(term) for term in given.get("log", "").split(",") if term]
        entries: Entries = column(int(base) + 1, *terms)
        term = Term(int(given.get("term", max([int(base_term), *terms]))))
        vote = NodeId(int(given["vote"])) if "vote" in given else None
        commit = Index(int(given.get("commit", base)))
        return Disk(HardState(term, vote, commit), SnapshotDescriptor(Index(int(base)), Term(int(base_term)), first), entries)

    # Time

    def tick(self, words: list[str]) -> None:
        """`tick`"""
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            for word in words[0].split(","):
                self.core(word).tick()
            self.world.pump()

    def run_on(self, words: list[str]) -> None:
        """`run`"""
        for _ in range(int(words[1]) if len(words) > 1 else 1):
            self.tick(words[:1])
            self.world.settle()

    def campaign(self, words: list[str]) -> None:
        """`campaign`"""
        node, core = self.node(words[0]), self.core(words[0])
        for _ in range(core.timeout - core.elapsed):
            core.tick()
            self.world.pump([node.id])

    def spread(self, words: list[str]) -> None:
        """`spread`"""
        node = self.node(words[0])
        node.spread = int(words[1])
        chance = node.live().rng
        chance.spread = node.spread  # type: ignore[attr-defined]  # it is a `Scripted`
        node.live().restart_timer()

    def elect(self, words: list[str]) -> None:
        """`elect`"""
        self.campaign(words)
        self.world.settle()
        if self.core(words[0]).role is not Role.LEADER:
            raise ValueError(f"node {words[0]} was not elected")

    # Requests

    def propose(self, words: list[str]) -> None:
        """`propose`"""
        placed = self.core(words[0]).propose([payload_of(word) for word in words[1:]])
        if placed is not None:
            self.world.tell(f"placed from {placed.first}@{placed.term}")

    def read(self, words: list[str]) -> None:
        """`read`"""
        self.core(words[0]).read_index(int(words[1]))

    def transfer(self, words: list[str]) -> None:
        """`transfer`"""
        self.core(words[0]).transfer(NodeId(int(words[1])))

    def change(self, words: list[str]) -> None:
        """`change`"""
        transition = Transition.AUTO
        if "joint" in words:
            transition = Transition.JOINT_STAY if "stay" in words else Transition.JOINT_AUTO_LEAVE
        steps = tuple(MemberChange(ACTS[word[0]], NodeId(int(word[1:]))) for word in words[1:] if word[0] in ACTS)
        bases = [Configuration(voters=nodes(map(int, word[5:].split(",")))) for word in words if word.startswith("base=")]
        guard = MembershipGuard.FORCED if "forced" in words else MembershipGuard.CHECKED
        self.core(words[0]).change(ConfigurationChange(steps, transition), base=bases[0] if bases else None, guard=guard)

    def leave(self, words: list[str]) -> None:
        """`leave`"""
        self.core(words[0]).change(LEAVE_JOINT)

    def recover(self, words: list[str]) -> None:
        """`recover`"""
        self.core(words[0]).force_recovery([NodeId(int(word)) for word in words[1:]], epoch=5)

    # Snapshots

    def snapshot(self, words: list[str]) -> None:
        """`snapshot`"""
        node, core = self.node(words[0]), self.core(words[0])
        index = Index(int(words[1]))
        keep = [Index(int(word[5:])) for word in words if word.startswith("keep=")]
        manifest = core.manifest_at(index, (Segment("image", 4096, 0),))
        gone = core.compact(manifest, keep[0] if keep else index)
        node.disk.manifest, node.disk.entries = manifest, node.disk.entries_from(gone + 1)
        self.world.tell(f"{node.id} has a snapshot of {manifest.index}@{manifest.term} and its log from {gone + 1} on")

    def copied(self, words: list[str]) -> None:
        """`copied`"""
        node = self.node(words[0])
        if node.copy is None:
            raise ValueError(f"node {node.id} copies nothing")
        manifest, node.copy = node.copy, None
        node.live().report_snapshot(manifest, CopyOutcome.FAILED if "failed" in words else CopyOutcome.COMPLETE)

    # Disks

    def slow(self, words: list[str]) -> None:
        """`slow`"""
        self.node(words[0]).slow = True

    def fast(self, words: list[str]) -> None:
        """`fast`"""
        node = self.node(words[0])
        self.world.sync(node, len(node.writing))
        node.slow = False

    def sync(self, words: list[str]) -> None:
        """`sync`"""
        node = self.node(words[0])
        self.world.sync(node, int(words[1]) if len(words) > 1 else len(node.writing))

    def complete(self, words: list[str]) -> None:
        """`complete`"""
        node = self.node(words[0])
        life, _, number = words[1].partition("#")
        node.live().advance(node.completions[node.lives - (life == "old"), int(number)])

    def crash(self, words: list[str]) -> None:
        """`crash`"""
        node = self.node(words[0])
        keep = [int(word[5:]) for word in words if word.startswith("keep=")]
        for _, ready in list(node.writing)[: keep[0] if keep else 0]:
            node.disk.write(ready)
        node.core = None
        node.writing.clear()

    def restart(self, words: list[str]) -> None:
        """`restart`"""
        node = self.node(words[0])
        if node.core is not None:
            raise ValueError(f"node {node.id} is up: crash it first")
        node.start()

    # The network

    def deliver(self, words: list[str]) -> None:
        """`deliver`"""
        for message in list(self._picked(words)):
            self.world.wire.remove(message)
            self.world.tell(f"{message_text(message)} arrives")
            self.world.deliver(message)

    def drop(self, words: list[str]) -> None:
        """`drop`"""
        for message in list(self._picked(words)):
            self.world.wire.remove(message)
            self.world.tell(f"{message_text(message)} is lost")

    def double(self, words: list[str]) -> None:
        """`double`"""
        self.world.wire += self._picked(words)

    def last(self, words: list[str]) -> None:
        """`last`"""
        for message in list(self._picked(words)):
            self.world.wire.remove(message)
            self.world.wire.append(message)

    def _picked(self, words: list[str]) -> Iterator[Message]:
        """Those under way that are meant: on one way the first, COUNT or all; without a way all that nobody holds."""
        world = self.world
        if not words:
            yield from [message for message in world.wire if (message.sender, message.receiver) not in world.held]
            return
        way = _way(words[0])
        found = [message for message in world.wire if (message.sender, message.receiver) == way]
        count = 1 if len(words) == 1 else len(found) if words[1] == "all" else int(words[1])
        if len(found) < count or not found:
            raise ValueError(f"{len(found)} messages are under way {words[0]}, not {count}")
        yield from found[:count]

    def hold(self, words: list[str]) -> None:
        """`hold`"""
        self.world.held |= set(map(_way, words))

    def release(self, words: list[str]) -> None:
        """`release`"""
        self.world.held -= set(map(_way, words))

    def cut(self, words: list[str]) -> None:
        """`cut`"""
        for word in words:
            if ">" in word:
                self.world.cut.add(_way(word))
            else:
                number = NodeId(int(word))
                self.world.cut |= {way for other in self.world.nodes for way in ((number, other), (other, number))}

    def heal(self, _: list[str]) -> None:
        """`heal`"""
        self.world.cut.clear()

    def say(self, words: list[str]) -> None:
        """`say`"""
        self.world.wire.append(message_of(" ".join(words)))

    def settle(self, _: list[str]) -> None:
        """`settle`"""
        self.world.settle()

    # What is known

    def show_wire(self, _: list[str]) -> None:
        """`wire`"""
        for message in self.world.wire:
            self.world.tell(message_text(message))

    def status(self, words: list[str]) -> None:
        """`status`"""
        for node in [self.node(word) for word in words] or self.world.nodes.values():
            self.world.tell(_status(node))

    def progress(self, words: list[str]) -> None:
        """`progress`"""
        for peer, each in self.core(words[0]).progress.items():
            window = f", {len(each.in_flight)} messages and {each.in_flight_bytes} bytes under way" if each.in_flight else ""
            self.world.tell(f"{peer}: {each.sending.value}, has {each.match}, next {each.next}{window}")


def _status(node: Node) -> str:
    core = node.core
    if core is None:
        return f"{node.id} is down"
    log = core.log
    entries = log.slice(Index(log.base + 1), log.last)
    shown = ", ".join(entry_text(entries, offset) for offset in range(len(entries))) or "nothing"
    base = f"after {log.base}@{log.base_term}: " if log.base else ""
    marks = f"commit {log.commit}, durable {log.stable}, applied {log.handed}"
    members = configuration_text(core.configuration)
    return f"{node.id} {core.role.value} t{core.term} vote {core.vote or '-'}, {marks}; log {base}{shown}; [{members}]"


def _way(word: str) -> tuple[NodeId, NodeId]:
    sender, _, receiver = word.partition(">")
    return NodeId(int(sender)), NodeId(int(receiver))


def _settings(words: list[str], base: RaftSettings | None = None) -> tuple[list[str], RaftSettings]:
    """The words that are no settings, and the settings."""
    given = {name: value for name, _, value in (word.partition("=") for word in words) if name in SETTINGS}
    values: dict[str, Any] = {name: value == "yes" if value in ("yes", "no") else int(value) for name, value in given.items()}
    plain = [word for word in words if word.partition("=")[0] not in SETTINGS]
    return plain, replace(base or RaftSettings(), **values)


COMMANDS: Final[dict[str, Callable[[Script, list[str]], None]]] = {
    "nodes": Script.begin,
    "start": Script.start,
    "tick": Script.tick,
    "run": Script.run_on,
    "campaign": Script.campaign,
    "spread": Script.spread,
    "elect": Script.elect,
    "propose": Script.propose,
    "read": Script.read,
    "transfer": Script.transfer,
    "change": Script.change,
    "leave": Script.leave,
    "recover": Script.recover,
    "snapshot": Script.snapshot,
    "copied": Script.copied,
    "slow": Script.slow,
    "fast": Script.fast,
    "sync": Script.sync,
    "complete": Script.complete,
    "crash": Script.crash,
    "restart": Script.restart,
    "deliver": Script.deliver,
    "drop": Script.drop,
    "double": Script.double,
    "last": Script.last,
    "hold": Script.hold,
    "release": Script.release,
    "cut": Script.cut,
    "heal": Script.heal,
    "say": Script.say,
    "settle": Script.settle,
    "wire": Script.show_wire,
    "status": Script.status,
    "progress": Script.progress,
    **HOST_COMMANDS,
}
