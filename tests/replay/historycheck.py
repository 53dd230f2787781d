"""What recovery makes of a history's directories, held against what really happened.

One rule: the files alone go in; the model is only asked afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from cmdlog.wal.format.record import RecordKind
from replay.errors import ReplayError
from replay.log.collect_evidence import gather
from replay.log.source import open_source
from replay.plan.authority import ClusterVerdict, GroupVerdict, decide
from replay.plan.cluster_plan import JointPlan
from replay.plan.cluster_planner import make_joint_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.replay import damage
from tests.replay.historymembers import History
from tests.replay.historynode import HistoryNode, QuickFiles
from tests.replay.rig import balances_of

FILES = QuickFiles()
COPIES = 3  # old directories that are put back per history, one at a time
PARTS = 6  # subsets of the directories that are judged per history

Places = list[tuple[int, int, int]]
"""(index, term, checksum) of entries, ascending."""


def entries_of(directory: str) -> dict[int, Places]:
    """Group -> the entries in force, as the files say it."""
    found: dict[int, Places] = {}
    source = open_source(FILES, directory)
    for _, record in source.read(from_block=source.first_blocks[0]):
        entries = found.setdefault(record.partition, [])
        if record.is_entry or record.kind is RecordKind.TRUNCATION:
            while entries and entries[-1][0] >= record.index:
                entries.pop()
        if record.is_entry:
            entries.append((record.index, record.term, record.checksum))
    return {group: entries for group, entries in found.items() if entries}


def held_by(node: HistoryNode) -> dict[int, Places]:
    """The same, as the history says it."""
    return {
        group: [(entry.index, entry.term, entry.checksum) for entry in held.entries]
        for group, held in node.held.items()
        if held.entries
    }


def judged(history: History, *numbers: int) -> ClusterVerdict:
    """What the directories of these nodes (none named: of all) say together."""
    wanted = numbers or tuple(sorted(history.nodes))
    return decide([gather(FILES, history.directory_of(number)) for number in wanted])


def is_complete(history: History, of: GroupVerdict) -> bool:
    """Whether the log that was chosen for the group holds everything that was committed in it."""
    done = history.truth.committed[of.group]
    held = history.node_of(of.chosen).held.get(of.group)
    if held is None or of.chosen in history.given.values():
        entries = entries_of(of.chosen).get(of.group, [])
        base = entries[0][0] - 1 if entries else 0  # what a node was filled with is in no log, and was committed
        rest = [(entry.index, entry.term, entry.checksum) for entry in done[base:]]
        return bool(entries or not done) and rest == entries[: len(rest)]
    if (of.last_index, of.last_term, of.last_checksum) != (held.last_index, held.last_term, held.last_checksum):
        return False
    return held.last_index >= len(done) and all(
        held.place(entry.index) == (entry.term, entry.checksum) for entry in done[max(0, held.base - 1) :]
    )


def balances_of_chosen(history: History, choices: Mapping[int, str]) -> dict[int, int]:
    """Account -> balance when every partition ends where the log that was chosen for it does, acknowledged or not."""
    found: dict[int, int] = {}
    for partition in range(history.partitions):
        held = history.node_of(choices[partition]).held[partition]
        for entry in [*history.truth.committed[partition][: held.base], *held.entries]:
            for _, account, amount in entry.calls if not entry.multi else ():
                found[account] = 0 if amount < 0 else found[account] + amount * history.truth.factors[entry.catalog]
    return found


def notes_of_chosen(history: History, choices: Mapping[int, str]) -> dict[int, int]:
    """TxnId -> number of the multi-partition calls that the logs chosen for all partitions hold, acknowledged or not."""
    found = []
    for partition in range(history.partitions):
        held = history.node_of(choices[partition]).held[partition]
        entries = [*history.truth.committed[partition][: held.base], *held.entries]
        found.append({entry.multi: entry.calls[0][2] for entry in entries if entry.multi})
    return {txn_id: number for txn_id, number in found[0].items() if all(txn_id in of for of in found)}


def check_notes(history: History, out: Path, expected: Collection[int]) -> None:
    """Every partition holds the effects of the same multi-partition calls: of these, and of all that were acknowledged."""
    for partition in range(history.partitions):
        connection = open_image(state_path(str(out), partition))
        found = sorted(number for (number,) in connection.execute("SELECT number FROM notes"))
        connection.close()
        assert found == sorted(expected), f"partition {partition}"
    assert set(history.truth.notes) <= set(expected)


def recovered(
    directories: Sequence[str], out: Path, partitions: int = 2, *, until: int | None = None
) -> tuple[JointPlan, dict[int, int]]:
    """The plan, and the balances of the node that it makes; the given directories stay as they are."""
    before = [damage.tree_hash(directory) for directory in directories]
    plan = make_joint_plan(FILES, directories, until=until)
    rebuild_jointly(plan, FILES, str(out), workers=0)
    assert [damage.tree_hash(directory) for directory in directories] == before
    return plan, balances_of(str(out), partitions)


def check_proved(history: History, *numbers: int) -> ClusterVerdict:
    """These directories prove every group, and nothing acknowledged is missing."""
    verdict = judged(history, *numbers)
    for of in verdict.groups.values():
        assert of.proved, of.why
        assert is_complete(history, of), of.why
    return verdict


def check_any(history: History, rng: random.Random) -> tuple[int, int]:
    """All directories prove everything; of any part of them, what is proved is complete.

    Returns how many groups of the parts were proved, and how many were judged.
    """
    evidence = {number: gather(FILES, history.directory_of(number)) for number in history.nodes}
    for of in decide(list(evidence.values())).groups.values():
        assert of.proved or not history.is_settled, f"all directories: {of.why}"
        assert not of.proved or is_complete(history, of), f"all directories: {of.why}"
    return _check_parts(history, rng, evidence.keys(), {})


def check_spoiled(history: History, rng: random.Random, orderly: Sequence[int]) -> tuple[int, int]:
    """The same with damage in some directories whose logs end with proof of their end."""
    told: dict[int, str] = {}
    for number in rng.sample(orderly, rng.randint(1, len(orderly))):
        directory = history.directory_of(number)
        if rng.random() < 0.8:
            told[number] = damage.spoil_segment(rng.choice(damage.segments(directory)), rng)
        elif rng.random() < 0.5:
            damage.damage_fault_log(directory, *rng.choice([(0,), (1,), (0, 1)]))
        else:
            damage.damage_hard_state(directory, *rng.choice([(0,), (1,), (0, 1)]))
    return _check_parts(history, rng, history.nodes.keys(), told)


def check_copied(history: History, rng: random.Random) -> tuple[int, int]:
    """The same with an old copy, or an emptied directory, in place of one node's own.

    An old copy that no log at hand contradicts looks like a node that lags. But what shows it in one group counts in all: where
    any group's verdict names it, every group that is proved is complete.
    """
    proved = judged_groups = 0
    for number, copy in rng.sample(history.copies, min(len(history.copies), COPIES)):
        if number not in history.nodes:
            continue
        history.given = {number: copy}
        for part in range(PARTS):
            given = sorted(history.nodes) if part == 0 else rng.sample(sorted(history.nodes), rng.randint(1, len(history.nodes)))
            try:
                verdicts = list(_decided(history, given))
            except ReplayError:  # conflicting commits, or forked fault logs: refused as a whole
                continue
            found = any("old copy" in of.uses[copy][1] for of in verdicts if copy in of.uses)
            judged_groups += len(verdicts)
            proved += sum(of.proved for of in verdicts)
            for of in verdicts:
                ok = not of.proved or not found or is_complete(history, of)
                assert ok, f"node {number} as in {copy}, of {given}: group {of.group}: {of.why}"
    history.given = {}
    return proved, judged_groups


def _check_parts(history: History, rng: random.Random, numbers: Collection[int], told: dict[int, str]) -> tuple[int, int]:
    proved = judged_groups = 0
    for part in range(PARTS):
        given = sorted(numbers) if part == 0 else rng.sample(sorted(numbers), rng.randint(1, len(numbers)))
        for of in _decided(history, given):
            judged_groups += 1
            proved += of.proved
            assert not of.proved or is_complete(history, of), f"directories of {given}: {of}; damage: {told}"
    return proved, judged_groups


def _decided(history: History, given: Sequence[int]) -> Iterable[GroupVerdict]:
    evidence = [gather(FILES, history.directory_of(number)) for number in given]
    if not any(node.groups for node in evidence):
        return []
    return decide(evidence).groups.values()
