"""What a run of a demo has measured and proved, and its table.

One rule: it shows what clients have seen from outside; nodes are asked for nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FaultReport:
    """One fault, as the clients have seen it."""

    stage: str
    what: str  # happened
    node: int  # that it happened to
    without_service_s: float = 0.0  # the longest time in which no client got an answer
    leader: int = 0  # when calls are answered again
    term: int = 0  # of the leader; 0 of a node alone
    answered: int = 0  # calls, from the fault to the end of the stage
    unknown: int = 0  # attempts whose outcome was unknown; each was repeated under its key
    refused: int = 0  # attempts that no node accepted; each was repeated
    deposes: bool = False  # the node led before, and was not to lead while it lasted

    def describe(self) -> str:
        """In a sentence."""
        led = f", then node {self.leader} leads in term {self.term}" if self.term else ""
        repeated = f", {self.unknown} attempts of unknown outcome and {self.refused} refused ones repeated"
        return (
            f"{self.stage}: {self.what}; {self.without_service_s:.2f} s without service{led}; "
            f"{self.answered:,} calls answered{repeated if self.unknown + self.refused else ''}"
        )


@dataclass(slots=True)
class DemoReport:
    """The figures of one run, in the order in which they arise."""

    nodes: int
    seed: int
    partitions: int
    clients: int
    calls: int = 0  # with those that load the tables
    ready_s: float = 0.0  # from the start of the processes to serving calls
    calls_per_s: float = 0.0  # before any fault
    faults: list[FaultReport] = field(default_factory=list)
    answered_by: dict[str, int] = field(default_factory=dict)  # node -> calls of the load
    repeated: int = 0  # answered calls that were sent again, to see the same answer
    recovered_calls: int = 0  # replayed by `cmdlog recover` of the nodes' directories
    recover_s: float = 0.0
    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    data: str = ""


def figures(report: DemoReport) -> list[tuple[str, str]]:
    """The table, top to bottom."""
    by_nodes = ("answered by nodes " + ", ".join(report.answered_by), " / ".join(f"{n:,}" for n in report.answered_by.values()))
    return [
        ("calls", f"{report.calls:,} by {report.clients} clients"),
        *((by_nodes,) if report.nodes > 1 else ()),
        ("time to ready", f"{report.ready_s:.2f} s"),
        ("calls/s over HTTP before any fault", f"{report.calls_per_s:,.0f}"),
        *((f"without service: {fault.stage}", f"{fault.without_service_s:.2f} s") for fault in report.faults),
        ("unknown outcomes, repeated", f"{sum(fault.unknown for fault in report.faults):,}"),
        ("answered calls sent again", f"{report.repeated:,}"),
        ("cmdlog recover at the end, from snapshots and log", f"{report.recovered_calls:,} calls in {report.recover_s:.2f} s"),
        ("whole run", f"{report.seconds:.1f} s (seed {report.seed})"),
    ]
