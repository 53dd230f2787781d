"""`cmdlog check APP`: is the application fit to be replayed?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cmdlog.cli.load_app import AppArgument, load_application
from cmdlog.cli.output import JsonFlag, out

if TYPE_CHECKING:
    from procedures.checks.lint import Finding

SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the workload that runs twice.")]
CallsOption = Annotated[int, typer.Option("--calls", min=1, max=1_000_000, help="Calls of the workload.")]

FromOption = Annotated[
    Path | None, typer.Option("--from", help="A state file, or a node's directory: migrations are tried on copies of its states.")
]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("check")(check)


def check(
    app: AppArgument, seed: SeedOption = 1, calls: CallsOption = 2000, given: FromOption = None, json: JsonFlag = False
) -> None:
    """Find what would make a replay differ: clocks, randomness, input and output, set order, global state.

    When the application's module has `workload(seed, *, calls)`, it is also
    run twice under different hash seeds, time zones and row orders, and the
    digests are compared. With --from, its migrations run twice on a copy of
    each state there, and must lead to the declared tables. Warnings are shown and pass; errors end with exit
    code 1, a difference between the two runs with 16.

    [bold]Examples[/bold]

      cmdlog check shop:db
      cmdlog check procedures.samples.bank:db --calls 10000 --seed 7
      cmdlog check shop:db --from /var/lib/shop
    """
    from procedures.checks.check import check as check_application

    load_application(app)  # names what is missing better than the check would
    findings = check_application(app, seed=seed, calls=calls, given=given)
    out.result({"app": app, "findings": [asdict(finding) for finding in findings]}, lambda: _show(app, findings))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise typer.Exit(16 if any(finding.code == "divergence" for finding in errors) else 1)


def _show(app: str, findings: list[Finding]) -> None:
    for finding in findings:
        place = f"{finding.module}:{finding.line}" if finding.line else finding.module
        out.text(f"{finding.severity}: {place} {finding.function}: {finding.message} [{finding.code}]")
    errors = sum(finding.severity == "error" for finding in findings)
    out.text(f"{app}: {errors} errors, {len(findings) - errors} warnings")
