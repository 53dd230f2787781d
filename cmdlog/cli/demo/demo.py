"""`cmdlog demo`: the main job from end to end, on this machine, with its proof.

A real server with a sample is loaded over HTTP by several clients, killed with SIGKILL in the middle of the load. It also loses
its state files, as a machine may that loses power: they are a cache of the log. Then it is recovered with `cmdlog recover`, which
replays every call, and started again; the clients repeat what was not answered and finish. Then `demo_proof` judges from outside.
What a sample brings (calls, what to look at, its own proofs) is in `demo_bank` and `demo_tpcc`.

One rule: the exit code is 0 only when every proof holds; and no process or folder remains, whatever happens.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.bank import BRANCHES, Bank
from cmdlog.cli.demo.clients import Http, Load, ServerAddress, Unanswered, send_batch
from cmdlog.cli.demo.proof import DemoCall, DemoWork, ProofVerdict, Rows, prove
from cmdlog.cli.demo.server import ServerProcess, run_command
from cmdlog.cli.demo.shown_state import ShownState, table_rows
from cmdlog.cli.demo.stage_history import DemoStage, draw_svg, draw_text
from cmdlog.cli.demo.tpcc import Tpcc
from cmdlog.cli.disk_errors import write_output
from cmdlog.cli.output import JsonFlag, out
from cmdlog.signal_handlers import undisturbed

if TYPE_CHECKING:
    from cmdlog.cli.demo.display import DemoDisplay

TICK_S: Final = 0.1
BATCH_CALLS: Final = 1000
LOAD_CALLS: Final = 50  # loading calls are long
STATE_FOLDER: Final = "state"  # of a node's directory; see `replay.state.trust`, which takes a second to import
WORKLOADS: Final[Mapping[str, type[Bank] | type[Tpcc]]] = {"bank": Bank, "tpcc": Tpcc}

CallsOption = Annotated[int, typer.Option("--calls", min=1, max=10_000_000, help="Calls to make.")]
ClientsOption = Annotated[int, typer.Option("--clients", min=1, max=256, help="Concurrent clients.")]
PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, max=BRANCHES, help="Partitions of the server.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the load; by default a new one each time.")]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="New directory for the server; kept afterwards.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the picture of the run there, as SVG.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")]
WorkloadOption = Annotated[Literal["bank", "tpcc"], typer.Option("--workload", help="Sample application to run.")]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for."""

    calls: int
    clients: int
    partitions: int
    seed: int
    workload: str


@dataclass(slots=True)
class DemoReport:
    """The figures of one run, in the order in which they arise."""

    workload: str
    seed: int
    partitions: int
    clients: int
    calls: int = 0  # with those that load the tables
    killed_processes: int = 0
    acknowledged_before_kill: int = 0
    unanswered_at_kill: int = 0  # under way when the server was killed, and sent again under the same key
    unanswered_but_logged: int = 0  # of those, executed before the kill: the repetition got the first outcome
    recover: dict[str, Any] = field(default_factory=dict)  # what `cmdlog recover --json` said
    recover_s: float = 0.0
    ready_s: float = 0.0  # from the start of the process to serving calls
    repeated_after_recovery: int = 0  # answered calls that were sent again, to see the same answer
    rebuilt_calls: int = 0  # replayed from the log alone into another directory, at the end
    rebuild_s: float = 0.0
    load_s: float = 0.0  # with a server at work
    calls_per_s: float = 0.0
    notes: list[str] = field(default_factory=list)  # about the load
    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stages: list[dict[str, Any]] = field(default_factory=list)  # when what was done, and how many calls
    data: str = ""

    def judge(self, verdict: ProofVerdict) -> None:
        self.proofs, self.differences = verdict.proofs, verdict.differences


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("demo")(demo)


