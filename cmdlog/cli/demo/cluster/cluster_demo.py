"""`cmdlog cluster demo`: nodes under load lose leaders, disks and members, and the proof that nothing acknowledged is lost.

Three `cmdlog serve` processes on loopback carry one log. While clients of all of them are at work, the leader is killed with
SIGKILL, the next one is stopped with SIGSTOP past an election, the next one hears nothing any more, and all are killed at once.
Then disks fail and members change (`member_stages`). Every client repeats what was not answered under the same key, at the next
node. At last all answered calls are sent again, the nodes are stopped, and `cmdlog recover` makes one node of their directories.
`cmdlog.cli.demo.proof` judges, as of one node.

One rule: the exit code is 0 only when every proof holds; and no process or folder remains, whatever happens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.bank import Bank, BankState
from cmdlog.cli.demo.cluster.cluster_nodes import DemoCluster, LeadingNode
from cmdlog.cli.demo.cluster.member_stages import ClusterFault, led, member_faults
from cmdlog.cli.demo.demo import (
    BATCH_CALLS,
    LOAD_CALLS,
    TICK_S,
    CallsOption,
    ClientsOption,
    DataOption,
    KeepOption,
    PartitionsOption,
    PlotOption,
    SeedOption,
    demo_folder,
)
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall, ProofVerdict, Rows, differing_rows, prove
from cmdlog.cli.demo.server import run_command
from cmdlog.cli.demo.shown_state import table_rows
from cmdlog.cli.demo.stage_history import DemoStage, draw_svg, draw_text
from cmdlog.cli.disk_errors import write_output
from cmdlog.cli.output import JsonFlag, out
from cmdlog.signal_handlers import undisturbed

if TYPE_CHECKING:
    from cmdlog.cli.demo.display import DemoDisplay

PORTIONS: Final = 10  # of the calls: in peace, and with each of nine faults
SILENCE_S: Final = 240.0  # without an answer, in which nodes start on a machine that may do something else


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the user asked for."""

    calls: int
    clients: int
    partitions: int
    seed: int


@dataclass(slots=True)
class FaultReport:
    """One fault, as the clients have seen it."""

    stage: str
    what: str  # happened
    node: int  # that it happened to
    without_service_s: float = 0.0  # the longest time in which no client got an answer
    leader: int = 0  # when calls are answered again
    term: int = 0
    answered: int = 0  # calls, from the fault to the end of the stage
    unknown: int = 0  # attempts whose outcome was unknown; each was repeated under its key
    refused: int = 0  # attempts that no node accepted; each was repeated
    deposes: bool = False  # the node led before, and was not to lead while it lasted


@dataclass(slots=True)
class ClusterReport:
    """The figures of one run, in the order in which they arise."""

    seed: int
    partitions: int
    clients: int
    calls: int = 0  # with those that load the tables
    ready_s: float = 0.0  # from the start of the processes to a leader
    faults: list[FaultReport] = field(default_factory=list)
    answered_by: dict[str, int] = field(default_factory=dict)  # node -> calls of the load
    repeated: int = 0  # answered calls that were sent again, to see the same answer
    recovered_calls: int = 0  # replayed by `cmdlog recover` of the nodes' directories
    recover_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stages: list[dict[str, Any]] = field(default_factory=list)  # when what was done, and how many calls
    data: str = ""

    def judge(self, verdict: ProofVerdict) -> None:
        self.proofs, self.differences = verdict.proofs, verdict.differences


