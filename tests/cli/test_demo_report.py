"""A fault as it is reported."""

from __future__ import annotations

import dataclasses

from cmdlog.cli.demo.demo_report import FaultReport

HANGED = FaultReport("hang", "SIGSTOP to node 1", 1, 2.5, leader=3, term=7, answered=1200, unknown=4, refused=9, deposes=True)


def test_fault_is_described_in_a_sentence() -> None:
    """What happened, for how long nobody was served, who leads now, and what became of the calls."""
    assert HANGED.describe() == (
        "hang: SIGSTOP to node 1; 2.50 s without service, then node 3 leads in term 7; 1,200 calls answered, "
        "4 attempts of unknown outcome and 9 refused ones repeated"
    )
    quiet = dataclasses.replace(HANGED, stage="join", what="node 4 joins", unknown=0, refused=0)
    assert quiet.describe().endswith("then node 3 leads in term 7; 1,200 calls answered")
    alone = dataclasses.replace(quiet, term=0)
    assert alone.describe().endswith("2.50 s without service; 1,200 calls answered")
