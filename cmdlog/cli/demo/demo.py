"""`cmdlog demo` and `cmdlog cluster demo`: the main job from end to end, on this machine, with its proof.

`DemoRun` carries out both; they differ in the number of nodes and in what happens to them. Here are their options, which are
read at the start of every command: nothing heavy is imported.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.proof import BRANCHES
from cmdlog.cli.output import JsonFlag, out
from cmdlog.signal_handlers import undisturbed

CLUSTER_NODES: Final = 3

CallsOption = Annotated[int, typer.Option("--calls", min=1, max=10_000_000, help="Calls to make.")]
ClientsOption = Annotated[int, typer.Option("--clients", min=1, max=256, help="Concurrent clients.")]
PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, max=BRANCHES, help="Partitions of the application.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the load; by default a new one each time.")]
DataOption = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="New directory for the nodes; kept afterwards.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("demo")(demo)


def demo(  # noqa: PLR0917 - typer reads options from the signature
    calls: CallsOption = 6_000,
    clients: ClientsOption = 16,
    partitions: PartitionsOption = 4,
    seed: SeedOption = None,
    data: DataOption = None,
    keep: KeepOption = False,
    json: JsonFlag = False,
) -> None:
    """Load a server, kill it with SIGKILL, recover it, and prove that nothing acknowledged is lost and nothing happened twice.

    [bold]Examples[/bold]

      cmdlog demo
      cmdlog demo --calls 50000 --clients 32 --seed 7
      cmdlog demo --data ./bank-data --json
    """
    _run_demo("cmdlog demo", 1, calls, clients, partitions, seed, data, keep=keep)


def cluster_demo(  # noqa: PLR0917 - typer reads options from the signature
    calls: CallsOption = 4_000,
    clients: ClientsOption = 16,
    partitions: PartitionsOption = 4,
    seed: SeedOption = None,
    data: DataOption = None,
    keep: KeepOption = False,
    json: JsonFlag = False,
) -> None:
    """Load three nodes, kill and stop their leaders, replace a disk, change members, and prove that nothing is lost or doubled.

    [bold]Examples[/bold]

      cmdlog cluster demo
      cmdlog cluster demo --calls 50000 --clients 32 --seed 7
      cmdlog cluster demo --data ./bank-cluster --json
    """
    _run_demo("cmdlog cluster demo", CLUSTER_NODES, calls, clients, partitions, seed, data, keep=keep)


def _run_demo(  # noqa: PLR0917 - the commands' options, in their order
    title: str, nodes: int, calls: int, clients: int, partitions: int, seed: int | None, data: Path | None, *, keep: bool
) -> None:
    from cmdlog.cli.demo.demo_report import DemoDisplay
    from cmdlog.cli.demo.demo_run import DemoOptions, DemoRun

    options = DemoOptions(nodes, calls, clients, partitions, random.randrange(2**31) if seed is None else seed)
    with demo_folder(data, keep=keep) as folder, DemoDisplay(quiet=out.json) as display:
        report = DemoRun(options, folder, display).run()
    if data is not None or keep:
        report.data = str(folder)
    out.result(asdict(report), lambda: display.report(title, report))
    if report.differences:
        raise typer.Exit(1)


@contextmanager
def demo_folder(data: Path | None, *, keep: bool = False) -> Iterator[Path]:
    """The run's folder: `data`, which is new and stays, or a temporary one. Raises: CommandFailed."""
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