def cluster_demo(  # noqa: PLR0917 - typer reads options from the signature
    calls: CallsOption = 4_000,
    clients: ClientsOption = 16,
    partitions: PartitionsOption = 4,
    seed: SeedOption = None,
    data: DataOption = None,
    keep: KeepOption = False,
    plot: PlotOption = None,
    json: JsonFlag = False,
) -> None:
    """Load nodes, end and cut off their leaders, lose disks, change members, and prove that nothing is lost or happened twice.

    [bold]Examples[/bold]

      cmdlog cluster demo
      cmdlog cluster demo --calls 50000 --clients 32 --seed 7
      cmdlog cluster demo --data ./bank-cluster --json
    """
    from cmdlog.cli.demo.display import DemoDisplay

    options = ClusterOptions(calls, clients, partitions, random.randrange(2**31) if seed is None else seed)
    with demo_folder(data, keep=keep) as folder, DemoDisplay(quiet=out.json) as display:
        run = ClusterDemo(options, folder, display)
        report = run.run()
    if plot is not None:
        write_output(plot, draw_svg(run.stages, f"cmdlog cluster demo, seed {options.seed}").encode())
    if data is not None or keep:
        report.data = str(folder)
    out.result(asdict(report), lambda: display.report("cmdlog cluster demo", report, figures(report), draw_text(run.stages)))
    if report.differences:
        raise typer.Exit(1)


