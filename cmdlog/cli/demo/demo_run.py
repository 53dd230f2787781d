"""One run of a demo: nodes under load lose processes, state files, disks and members, and the proof that nothing is lost.

Real `cmdlog serve` processes on loopback carry the bank sample. While clients of all of them are at work, one fault after the
other strikes (`_faults`). Every client repeats what was not answered under the same key. At last all answered calls are sent
again, the nodes are stopped, and `cmdlog recover` makes one node of what their directories hold. `proof` judges from outside.

One rule: a run whose report names no difference has proved everything; and no process remains, whatever happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.client_load import ANSWER_WITHIN_S, ClientLoad, ask_many
from cmdlog.cli.demo.demo_report import DemoDisplay, DemoReport, FaultReport
from cmdlog.cli.demo.nodes import DemoNodes, LeadingNode
from cmdlog.cli.demo.proof import BRANCHES, BankState, ClientAnswer, DemoCall, ProofVerdict, Rows, differing_rows, prove
from cmdlog.cli.demo.server import run_command
from cmdlog.client import Client
from cmdlog.signal_handlers import undisturbed

CUSTOMERS: Final = 50  # of each branch; all accounts together fit one query (query_rows_max)
ACCOUNTS_SQL: Final = "SELECT branch, customer, savings, checking FROM accounts"
POSITION_TABLE: Final = "_cmdlog_meta"  # how far a state has come, in entries with and without calls
TICK_S: Final = 0.1
BATCH_CALLS: Final = 1000
LOAD_CALLS: Final = 50  # loading calls are long
SILENCE_S: Final = 240.0  # without an answer, in which nodes start on a machine that may do something else


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for."""

    nodes: int
    calls: int
    clients: int
    partitions: int
    seed: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a node while clients are at work, and what ends it. `strike` may return what it has done."""

    stage: str
    what: str  # with the node's number for {}
    choose: Callable[[int], int]  # the node, of the one that leads
    strike: Callable[[int], Any]
    mend: Callable[[int], Any] = lambda _node: None
    deposes: bool = False  # the node led, and another one leads before it is mended


class DemoRun:
    """One run. The stages share the calls, the nodes and the report."""

    def __init__(self, options: DemoOptions, folder: Path, display: DemoDisplay) -> None:
        from procedures.samples import bank

        self._options, self._folder, self._display = options, folder, display
        shape = {"branches": BRANCHES, "customers": CUSTOMERS}
        self._loading = _keyed(f"demo-{options.seed}-load", bank.loader(**shape))
        load = _keyed(f"demo-{options.seed}", bank.workload(options.seed, calls=options.calls, **shape))
        self.calls = [*self._loading, *load]
        self._began = time.monotonic()
        self._nodes = DemoNodes(folder, partitions=options.partitions, count=options.nodes)
        self._load = ClientLoad([load[client :: options.clients] for client in range(options.clients)], self._nodes.urls)
        self._client = Client(list(self._nodes.urls.values()), timeout_s=ANSWER_WITHIN_S)
        self._leads = LeadingNode(0, 0)
        self.report = DemoReport(options.nodes, options.seed, options.partitions, options.clients, calls=len(self.calls))

    def run(self) -> DemoReport:
        """All stages. Raises: CommandFailed when a stage cannot be carried out."""
        faults = self._faults()
        portion = -(-self._options.calls // (1 + len(faults)))
        try:
            self._start()
            self._fill()
            self._load.start()
            self._in_peace(portion)
            for fault in faults:
                self._survive(fault, portion)
            self._repeat()
            seen = self._read_state()
            self._leave()
            self._nodes.stop()
            verdict = self._judge(seen)
        finally:
            with undisturbed():
                self.close()
        self.report.proofs, self.report.differences = verdict.proofs, verdict.differences
        self.report.seconds = time.monotonic() - self._began
        return self.report

    def close(self) -> None:
        """Ends clients and nodes; idempotent."""
        self._leave()
        self._nodes.close()

    def _leave(self) -> None:
        """Ends the clients: a node that stops gives those that are still connected a second to go elsewhere."""
        self._load.stop()
        self._client.close()

    def _faults(self) -> Sequence[Fault]:
        """One stage each, in order. A cluster has three members at the end, of which two have seen nothing of the beginning."""
        nodes = self._nodes
        if self._options.nodes == 1:
            what = "SIGKILL to the server, and its state files are gone"
            return (Fault("kill", what, _led, lambda _: nodes.recover_alone()),)
        return (
            Fault("kill", "SIGKILL to node {}", _led, nodes.kill, nodes.start, deposes=True),
            Fault("hang", "SIGSTOP to node {}", _led, nodes.pause, nodes.resume, deposes=True),
            Fault("blackout", "SIGKILL to all nodes, of which {} led", _led, lambda _: nodes.restart_all()),
            Fault("wipe", "node {} and its disk are gone, and replaced", _led, nodes.wipe, nodes.replace, deposes=True),
            Fault("join", "node {} joins", lambda _: nodes.joining, nodes.add, nodes.start_voting),
            Fault("retire", "node {} retires", _led, nodes.retire),
        )

    # -- stages ----------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._display.stage("starting")
        began = time.monotonic()
        self._nodes.start(*self._nodes.nodes)
        leads = self._leads = self._nodes.wait_leader()
        self.report.ready_s = time.monotonic() - began
        led = f"node {leads.node} leads in term {leads.term}" if leads.term else "the server is ready"
        self._display.print_line(f"{led} {self.report.ready_s:.2f} s after the start")

    def _fill(self) -> None:
        """The loader's calls through /v1/batch."""
        self._display.stage("loading", total=len(self._loading))
        for call, answer in self._batches(self._loading, LOAD_CALLS):
            call.answer = answer
        where = f"{BRANCHES} branches on {self._options.partitions} partitions"
        self._display.print_line(f"{BRANCHES * CUSTOMERS:,} accounts in {where}")

    def _in_peace(self, portion: int) -> None:
        self._display.stage("calling", total=self._options.calls)
        began = time.monotonic()
        self._load.allow(portion)
        self._answer_until(portion)
        self.report.calls_per_s = round(portion / (time.monotonic() - began))
        self._display.print_line(f"{portion:,} calls answered, {self.report.calls_per_s:,.0f} a second")

    def _survive(self, fault: Fault, portion: int) -> None:
        """A third of the stage's calls is answered before the fault, a third before it ends, and a third after that."""
        struck, load = fault.choose(self._leads.node), self._load
        first = load.answered
        portion = min(portion, self._options.calls - first)
        third = portion // 3
        self._display.stage(fault.stage, total=self._options.calls)
        load.allow(portion)
        self._answer_until(first + third)
        load.observe()
        done = fault.strike(struck)
        self._answer_until(first + 2 * third)
        seen, leads = load.service, self._nodes.wait_leader()
        what = "; ".join((fault.what.format(struck), *((done,) if isinstance(done, str) else ())))
        entry = FaultReport(fault.stage, what, struck, round(seen.longest_gap_s, 3), leads.node, leads.term)
        fault.mend(struck)
        self._answer_until(first + portion)
        self._nodes.wait_level()
        self._leads = self._nodes.wait_leader()
        entry.answered, entry.unknown, entry.refused, entry.deposes = seen.answered, seen.unknown, seen.refused, fault.deposes
        self.report.faults.append(entry)
        self._display.print_line(entry.describe())

    def _repeat(self) -> None:
        """Every call is sent once more under its key; /v1/batch knows the same keys."""
        self._display.stage("repeating all calls", total=len(self.calls))
        for call, answer in self._batches(self.calls, BATCH_CALLS):
            call.repeated = answer
        self.report.repeated = len(self.calls)
        self.report.answered_by = {str(node): count for node, count in sorted(self._load.answered_by.items())}

    def _read_state(self) -> BankState:
        """What is shown now. Raises: CommandFailed."""
        self._display.stage("comparing")
        rows = self._client.query(ACCOUNTS_SQL).rows
        accounts = {(branch, customer): (savings, checking) for branch, customer, savings, checking in rows}
        if len(accounts) != len(rows):
            raise CommandFailed("two partitions show the same account")
        return BankState(accounts, [(money, count) for money, count in self._client.call("total", idempotency_key=None)])

    def _judge(self, seen: BankState) -> ProofVerdict:
        """What the nodes hold when they are stopped, what a recovery makes of that, and all proofs."""
        self._display.stage("cmdlog recover")
        target = self._folder / "recovered"
        directories = {node: self._nodes.data(node) for node in self._nodes.nodes}
        held = {node: table_rows(directory, self._options.partitions) for node, directory in directories.items()}
        log = self._folder / "recover.log"
        result, self.report.recover_s = run_command("recover", *map(str, directories.values()), "--to", str(target), log=log)
        self.report.recovered_calls = int(result["replayed"])
        return self.prove(seen, held, table_rows(target, self._options.partitions))

    def prove(self, seen: BankState, held: Mapping[int, Rows], recovered: Rows) -> ProofVerdict:
        """All proofs. `held`: what the directory of each node has."""
        first, *others = held
        same = (differing_rows(held[first], held[node], where=f"on node {node}") for node in others)
        of_several = (
            ("another node led after each fault of one that led", _same_leader(self.report.faults)),
            ("all nodes hold the same rows", chain.from_iterable(same)),
        )
        return prove(self.calls, seen, of_several if others else (), kept=held[first], rebuilt=recovered)

    # -- the run ---------------------------------------------------------------------------------------------------------

    def _answer_until(self, calls: int) -> None:
        """Waits until so many calls of the load are answered. Raises: CommandFailed when none is for long."""
        before, since = self._load.answered, time.monotonic()
        while not self._load.wait_answered(calls, TICK_S):
            done = self._load.answered
            self._display.advance(done)
            self._nodes.check_alive()
            if done > before:
                before, since = done, time.monotonic()
            elif time.monotonic() - since > SILENCE_S:
                raise CommandFailed(f"no call was answered for {SILENCE_S:g} s")
        self._display.advance(self._load.answered)

    def _batches(self, calls: Sequence[DemoCall], size: int) -> Iterator[tuple[DemoCall, ClientAnswer]]:
        """Calls with their answers, by /v1/batch."""
        for start in range(0, len(calls), size):
            part = calls[start : start + size]
            yield from zip(part, ask_many(self._client, part), strict=True)
            self._display.advance(start + len(part))


def _led(leader: int) -> int:
    """The node of the stage is the one that leads."""
    return leader


def _keyed(prefix: str, calls: Iterator[tuple[str, dict[str, Any]]]) -> list[DemoCall]:
    """Calls under keys that name the run, so that a kept directory can be used twice."""
    return [DemoCall(f"{prefix}-{number}", name, params) for number, (name, params) in enumerate(calls)]


def _same_leader(faults: Sequence[FaultReport]) -> Iterator[str]:
    """Faults that did not strike: the node still led while it lasted."""
    for fault in faults:
        if fault.deposes and fault.leader == fault.node:
            yield f"{fault.what}, and it still led in term {fault.term}"


def table_rows(directory: Path, partitions: int) -> Rows:
    """Rows and digest of every table of a node that is stopped, idempotency keys among them."""
    from procedures.storage.state import open_reader
    from replay.state.trust import state_path
    from snapshot.table_digest import table_digests

    found = {}
    for partition in range(partitions):
        connection, _ = open_reader(state_path(str(directory), partition))
        with closing(connection):
            tables = table_digests(connection)
        found.update({(partition, name): (it.rows, it.sha256) for name, it in tables.items() if name != POSITION_TABLE})
    return found