def demo(  # noqa: PLR0917 - typer reads options from the signature
    workload: WorkloadOption = "bank",
    calls: CallsOption = 6_000,
    clients: ClientsOption = 16,
    partitions: PartitionsOption = 4,
    seed: SeedOption = None,
    data: DataOption = None,
    keep: KeepOption = False,
    plot: PlotOption = None,
    json: JsonFlag = False,
) -> None:
    """Load a server, kill it with SIGKILL, recover it, and prove that nothing acknowledged is lost and nothing happened twice.

    [bold]Examples[/bold]

      cmdlog demo
      cmdlog demo --calls 50000 --clients 32 --seed 7
      cmdlog demo --workload tpcc
      cmdlog demo --data ./bank-data --json
      cmdlog demo --plot run.svg
    """
    from cmdlog.cli.demo.display import DemoDisplay, rows

    options = DemoOptions(calls, clients, partitions, random.randrange(2**31) if seed is None else seed, workload)
    with demo_folder(data, keep=keep) as folder, DemoDisplay(quiet=out.json) as display:
        run = Demo(options, folder, display)
        report = run.run()
    if plot is not None:
        write_output(plot, draw_svg(run.stages, f"cmdlog demo, seed {options.seed}").encode())
    if data is not None or keep:
        report.data = str(folder)
    out.result(asdict(report), lambda: display.report("cmdlog demo", report, rows(report), draw_text(run.stages)))
    if report.differences:
        raise typer.Exit(1)


