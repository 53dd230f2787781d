"""A small replicated cluster that is played step by step, leaves real node directories, and knows what really happened.

One rule: every history is legal. Entries are committed by the quorums of the configuration in force, elections are won as Raft
says, a node whose log was lost has no word until it is a member anew. So whatever recovery makes of the directories can be held
against `truth`: what was acknowledged, and the balances after every transaction.

Time is counted in milliseconds of a common clock; every node's clock may be wrong by its `skews_ms`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.call_places import CallPlace
from cmdlog.wal.format.record import RecordKind, encode_json, peek_record
from cmdlog.wal.ids import CLUSTER_GROUP, MILLIS_SHIFT, MULTI_PARTITION, make_txn_id
from procedures.idempotency.known_outcome import KeyPolicy
from tests.replay.historyapp import WRITE_NOTE, history_schema
from tests.replay.historynode import NO_ACCOUNT, SEGMENT_BYTES, Entry, Held, HistoryNode
from tests.replay.historytruth import Truth, catalog_value
from tests.replay.rig import ACCOUNTS, BEGIN, DEPOSIT, FIRST_MILLIS


class Cluster:
    """A cluster at work. Methods that a real cluster would refuse do nothing and return False (or 0)."""

    def __init__(
        self, folder: Path, nodes: int = 3, partitions: int = 2, seed: int = 0, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.rng = random.Random(seed)
        self.folder, self.partitions = str(folder), partitions
        self.cluster_id = self.rng.randbytes(16)
        self.millis, self.skews_ms = FIRST_MILLIS, dict[int, int]()
        self.groups = [*range(partitions), CLUSTER_GROUP]
        self.truth = Truth(folder / "truth", partitions)
        self.epoch = 1
        voters = list(range(1, nodes + 1))
        initial = [
            self._entry(RecordKind.CONFIGURATION, g, 1, 1, self._members(g, voters)) for g in (CLUSTER_GROUP, *range(partitions))
        ]
        self._segment_bytes = segment_bytes
        self.nodes = {n: self.new_node(n, initial) for n in voters}
        for entry in initial:
            self.truth.commit(entry)
        self.leads: dict[int, dict[int, int]] = {g: {1: 1} for g in self.groups}  # group -> node -> term in which it leads
        self._matches: dict[tuple[int, int], dict[int, int]] = {}  # (group, term) -> node -> index that it has acknowledged
        self._terms = dict.fromkeys(self.groups, 1)
        self._closed = dict.fromkeys(self.groups, 0)  # promised: no later entry has a TxnId up to it
        self.calls_everywhere: dict[int, int] = {}  # multi-partition calls: TxnId -> number
        self.places: dict[int, list[CallPlace]] = {}  # of these
        self._numbers = 0
        self.lineage: list[FaultRecord] = []
        self.orderly: list[int] = []  # in the end: nodes whose logs state how far they are durable
        self.copies: list[tuple[int, str]] = []  # (node, directory) as they were at some moment
        self.given: dict[int, str] = {}  # directories that are handed over in place of a node's own
        self.change_code(1)
        for p in range(partitions):
            self.control(p, RecordKind.SCHEMA, {"statements": history_schema(), "txn_id": self._tick(1, p, 1)[0]})
            self.batch(p, [(BEGIN, [10 * p + n]) for n in range(ACCOUNTS)])
            self.spread(p)

    # -- what is handed over -----------------------------------------------------------------------------------------------

    @property
    def directories(self) -> list[str]:
        """One per node, by number."""
        return [self.directory_of(number) for number in sorted(self.nodes)]

    def directory_of(self, number: int) -> str:
        """The directory that is handed over for a node."""
        return self.given.get(number, self.nodes[number].directory)

    def node_of(self, directory: str) -> HistoryNode:
        """The node that the directory belongs to."""
        return self.nodes[next(n for n in self.nodes if directory == self.directory_of(n))]

    @property
    def acknowledged(self) -> list[tuple[int, int, int]]:
        """(partition, index, TxnId) of every invocation that was answered."""
        return self.truth.acknowledged

    def balances_at(self, txn_id: int | None = None) -> dict[int, int]:
        """Account -> balance after everything up to the TxnId."""
        return self.truth.balances_at(txn_id)

    def finish(self, *, killed: Collection[int] = ()) -> list[str]:
        """Everything stops, in good order but for the `killed`; returns the directories."""
        for number, node in self.nodes.items():
            node.stop(orderly=number not in killed)
        self.orderly = [number for number, node in self.nodes.items() if node.orderly]
        self.truth.close()
        return self.directories

    def new_node(self, number: int, initial: Sequence[Entry] = ()) -> HistoryNode:
        """A fresh directory."""
        return HistoryNode(self.folder, number, self.cluster_id, self.rng, segment_bytes=self._segment_bytes, initial=initial)

    # -- calls -------------------------------------------------------------------------------------------------------------

    def leader(self, group: int) -> int:
        """The node that leads in the highest term, up or not."""
        return max(self.leads[group], key=lambda number: self.leads[group][number])

    def batch(self, partition: int, calls: Sequence[tuple[int, list[Any]]], by: int | None = None) -> Entry | None:
        """The leader (or `by`, which believes to be it) appends a batch to its own log."""
        number = by or self.leader(partition)
        held = self.nodes[number].group(partition)
        version = self._code_of(number)
        txn_ids = self._tick(len(calls), partition, number)
        term, index = self.leads[partition][number], held.last_index + 1
        raw = encode_batch(
            partition=partition, term=term, index=index, catalog=version, txn_ids=txn_ids,
            procedures=[procedure for procedure, _ in calls], params=[orjson.dumps(params) for _, params in calls],
        )  # fmt: skip
        told = tuple(
            (txn_id, params[0], -1 if procedure == BEGIN else params[1])
            for txn_id, (procedure, params) in zip(txn_ids, calls, strict=True)
        )
        entry = Entry(partition, index, term, RecordKind.BATCH, raw, peek_record(raw).checksum, calls=told, catalog=version)
        return self._lead_with(number, entry)

    def deposits(self, partition: int, count: int = 3, by: int | None = None) -> Entry | None:
        """A batch of deposits with amounts of their own."""
        calls = [(DEPOSIT, [10 * partition + self.rng.randrange(ACCOUNTS), self.rng.randint(1, 999)]) for _ in range(count)]
        return self.batch(partition, calls, by)

    def everywhere(self) -> int:
        """The node that leads all partitions appends a multi-partition call to its logs of all; its TxnId, 0 when none does."""
        number = self.leader(0)
        if not self._leads_all(number):
            return 0
        millis = max(self._tick(1, p, number)[0] >> MILLIS_SHIFT for p in range(self.partitions))
        txn_id = int(make_txn_id(millis=millis, counter=0, partition=MULTI_PARTITION))
        self._numbers += 1
        self.calls_everywhere[txn_id] = self._numbers
        self.places[txn_id] = [
            CallPlace(self.leads[p][number], self.nodes[number].group(p).last_index + 1) for p in range(self.partitions)
        ]
        for partition in range(self.partitions):
            self._append_multi(number, partition, txn_id)
        return txn_id

    def take_over(self, number: int, to: Iterable[int] | None = None) -> bool:
        """The node becomes the leader of every partition, and commits an entry of its own term in each."""
        among = list(self.nodes if to is None else to)
        for partition in range(self.partitions):
            if self.leader(partition) != number and not self.elect(partition, number, among):
                return False
            self._renew(partition, among)
        return self._leads_all(number)

    def _leads_all(self, number: int) -> bool:
        node = self.nodes.get(number)
        return node is not None and node.up and not node.silent and all(
            self.leader(p) == number and self.truth.committed[p][-1].term == self.leads[p][number]
            for p in range(self.partitions)
        )  # fmt: skip

    def _append_multi(self, number: int, partition: int, txn_id: int) -> None:
        held, version, note = self.nodes[number].group(partition), self._code_of(number), self.calls_everywhere[txn_id]
        term, index = self.leads[partition][number], held.last_index + 1
        raw = encode_batch(
            partition=partition, term=term, index=index, catalog=version, txn_ids=[txn_id], procedures=[WRITE_NOTE],
            params=[orjson.dumps([note])], places=self.places[txn_id],
        )  # fmt: skip
        told = ((txn_id, NO_ACCOUNT, note),)
        checksum = peek_record(raw).checksum
        entry = Entry(partition, index, term, RecordKind.BATCH, raw, checksum, calls=told, catalog=version, multi=txn_id)
        self._lead_with(number, entry)

    def control(self, group: int, kind: RecordKind, value: Mapping[str, Any], by: int | None = None) -> Entry | None:
        """The leader appends a control entry."""
        number = by or self.leader(group)
        held = self.nodes[number].group(group)
        return self._lead_with(number, self._entry(kind, group, held.last_index + 1, self.leads[group][number], value))

    def change_code(self, factor: int) -> bool:
        """From here on deposits count `factor` times, once the catalog entry is committed."""
        version = len(self.truth.factors) + 1
        self.truth.factors[version] = factor
        self.control(CLUSTER_GROUP, RecordKind.CATALOG, catalog_value(version, factor))
        return self.spread(CLUSTER_GROUP)

    # -- replication -------------------------------------------------------------------------------------------------------

    def replicate(self, group: int, to: int, by: int | None = None, upto: int | None = None) -> bool:
        """The leader brings another node's log in line with its own, up to an index."""
        leader = by or self.leader(group)
        source, target = self.nodes[leader], self.nodes[to]
        term = self.leads[group][leader]
        if to == leader or not source.up or not target.up or (target.silent and not target.copying):
            return False
        ours, theirs = source.group(group), target.group(group)
        if theirs.term > term:
            return False
        theirs.term = term
        at = min(ours.last_index, theirs.last_index)
        while at >= max(ours.base, theirs.base) and ours.place(at) != theirs.place(at):
            at -= 1
        if at < max(ours.base, theirs.base):
            return False
        entries = self._executable(to, ours.behind(at, upto))
        target.take(entries, say_cut=self.rng.random() < 0.5)
        reached = at + len(entries)
        matches = self._matches.setdefault((group, term), {})
        matches[to] = max(matches.get(to, 0), reached)
        return True

    def advance(self, group: int, by: int | None = None) -> int:
        """The leader counts; what a quorum holds is committed. Returns how many entries that were."""
        leader = by or self.leader(group)
        held, term = self.nodes[leader].group(group), self.leads[group][leader]
        matches = {**self._matches.get((group, term), {}), leader: held.last_index}
        done = self.truth.last(group)
        for index in range(held.last_index, done, -1):
            place = held.place(index)
            if place is None or place[0] != term:
                break
            holders = {n for n, match in matches.items() if match >= index and (n == leader or not self._is_mute(n, group))}
            if not self.nodes[leader].silent and all(self._is_quorum(c, holders) for c in self._in_force(held, done)):
                return self._commit(group, held, index)
        return 0

    def mark(self, group: int, to: int) -> None:
        """A node learns how far its group is committed, and says so in its log."""
        node = self.nodes[to]
        if not node.up or (node.silent and not node.copying):
            return
        held, done = node.group(group), self.truth.committed[group]
        commit = min(held.last_index, len(done))
        while commit > held.base and held.place(commit) != (done[commit - 1].term, done[commit - 1].checksum):
            commit -= 1
        if commit and commit >= held.base:
            node.learn_commit(group, commit, self._close(group, commit), self.truth.did.get(group, {}))

    def spread(self, group: int, to: Iterable[int] | None = None, *, marks: bool = True) -> bool:
        """Replicates to these nodes (None: to all), counts, and tells them. True when everything is committed."""
        names = [n for n in (self.nodes if to is None else to) if n != self.leader(group)]
        for number in names:
            self.replicate(group, number)
        self.advance(group)
        for number in [*names, self.leader(group)] if marks else ():
            self.mark(group, number)
        return self.truth.last(group) == self.nodes[self.leader(group)].group(group).last_index

    def elect(self, group: int, candidate: int, among: Iterable[int] | None = None) -> bool:
        """The candidate asks these nodes (None: all) for their votes; it leads from now on if a quorum gives them."""
        node = self.nodes[candidate]
        held = node.group(group)
        configuration = held.configuration()[2]
        if not node.up or node.silent or not self._is_voter(configuration, candidate):
            return False
        term = self._terms[group] + 1
        granted = {candidate} | {
            n for n in (self.nodes if among is None else among)
            if self._would_vote(self.nodes[n], n, group, held, term)
        }  # fmt: skip
        if not self._is_quorum(configuration, granted):
            return False
        self._terms[group] = term
        for number in sorted(granted):
            self.nodes[number].vote(group, term, candidate)
        self.leads[group][candidate] = term
        return True

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _entry(self, kind: RecordKind, group: int, index: int, term: int, value: Mapping[str, Any]) -> Entry:
        raw = encode_json(kind, value, partition=group, term=term, index=index)
        return Entry(group, index, term, kind, raw, peek_record(raw).checksum, value)

    def _members(
        self, group: int, voters: Iterable[int], learners: Iterable[int] = (), outgoing: Iterable[int] = ()
    ) -> dict[str, Any]:
        value: dict[str, Any] = {"voters": sorted(voters), "learners": sorted(learners), "epoch": self.epoch}
        if outgoing := sorted(outgoing):
            value["outgoing"] = outgoing
        if group == CLUSTER_GROUP:
            value |= {"partitions": self.partitions, "key_policy": asdict(KeyPolicy())}
        self.epoch += 1
        return value

    def _lead_with(self, number: int, entry: Entry) -> Entry | None:
        node = self.nodes[number]
        if not node.up or node.silent:
            return None
        node.take([entry])
        return entry

    def _renew(self, group: int, to: Iterable[int] | None = None) -> None:
        """A leader that has nothing of its term committed states the configuration again: before that it may change none."""
        number = self.leader(group)
        held, term = self.nodes[number].group(group), self.leads[group][number]
        if held.last_term != term and self.nodes[number].up and not self.nodes[number].silent:
            value = held.configuration()[2]
            self.control(group, RecordKind.CONFIGURATION, {**value})
        self.spread(group, to)

    def _commit(self, group: int, held: Held, index: int) -> int:
        done = self.truth.committed[group]
        behind = held.behind(len(done), index)
        assert held.place(len(done)) == (done[-1].term, done[-1].checksum), "what is committed stays"
        for entry in behind:
            self.truth.commit(entry)
        return len(behind)

    @staticmethod
    def _in_force(held: Held, done: int) -> list[Mapping[str, Any]]:
        """The newest configuration; and until it is committed the one before, without whose voters nothing is, too.

        Raft lets a change of one voter do without them, which from an even number can leave a majority of the old ones unaware;
        the contract does not.
        """
        newest = held.configuration()
        return [newest[2], held.configuration(newest[0] - 1)[2]] if newest[0] > done else [newest[2]]

    def _executable(self, number: int, entries: Sequence[Entry]) -> list[Entry]:
        """A node takes no batch whose code it does not have yet."""
        version = self._code_of(number)
        taken = []
        for entry in entries:
            if entry.catalog > version:
                break
            taken.append(entry)
        return taken

    def _code_of(self, number: int) -> int:
        """The newest committed catalog version that the node's log holds."""
        held = self.nodes[number].group(CLUSTER_GROUP)
        indexes = {version: index for version, (index, _) in self.truth.catalogs.items()}
        known = [v for v, index in indexes.items() if index <= held.base or self._holds(held, index)]
        return max(known, default=0)

    def _holds(self, held: Held, index: int) -> bool:
        entry = self.truth.committed[CLUSTER_GROUP][index - 1]
        return held.place(index) == (entry.term, entry.checksum)

    def _tick(self, count: int, partition: int, number: int) -> list[int]:
        """The next TxnIds by this node's clock, above all that its log holds and all that was promised."""
        self.millis += count
        held = self.nodes[number].group(partition)
        last = next((entry.calls[-1][0] for entry in reversed(held.entries) if entry.calls), 0)
        floor = max(last, self._closed[partition], self.truth.last_txn(partition)) >> MILLIS_SHIFT
        first = max(self.millis + self.skews_ms.get(number, 0) - count, floor) + 1
        return [int(make_txn_id(millis=first + n, counter=0, partition=partition)) for n in range(count)]

    def _close(self, group: int, commit: int) -> int:
        """What a mark for this commit may promise; an idle group's promise moves on with the clock."""
        promise = self.truth.last_txn(group, commit)
        held = self.nodes[self.leader(group)].group(group)
        if commit == held.last_index == self.truth.last(group) and self.rng.random() < 0.5 and not self.truth.waits:
            promise = max(promise, int(make_txn_id(millis=self.millis, counter=0, partition=min(group, CLUSTER_GROUP))))
        self._closed[group] = max(self._closed[group], promise)
        return promise

    def _is_mute(self, number: int, group: int) -> bool:
        """Whether the node's copy of the group counts for nothing."""
        node = self.nodes[number]
        if not node.silent:
            return False
        index, _, value = node.group(group).configuration()
        return not (node.copying and number in value.get("voters", ()) and index > node.copied_from.get(group, 0))

    def _would_vote(self, voter: HistoryNode, number: int, group: int, candidate: Held, term: int) -> bool:
        held = voter.group(group)
        up_to_date = (candidate.last_term, candidate.last_index) >= (held.last_term, held.last_index)
        return voter.up and not self._is_mute(number, group) and held.term < term and up_to_date

    @staticmethod
    def _is_voter(configuration: Mapping[str, Any], number: int) -> bool:
        return number in configuration.get("voters", ()) or number in configuration.get("outgoing", ())

    @staticmethod
    def _is_quorum(configuration: Mapping[str, Any], nodes: Collection[int]) -> bool:
        halves = [set(configuration.get("voters", ())), set(configuration.get("outgoing", ()))]
        return any(halves) and all(2 * len(half & set(nodes)) > len(half) for half in halves if half)