class ClusterDemo:
    """One run. The stages share the calls, the nodes and the report."""

    def __init__(self, options: ClusterOptions, folder: Path, display: DemoDisplay) -> None:
        self._options, self._folder, self._display = options, folder, display
        self._work = Bank(calls=options.calls, partitions=options.partitions, seed=options.seed)
        self._began = time.monotonic()
        from cmdlog.cli.demo.cluster.cluster_clients import ANSWER_WITHIN_S, ClusterLoad
        from cmdlog.client import Client

        self._nodes = DemoCluster(folder, application=self._work.application, partitions=options.partitions)
        shares = [list(self._work.load[client :: options.clients]) for client in range(options.clients)]
        self._load = ClusterLoad(shares, self._nodes.urls)
        self._client = Client(list(self._nodes.urls.values()), timeout_s=ANSWER_WITHIN_S)
        self._leads = LeadingNode(0, 0)
        self.report = ClusterReport(options.seed, options.partitions, options.clients, calls=len(self.calls))
        self.stages: list[DemoStage] = []

    @property
    def calls(self) -> list[DemoCall]:
        return [*self._work.loading, *self._work.load]

    def run(self) -> ClusterReport:
        """All stages. Raises: CommandFailed when a stage cannot be carried out."""
        try:
            self._start()
            self._fill()
            self._load.start()
            self._in_peace()
            for fault in self._faults():
                self._survive(fault)
            self._repeat()
            seen = self._read_state()
            self._leave()
            self._nodes.stop()
            self.report.judge(self._judge(seen))
        finally:
            with undisturbed():
                self.close()
        self.report.seconds = time.monotonic() - self._began
        self.report.stages = [stage.to_json() for stage in self.stages]
        return self.report

    def close(self) -> None:
        """Ends clients and nodes; idempotent."""
        self._leave()
        self._nodes.close()

    def _leave(self) -> None:
        """Ends the clients: a leader that stops gives those that are still connected a second to go elsewhere."""
        self._load.stop()
        self._client.close()

    # -- stages ----------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._display.stage("starting three nodes")
        began = self._now()
        self._nodes.start(*self._nodes.nodes)
        leads = self._leads = self._nodes.wait_leader()
        self._add_stage("start", began, 0)
        self.report.ready_s = self._now() - began
        self._display.print_line(f"node {leads.node} leads in term {leads.term}, {self.report.ready_s:.2f} s after the start")

    def _fill(self) -> None:
        """The loader's calls through /v1/batch."""
        self._display.stage("loading", total=len(self._work.loading))
        for call, answer in self._batches(self._work.loading, LOAD_CALLS):
            call.answer, call.attempts = answer, 1
        self._display.print_line(self._work.loaded)

    def _in_peace(self) -> None:
        self._display.stage("calling", total=self._options.calls)
        began = self._now()
        portion = self._options.calls // PORTIONS
        self._load.allow(portion)
        marks: list[tuple[float, int]] = []
        self._answer_until(portion, marks)
        self._add_stage("load", began, portion, marks)
        rate = portion / (self._now() - began)
        self._display.print_line(f"{portion:,} calls answered, {rate:,.0f} a second, by clients of all nodes")

    def _faults(self) -> Sequence[ClusterFault]:
        nodes = self._nodes
        return (
            ClusterFault("kill", "SIGKILL to node {}", led, nodes.kill, nodes.start, deposes=True),
            ClusterFault("hang", "SIGSTOP to node {}", led, nodes.pause, nodes.resume, deposes=True),
            ClusterFault("cut", "nothing reaches node {}", led, nodes.proxies.cut, nodes.proxies.heal, deposes=True),
            ClusterFault("blackout", "SIGKILL to all nodes, of which {} led", led, self._restart_all, lambda _: None),
            *member_faults(nodes),
        )

    def _restart_all(self, _leader: int) -> None:
        self._nodes.kill(*self._nodes.nodes)
        self._nodes.start(*self._nodes.nodes)

    def _survive(self, fault: ClusterFault) -> None:
        """A third of the stage's calls is answered before the fault, a third before it ends, and a third after that."""
        struck, load, marks = fault.choose(self._leads.node), self._load, list[tuple[float, int]]()
        first = load.answered
        portion = min(-(-self._options.calls // PORTIONS), self._options.calls - first)
        third = portion // 3
        self._display.stage(fault.stage, total=self._options.calls)
        began = self._now()
        load.allow(third if fault.level else portion)
        self._answer_until(first + third, marks)
        if fault.level:
            self._nodes.wait_level()
        load.observe()
        fault.strike(struck)
        load.allow(portion - third if fault.level else 0)
        self._answer_until(first + 2 * third, marks)
        seen, leads = load.service, self._nodes.wait_leader()
        told = FaultReport(fault.stage, fault.what.format(struck), struck, round(seen.longest_gap_s, 3), leads.node, leads.term)
        fault.mend(struck)
        self._answer_until(first + portion, marks)
        self._nodes.wait_level()
        self._leads = self._nodes.wait_leader()
        told.answered, told.unknown, told.refused, told.deposes = seen.answered, seen.unknown, seen.refused, fault.deposes
        self._add_stage(fault.stage, began, portion, [(moment, done - first) for moment, done in marks])
        self.report.faults.append(told)
        self._display.print_line(describe_fault(told))

    def _repeat(self) -> None:
        """Every call is sent once more under its key."""
        self._display.stage("repeating all calls", total=len(self.calls))
        for call, answer in self._batches(self.calls, BATCH_CALLS):
            call.repeated, call.before_kill = answer, True
        self.report.repeated = len(self.calls)
        self.report.answered_by = {str(node): count for node, count in sorted(self._load.answered_by.items())}

    def _read_state(self) -> BankState:
        """What the cluster shows now."""
        from cmdlog.cli.demo.cluster.cluster_clients import ShownCluster

        self._display.stage("comparing")
        return self._work.read_state(ShownCluster(self._client))

    def _judge(self, seen: BankState) -> ProofVerdict:
        """What the nodes hold when they are stopped, what a recovery makes of them, and all proofs."""
        self._display.stage("cmdlog recover")
        began = self._now()
        held = {node: self._rows_in(self._nodes.data(node)) for node in self._nodes.nodes}
        recovered = self._recover()
        self._add_stage("recover", began, self.report.recovered_calls)
        return self.prove(seen, held, recovered)

    def prove(self, seen: BankState, held: Mapping[int, Rows], recovered: Rows) -> ProofVerdict:
        """All proofs. `held`: what the directory of each node has."""
        first, *others = held
        same = (differing_rows(held[first], held[node], where=f"on node {node}") for node in others)
        own = [
            *self._work.proofs(self.calls, seen),
            ("another node led after each fault of one that led", _same_leader(self.report.faults)),
            ("all nodes hold the same rows", chain.from_iterable(same)),
        ]
        return prove(self.calls, own, kept=held[first], rebuilt=recovered, source="a recovery of the nodes' directories")

    def _recover(self) -> Rows:
        """The rows that `cmdlog recover --to` makes of the nodes' directories."""
        target = self._folder / "recovered"
        directories = [str(self._nodes.data(node)) for node in self._nodes.nodes]
        result, self.report.recover_s = run_command(
            "recover", *directories, "--to", str(target), log=self._folder / "recover.log"
        )
        self.report.recovered_calls = int(result["replayed"])
        self._display.print_line(
            f"cmdlog recover of {len(directories)} directories: {self.report.recovered_calls:,} calls in "
            f"{self.report.recover_s:.2f} s"
        )
        return self._rows_in(target)

    def _rows_in(self, directory: Path) -> Rows:
        return table_rows(directory, self._options.partitions)

    # -- the run ---------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Seconds on the picture's axis."""
        return time.monotonic() - self._began

    def _add_stage(self, name: str, began: float, calls: int, marks: Sequence[tuple[float, int]] = ()) -> None:
        self.stages.append(DemoStage(name, began, self._now(), calls, list(marks)))

    def _answer_until(self, calls: int, marks: list[tuple[float, int]]) -> None:
        """Waits until so many calls of the load are answered. Raises: CommandFailed when none is for long."""
        before, since = self._load.answered, time.monotonic()
        while not self._load.wait_answered(calls, TICK_S):
            done = self._load.answered
            marks.append((self._now(), done))
            self._display.advance(done)
            self._nodes.check_alive()
            if done > before:
                before, since = done, time.monotonic()
            elif time.monotonic() - since > SILENCE_S:
                raise CommandFailed(f"no call was answered for {SILENCE_S:g} s")
        self._display.advance(self._load.answered)

    def _batches(self, calls: Sequence[DemoCall], size: int) -> Iterator[tuple[DemoCall, ClientAnswer]]:
        """Calls with their answers, by /v1/batch."""
        from cmdlog.cli.demo.cluster.cluster_clients import ask_many

        for start in range(0, len(calls), size):
            part = calls[start : start + size]
            yield from zip(part, ask_many(self._client, part), strict=True)
            self._display.advance(start + len(part))


def _same_leader(faults: Sequence[FaultReport]) -> Iterator[str]:
    """Faults that did not strike: the node still led while it lasted."""
    for fault in faults:
        if fault.deposes and fault.leader == fault.node:
            yield f"{fault.what}, and it still led in term {fault.term}"


def describe_fault(fault: FaultReport) -> str:
    """What happened in a stage, in a sentence."""
    repeated = f", {fault.unknown} attempts of unknown outcome and {fault.refused} refused ones repeated"
    return (
        f"{fault.stage}: {fault.what}; {fault.without_service_s:.2f} s without service, then node {fault.leader} leads in term "
        f"{fault.term}; {fault.answered:,} calls answered{repeated if fault.unknown + fault.refused else ''}"
    )


def figures(report: ClusterReport) -> list[tuple[str, str]]:
    """The table, top to bottom."""
    return [
        ("calls", f"{report.calls:,} by {report.clients} clients"),
        ("answered by nodes " + ", ".join(report.answered_by), " / ".join(f"{n:,}" for n in report.answered_by.values())),
        ("time to the first leader", f"{report.ready_s:.2f} s"),
        *((f"without service: {fault.stage}", f"{fault.without_service_s:.2f} s") for fault in report.faults),
        ("unknown outcomes, repeated", f"{sum(fault.unknown for fault in report.faults):,}"),
        ("answered calls sent again", f"{report.repeated:,}"),
        ("cmdlog recover of all directories", f"{report.recovered_calls:,} calls in {report.recover_s:.2f} s"),
        ("whole run", f"{report.seconds:.1f} s (seed {report.seed})"),
    ]