class Demo:
    """One run. The stages share the calls, the place of the server and the report."""

    def __init__(self, options: DemoOptions, folder: Path, display: DemoDisplay) -> None:
        self._options, self._folder, self._display = options, folder, display
        self._log = folder / "server.log"
        self._data = folder / "data"
        self._place, self._http = ServerAddress(), Http()
        self._work: DemoWork = WORKLOADS[options.workload](calls=options.calls, partitions=options.partitions, seed=options.seed)
        self._shares = [list(self._work.load[client :: options.clients]) for client in range(options.clients)]
        self._report = DemoReport(
            options.workload, options.seed, options.partitions, options.clients, notes=list(self._work.notes)
        )
        self._server: ServerProcess | None = None
        self._began = time.monotonic()
        self.stages: list[DemoStage] = []

    @property
    def calls(self) -> list[DemoCall]:
        return [*self._work.loading, *(call for share in self._shares for call in share)]

    def run(self) -> DemoReport:
        """All stages. Raises: CommandFailed when a stage cannot be carried out."""
        began, report = time.monotonic(), self._report
        report.calls = len(self.calls)
        load = Load(self._shares, self._place, watermark=max(1, self._options.calls // 2))
        try:
            self._start()
            self._fill()
            self._load_until_killed(load)
            self._recover()
            self._start()
            self._finish(load)
            self._repeat()
            seen = self._read_state()
            self._running.stop()
            kept = table_rows(self._data, self._options.partitions)
            report.judge(prove(self.calls, self._work.proofs(self.calls, seen), kept=kept, rebuilt=self._rebuild()))
        except Unanswered as error:
            raise CommandFailed(
                f"the server closed a connection in the middle: {error}", hint=self._running.last_words()
            ) from error
        finally:
            with undisturbed():
                load.stop()
                self._http.close()
                if self._server is not None:
                    self._server.kill([])
        report.seconds = time.monotonic() - began
        report.stages = [stage.to_json() for stage in self.stages]
        return report

    def _now(self) -> float:
        """Seconds on the picture's axis."""
        return time.monotonic() - self._began

    def _add_stage(self, name: str, began: float, calls: int, marks: Sequence[tuple[float, int]] = ()) -> None:
        self.stages.append(DemoStage(name, began, self._now(), calls, list(marks)))

    @property
    def _running(self) -> ServerProcess:
        if self._server is None:
            raise RuntimeError("no server was started")
        return self._server

    def _start(self) -> None:
        self._display.stage("starting the server")
        began = self._now()
        server = self._server = ServerProcess(
            self._data, partitions=self._options.partitions, log=self._log, application=self._work.application
        )
        self._add_stage("start", began, 0)
        self._display.print_line(f"server {server.pid} serves {server.url} after {server.ready_s:.2f} s")

    def _fill(self) -> None:
        """The loader's calls through /v1/batch."""
        loading = self._work.loading
        self._display.stage("loading", total=len(loading))
        for start in range(0, len(loading), LOAD_CALLS):
            part = loading[start : start + LOAD_CALLS]
            for call, answer in zip(part, send_batch(self._http, self._running.url, part), strict=True):
                call.answer, call.attempts, call.before_kill = answer, 1, True
            self._display.advance(start + len(part))
        self._display.print_line(self._work.loaded)

    def _load_until_killed(self, load: Load) -> None:
        server, report = self._running, self._report
        sites = self._status()["sites"]
        self._display.stage("calling", total=self._options.calls)
        began = time.monotonic()
        start = self._now()
        self._place.up(server.url)
        load.start()
        marks = []
        while not load.reached.wait(TICK_S):
            marks.append((self._now(), load.answered))
            self._display.advance(load.answered)
            self._still_alive(load)
        load.check()
        report.killed_processes = server.kill(sites)
        self._add_stage("load", start, load.answered, marks)
        self._place.gone()
        report.load_s = time.monotonic() - began
        report.acknowledged_before_kill = sum(call.before_kill for call in self.calls)
        self._display.print_line(
            f"SIGKILL to {report.killed_processes} processes after {report.acknowledged_before_kill:,} acknowledged calls"
        )

    def _recover(self) -> None:
        self._display.stage("cmdlog recover")
        shutil.rmtree(self._data / STATE_FOLDER)
        began = self._now()
        self._report.recover, self._report.recover_s = run_command("recover", str(self._data), log=self._log)
        replayed = int(self._report.recover["replayed"])
        self._add_stage("recover", began, replayed)
        self._display.print_line(f"cmdlog recover replayed {replayed:,} calls from the log in {self._report.recover_s:.2f} s")

    def _finish(self, load: Load) -> None:
        self._report.ready_s = self._running.ready_s
        last_before = int(self._status()["clock"]["last_txn"])  # higher than all ids of the killed server, lower than all to come
        self._display.stage("calling again", total=self._options.calls)
        began, start, before = time.monotonic(), self._now(), load.answered
        self._place.up(self._running.url)
        marks = []
        while not load.wait(TICK_S):
            marks.append((self._now(), load.answered - before))
            self._display.advance(load.answered)
            self._still_alive(load)
        self._add_stage("resume", start, load.answered - before, marks)
        report, calls = self._report, self.calls
        report.acknowledged_before_kill = sum(call.before_kill for call in calls)  # with those whose answers were on their way
        report.load_s += time.monotonic() - began
        report.calls_per_s = round(self._options.calls / report.load_s)
        retried = [call for call in calls if call.attempts > 1 and call.logged]
        report.unanswered_at_kill = len(retried)
        report.unanswered_but_logged = sum(call.answer is not None and call.answer.txn_id <= last_before for call in retried)

    def _repeat(self) -> None:
        """Every call that the killed server had answered is sent once more under its key; /v1/batch knows the same keys."""
        answered = [call for call in self.calls if call.before_kill and call.logged]
        self._display.stage("repeating answered calls", total=len(answered))
        for start in range(0, len(answered), BATCH_CALLS):
            part = answered[start : start + BATCH_CALLS]
            for call, answer in zip(part, send_batch(self._http, self._running.url, part), strict=True):
                call.repeated = answer
            self._display.advance(start + len(part))
        self._report.repeated_after_recovery = len(answered)

    def _read_state(self) -> Any:
        """What the server shows now."""
        self._display.stage("comparing")
        return self._work.read_state(ShownState(self._http, self._running.url))

    def _rebuild(self) -> Rows:
        """The rows that `cmdlog recover --to` makes of the log alone, without the states that the server has kept."""
        self._display.stage("rebuilding from the log")
        target = self._folder / "rebuilt"
        result, self._report.rebuild_s = run_command("recover", str(self._data), "--to", str(target), log=self._log)
        self._report.rebuilt_calls = result["replayed"]
        return table_rows(target, self._options.partitions)

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._http.read(self._running.url, "GET", "/v1/status")
        return status

    def _still_alive(self, load: Load) -> None:
        load.check()
        if not self._running.alive:
            raise CommandFailed("the server exited by itself in the middle of the load", hint=self._running.last_words())


@contextmanager
def demo_folder(data: Path | None, *, keep: bool) -> Iterator[Path]:
    """The run's folder; whatever ends the run, it is tidied up."""
    if data is not None and data.exists() and any(data.iterdir()):
        raise CommandFailed(f"{data} is not empty", hint="name a new directory", exit_code=2)

    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cmdlog-demo-")) if data is None else data.absolute()
    try:
        yield folder
    finally:
        if data is None and not keep:
            with undisturbed():
                shutil.rmtree(folder, ignore_errors=True)
