"""A simulated cluster: real driver, log, sequencer, take-over and consensus, over simulated disks, clocks, network and clients.

One rule: everything that happens is chosen by one seeded generator, in one thread, so a seed repeats a failure. What the checks
know they know from outside: what clients were answered, what consensus handed out, what sites ran.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from cmdlog.cluster.entry_records import place_of, records_of
from cmdlog.cluster.leader_fitness import FIT
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.raft.messages import Bundle, Entries, Message
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId
from cmdlog.wal.log import Log
from tests.cluster.histories.list_checker import check_history
from tests.cluster.histories.list_history import ListHistory
from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.promises import Life, Promises
from tests.cluster.sim.sim_clients import LISTS, SimClient
from tests.cluster.sim.sim_member import PARTITIONS, TICK_S, Machine, SimMember, directory_of, genesis, genesis_checksum
from tests.wal.logkit import generations
from tests.wal.sim.simfiles import Operation as DiskOperation
from tests.wal.sim.simfiles import SimCrash, SimFiles

CLUSTER_ID: Final = b"simulated-clustr"
SETTLE_TICKS: Final = 3000
NESTED_STEPS: Final = (0, 0, 1, 4, 15)  # that may happen while a disk syncs

Letter = tuple[int, int, list[tuple[int, Message | Bundle]], Any]  # sender, receiver, messages, whose word it is


class SimCluster:
    """The network, the clock, the clients, and what was agreed."""

    def __init__(
        self, seed: int, *, nodes: int = 3, clients: int = 4, segment_bytes: int = 256 << 10, segments: int = 16
    ) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.ticks, self.now_s = 0, 0.0
        self.clock_offsets = dict.fromkeys(range(1, nodes + 1), 0.0)
        self.mail: list[Letter] = []
        self.requests: list[tuple[int, Callable[[], None], Callable[[], None]]] = []  # node, arrival, refusal
        self.answers: list[Callable[[], None]] = []
        self.cut: set[tuple[int, int]] = set()  # (sender, receiver)
        self.unheard: set[tuple[int, int]] = set()  # (sender, group): of that group the others hear nothing but heartbeats
        self.loss = 0.01
        self.keeps_all = self.rng.random() < 0.7  # the logs let nothing go
        self.agreed: dict[tuple[int, int], tuple[int, bytes]] = {}
        self.ran: dict[tuple[int, int], tuple[int, bytes]] = {}  # (partition, index) -> what its run did
        self.left_out: set[tuple[int, int, int]] = set()  # (partition, index, position or VOID) that sites were told
        self.happened: Counter[str] = Counter()
        self.history, self.values = ListHistory(), itertools.count(1)
        self.members: dict[int, SimMember] = {}
        self.machines: dict[int, Machine] = {}
        self.promises = Promises()
        self.faults: ClusterFaults | None = None
        self.failure: Exception | None = None
        self._syncing: set[int] = set()
        self._condemned: list[SimMember] = []
        for node in range(1, nodes + 1):
            self.machines[node] = self._make_machine(node, nodes, segment_bytes, segments)
        for node in self.machines:
            self.boot(node)
        self.clients = [SimClient(self, number) for number in range(1, clients + 1)]

    def _make_machine(self, node: int, nodes: int, segment_bytes: int, segments: int) -> Machine:
        files = SimFiles(self.seed * 10 + node)
        Log.create(
            files, directory_of(node), Identity(CLUSTER_ID, node, b"life%04d" % node), segment_bytes=segment_bytes,
            segments=segments, reserve_bytes=4096, initial=genesis(nodes), generation=generations(1000 * node),
        )  # fmt: skip
        states = {p: ListState(p, PARTITIONS, checksum=genesis_checksum(nodes, p)) for p in range(PARTITIONS)}
        return Machine(files, states, {partition: state.captured() for partition, state in states.items()})

    # -- nodes -----------------------------------------------------------------------------------------------------------

    def boot(self, node: int) -> None:
        """A process starts on the machine."""
        machine = self.machines[node]
        machine.files.before = lambda operation: self._during(node, machine.files, operation)
        try:
            self.members[node] = self.make_member(node, machine)
        except SimCrash:
            machine.cut_power(self.rng)
            self.happened["crash at start"] += 1

    def make_member(self, node: int, machine: Machine) -> SimMember:
        """The process of a node."""
        return SimMember(self, node, machine)

    def life_of(self, node: int) -> Life:
        """Whose word a process gives."""
        return node, b""

    def peers_of(self, node: int) -> list[int]:
        """Every other node of the cluster."""
        return sorted(set(self.machines) - {node})

    def crash(self, node: int, *, power: bool) -> None:
        """The node's process dies; with `power`, what was not synced may be lost."""
        self.members.pop(node, None)
        machine = self.machines[node]
        machine.files.before = None
        if power:
            machine.cut_power(self.rng)
        else:
            machine.kill()
        self.happened["power cut" if power else "kill"] += 1

    def condemn(self, member: SimMember) -> None:
        """The process ends itself as soon as it can."""
        self._condemned.append(member)

    def _during(self, node: int, files: SimFiles, operation: DiskOperation) -> None:
        """While a disk syncs the world goes on: messages arrive, and the node itself may die."""
        if operation.kind != "fdatasync" or node in self._syncing or node not in self.members:
            return
        self._syncing.add(node)
        try:
            for _ in range(self.rng.choice(NESTED_STEPS)):
                self.step()
            if self.faults is not None and self.faults.dies_syncing() and self.machines[node].files is files:
                self.crash(node, power=True)
                self.happened["died syncing"] += 1
        except Exception as error:
            self.failure = self.failure or error  # the log would take it for an error of its disk
            raise
        finally:
            self._syncing.discard(node)
        if self.machines[node].files is not files:
            raise SimCrash("the node died while its disk synced")

    def turn(self, node: int) -> None:
        """The node's log takes a block."""
        try:
            self.members[node].turn()
        except SimCrash:
            if node in self.members and self.members[node].machine.files.hits[-1:]:  # by a planned crash
                self.crash(node, power=self.rng.random() < 0.5)

    # -- one thing after the other -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing happens."""
        while self._condemned:
            member = self._condemned.pop()
            if self.members.get(member.node) is member:
                self.crash(member.node, power=False)
                self.happened["gave up"] += 1
        if self.faults is not None:
            self.faults.step()
        choice = self.rng.random()
        if choice < 0.08:
            if not self._syncing:
                self.tick()
        elif choice < 0.50:
            self.deliver()
        elif choice < 0.68:
            self.run_log()
        elif choice < 0.78:
            self.serve()
        elif choice < 0.90:
            self.carry_calls()
        else:
            self.rng.choice(self.clients).step()

    def tick(self) -> None:
        """Time passes."""
        self.ticks += 1
        self.now_s += TICK_S
        for node, member in list(self.members.items()):
            if member.paused or self.rng.random() < 0.02:  # the ticker is late
                member.missed_ticks += 1
            elif node in self.members:
                ticks, member.missed_ticks = member.missed_ticks + 1, 0
                member.tick(ticks)

    def deliver(self) -> None:
        """A message arrives: late ones after newer ones, some not at all, some twice."""
        if not self.mail:
            return
        at = 0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.mail))
        letter = sender, receiver, messages, stamp = self.mail[at] if self.rng.random() < 0.02 else self.mail.pop(at)
        member = self.members.get(receiver)
        if member is None or (sender, receiver) in self.cut or self.rng.random() < self.loss:
            return
        if member.paused:  # it waits in the kernel
            self.mail.append(letter)
            return
        if not member.believes(sender, stamp):
            return
        member.receive([of for of in messages if (sender, int(of[0])) not in self.unheard])
        member.reads.begin_waiting()

    def run_log(self) -> None:
        """Some log that has been woken takes a block."""
        waiting = [
            node for node, member in self.members.items() if member.kicked and not member.paused and node not in self._syncing
        ]
        if waiting:
            self.turn(self.rng.choice(waiting))

    def serve(self) -> None:
        """A site runs the next thing, or a take-over its next step."""
        busy = [(member, partition) for member in self.members.values() if not member.paused for partition in member.sites.busy]
        if busy and self.rng.random() < 0.8:
            member, partition = self.rng.choice(busy)
            member.sites.serve(partition)
            return
        for member in list(self.members.values()):
            if not member.paused:
                member.step_takeover()

    def carry_calls(self) -> None:
        """A request arrives at its node, or an answer at its client."""
        if self.requests and self.rng.random() < 0.5:
            at = 0 if self.rng.random() < 0.9 else self.rng.randrange(len(self.requests))
            node, arrive, refuse = self.requests.pop(at)
            member = self.members.get(node)
            if member is None:
                refuse()
            elif member.paused:
                self.requests.append((node, arrive, refuse))
            elif self.rng.random() >= self.loss:
                arrive()
        elif self.answers:
            answer = self.answers.pop(0)
            if self.rng.random() >= self.loss:
                answer()

    # -- what the parts send ---------------------------------------------------------------------------------------------

    def post(self, sender: int, receiver: int, messages: list[tuple[int, Message | Bundle]]) -> None:
        """From node to node."""
        if messages:
            cores = self.members[sender].groups.cores if sender in self.members else {}
            for group, message in messages:
                self.promises.note(self.life_of(sender), group, message, cores.get(PartitionId(group)))
            self.mail.append((sender, receiver, messages, self.members[sender].stamp if sender in self.members else None))

    def send_request(self, node: int, arrive: Callable[[], None], refuse: Callable[[], None]) -> None:
        """From a client."""
        self.requests.append((node, arrive, refuse))

    def send_answer(self, member: SimMember, take: Callable[[], None]) -> None:
        """To a client; nothing leaves a process that is gone."""
        if self.members.get(member.node) is member:
            self.answers.append(take)

    # -- what is known from outside --------------------------------------------------------------------------------------

    def agree(self, node: int, group: int, entries: Entries) -> None:
        """The node was told that these entries are committed: every node must be told the same."""
        self.promises.note_entry(self.life_of(node), group, int(entries.terms[-1]), int(entries.last))
        for index, (term, record) in enumerate(zip(entries.terms, records_of(group, entries), strict=True), entries.first):
            known = self.agreed.setdefault((group, index), (term, record))
            assert known == (term, record), f"group {group}, index {index}: two entries are committed"
            _, said_group, said_term, said_index = place_of(record)
            assert (said_group, said_term, said_index) == (group, term, index)

    def executed(self, member: SimMember, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """A site has run an entry: everyone does the same with it, and no follower is the first."""
        assert (partition, index) in self.agreed, f"node {member.node} runs entry {index} of {partition}, which nobody committed"
        assert (partition, index) in self.ran or (partition, index) in member.sequenced.let_go_free, (
            f"node {member.node} follows, and is the first to run entry {index} of partition {partition}"
        )
        did = (0, b"") if answer is None else (answer.rows_digest, answer.result_hashes)
        known = self.ran.setdefault((partition, index), did)
        assert known == did, f"entry {index} of partition {partition} did one thing here and another there"

    def check(self) -> None:
        """Nobody failed but by what was done to its disk."""
        if self.failure is not None:
            raise self.failure
        for member in self.members.values():
            for failure in (member.driver.failure, member.failure):
                if failure is not None and not isinstance(failure, WalError):
                    raise failure

    def check_log(self) -> None:
        """TxnIds ascend in every partition, over all leaders, and each is given once; calls on all have one in all."""
        places: dict[int, set[int]] = {}
        last = dict.fromkeys(range(PARTITIONS), 0)
        for (group, index), (_, record) in sorted(self.agreed.items()):
            if group == CLUSTER_GROUP or record[4] != RecordKind.BATCH:
                continue
            batch = decode_batch(decode_record(record))
            assert batch.first_txn > last[group], f"partition {group}: entry {index} has a TxnId of an earlier one"
            last[group] = batch.last_txn
            for txn_id in batch.txn_ids:
                groups = places.setdefault(txn_id, set())
                assert group not in groups, f"partition {group}: TxnId {txn_id} is given twice"
                groups.add(group)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No faults any more."""
        self.faults = None
        self.cut.clear()
        self.unheard.clear()
        self.loss = 0.0
        for node, machine in self.machines.items():
            machine.files.heal()
            machine.files.capacity_bytes = 1 << 30
            member = self.members.get(node)
            if member is not None:
                member.paused = False
                member.transfer.set_reasons(FIT)
                if member.stops_at is not None or member.failure is not None or member.driver.failure is not None:
                    self.crash(node, power=False)
            if node not in self.members:
                self.boot(node)

    def settle(self) -> None:
        """Everything that is under way comes to its end."""
        self.heal()
        for client in self.clients:
            client.stopped = True
        for _ in range(SETTLE_TICKS):
            self.tick()
            for _ in range(300):
                self.deliver()
                self.run_log()
                self.serve()
                self.carry_calls()
                if not (self.mail or self.requests or self.answers or any(one.kicked for one in self.members.values())):
                    break
            for client in self.clients:
                client.step()
            self.check()
            if self.is_level():
                return
        raise AssertionError(f"the cluster did not settle: {self.describe()}")

    def is_level(self) -> bool:
        """One node leads, everything committed is run everywhere, nobody waits."""
        leaders = [member for member in self.members.values() if member.leads]
        if len(leaders) != 1 or len(self.members) < len(self.machines) or any(client.under_way for client in self.clients):
            return False
        ends = {
            tuple((group, core.log.handed, core.log.last) for group, core in sorted(member.groups.cores.items()))
            for member in self.members.values()
        }
        run = {tuple(state.index for _, state in sorted(machine.states.items())) for machine in self.machines.values()}
        handed = leaders[0].groups.cores
        return (
            len(ends) == 1
            and len(run) == 1
            and all(handed[partition].log.handed == index for partition, index in enumerate(next(iter(run))))  # type: ignore[index]
            and all(member.sequencer.idle for member in self.members.values())
        )

    def final_reads(self) -> None:
        """Two rounds over all lists."""
        client = self.clients[0]
        for _ in range(2):
            for procedure, *params in (*(("values", name) for name in LISTS), ("values_of_all",)):
                while True:
                    operation = client.ask(procedure, *params)
                    self.settle()
                    if operation.seen:
                        break

    def check_end(self) -> None:
        """All states are the same, and the history could have happened."""
        for partition in range(PARTITIONS):
            states = [machine.states[partition] for machine in self.machines.values()]
            assert all(state.lists == states[0].lists and state.keys == states[0].keys for state in states)
        self.check_log()
        check_history(self.history.operations)

    def check_alternative(self, states: Mapping[int, ListState]) -> None:
        """These states instead of the cluster's would be ones that the clients could not tell from the truth."""
        history = copy.deepcopy(self.history)
        read = history.read("recovered", *LISTS)
        history.done(read, {name: values for state in states.values() for name, values in state.lists.items()})
        check_history(history.operations)

    def lists(self) -> dict[str, list[int]]:
        """What the states hold."""
        states = self.machines[min(self.machines)].states
        return {name: values for state in states.values() for name, values in state.lists.items()}

    def describe(self) -> str:
        """Where everybody is."""
        return "\n".join(
            f"{node}: {member.leadership.standing.value} {dict(member.driver.views())} "
            f"run {[state.index for state in self.machines[node].states.values()]} "
            f"handed {[int(core.log.handed) for core in member.groups.cores.values()]} idle {member.sequencer.idle} "
            f"waits {member.sequenced._gate.waits} {member.marks.waits} {member.failure}"
            for node, member in self.members.items()
        )
