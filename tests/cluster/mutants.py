"""`make mutants`, second part: every known defect of a cluster around its consensus core, planted one at a time.

One rule: as `tests.raft.mutants`. The tests of the module are the first to look, then a slice of the simulated cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.cluster import defects, defects_of_stories
from tests.cluster.defects_membership import TESTS as OF_MODULES
from tests.raft.defects_members import Mutant
from tests.raft.mutants import Suite, judge_all

PACKAGE: Final = Path("cmdlog")
COPIED: Final = ("cmdlog", "procedures", "replay", "snapshot", "tests", "pyproject.toml")
SIM_SEEDS: Final = 25
SIMULATION: Final = ("-m", "tests.cluster.sim", "--seeds", str(SIM_SEEDS), "--jobs", "1", "--first-failure")

TESTS: Final[dict[str, tuple[str, ...]]] = {
    defects.DRIVER: ("cluster/test_replication.py",),
    defects.COMMITS: ("cluster/test_rounds.py", "cluster/test_replication.py"),
    defects.RESTORED: ("cluster/test_restored_groups.py",),
    defects.RECORDS: ("cluster/test_entry_records.py",),
    defects.READER: ("member/test_entry_reader.py",),
    defects.MARKS: ("cluster/test_executed_marks.py",),
    defects.GATE: ("cluster/test_entry_gate.py",),
    defects.VERDICT: ("wal/test_call_places.py", "cluster/test_entry_gate.py"),
    defects.MACHINE: ("member/test_sequenced_machine.py",),
    defects.ROUNDS: ("member/test_leader_reads.py", "member/test_read_rounds.py"),
    defects.TRANSFER: ("member/test_leadership_transfer.py",),
    defects.LOG_FEED: ("node/test_replicated_pipelines.py",),
    defects.PIPELINES: ("node/test_replicated_pipelines.py",),
    defects.PIPELINE: ("node/test_replicated_pipelines.py",),
    defects.DESK: ("node/test_site_events.py",),
    defects.LEADERSHIP: ("member/test_leadership.py",),
    defects.STEPS: ("member/test_leader_steps.py",),
    defects.TAKEOVER: ("member/test_takeover.py",),
    defects.STATER: ("member/test_leader_steps.py",),
    defects.EVENTS: ("member/test_member.py",),
    **OF_MODULES,
    defects.BOOK: ("cluster/transport/test_peer_book.py",),
    defects.ADMISSION: ("cluster/transport/test_peer_admission.py",),
    defects.HANDSHAKE: ("cluster/transport/test_handshake.py",),
    defects.OUTBOX: ("cluster/transport/test_outbox.py",),
    defects.TICKER: ("cluster/transport/test_peer_transport.py",),
    defects.NETWORK: ("cluster/transport/test_peer_network.py",),
}


MEMBER_SEEDS: Final = 30
MEMBER_SIMULATION: Final = ("-m", "tests.cluster.sim", "--membership", "--seeds", str(MEMBER_SEEDS), *SIMULATION[4:])


def files_for(mutant: Mutant | None) -> list[str]:
    """Those of the mutant's module, or of all."""
    names = TESTS[mutant.module] if mutant is not None else sorted({name for names in TESTS.values() for name in names})
    return [f"tests/{name}" for name in names]


def member_files_for(mutant: Mutant | None) -> list[str]:
    """The same for defects of membership."""
    tests = defects_of_stories.TESTS
    names = tests[mutant.module] if mutant is not None else sorted({name for names in tests.values() for name in names})
    return [f"tests/{name}" for name in names]


CLUSTER: Final = Suite(PACKAGE, COPIED, files_for, SIMULATION)
MEMBERSHIP: Final = Suite(PACKAGE, COPIED, member_files_for, MEMBER_SIMULATION)


if __name__ == "__main__":
    described = "Plants defects in a cluster around its consensus core; the tests must see each."
    survived = judge_all(defects.DEFECTS, CLUSTER, described)
    sys.exit(judge_all(defects_of_stories.OF_STORIES, MEMBERSHIP, described) or survived)
