"""Multi-partition calls run on all partitions or on none, whichever logs a recovery has; what decides is stated by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from cmdlog.wal.format.call_places import CallPlace, TermTable
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id, txn_partition
from replay.history.history import history as calls_of
from replay.log.log_fold import MultiCall
from replay.log.split_calls import PartedCall, PartitionSpan, find_parted
from replay.plan.cluster_plan import JointPlan
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.node_plan import Plan
from replay.plan.planner import PAST, make_plan
from tests.commands import Command
from tests.replay.historycheck import FILES, balances_of_chosen, check_notes, recovered
from tests.replay.historymembers import History

M, N = (int(make_txn_id(millis=millis, counter=0, partition=MULTI_PARTITION)) for millis in (5, 6))


def half_replicated(folder: Path, *, to: int = 0) -> tuple[History, int]:
    """A multi-partition call that all nodes hold, and one that partition `to` alone has on a majority when its leader ends."""
    history = History(folder / "h", seed=91)
    for partition in (0, 1):
        history.deposits(partition)
        assert history.spread(partition)
    assert history.everywhere()
    for partition in (0, 1):
        assert history.spread(partition)
    txn_id = history.everywhere()
    assert history.spread(to)
    history.deposits(to)
    assert history.spread(to)
    history.finish()
    return history, txn_id


@pytest.mark.parametrize("to", [0, 1])
def test_call_that_one_partition_lacks_is_dropped_by_name(tmp_path: Path, command: Command, to: int) -> None:
    """Plan, report and output name partition, index, transaction and procedure; later calls of the partition are replayed."""
    history, txn_id = half_replicated(tmp_path, to=to)
    given = history.directories[1:]
    code, told = command("recover", *given, "--plan", "--json")
    assert code == 0, told
    (note,) = (note for note in told["notes"] if "multi-partition" in note)
    assert f"write_note, transaction {txn_id} (partition {to} at index " in note
    assert f"partition {1 - to} does not hold it" in note
    code, text = command.text("recover", *given, "--to", tmp_path / "out")
    assert code == 0, text
    assert f"transaction {txn_id}" in text.replace("\n", "")
    plan, balances = recovered(given, tmp_path / "other")
    check_notes(history, tmp_path / "other", [1])
    assert balances == balances_of_chosen(history, {choice.group: choice.chosen for choice in plan.choices})
    assert JointPlan.from_json(plan.to_json()) == plan


def test_call_that_all_partitions_hold_is_replayed(tmp_path: Path) -> None:
    """The leader's own directory holds the call in every partition, so with it at hand the call is executed."""
    history, _ = half_replicated(tmp_path)
    plan, _ = recovered(history.directories, tmp_path / "out")
    assert not any("multi-partition" in note for note in plan.notes)
    check_notes(history, tmp_path / "out", [1, 2])


def test_dropped_call_is_left_out_of_the_history(tmp_path: Path) -> None:
    """`log history` and the recovered state agree, whichever partition holds the call."""
    history, txn_id = half_replicated(tmp_path)
    given = history.directories[1:]
    rows = list(calls_of(FILES, given).calls)
    assert str(txn_id) not in {row["txn_id"] for row in rows}
    assert sorted(row["partition"] for row in rows if txn_partition(int(row["txn_id"])) == MULTI_PARTITION) == [0, 1]
    found = calls_of(FILES, given)
    assert any(f"transaction {txn_id}" in note for note in found.notes)


def test_executed_call_that_is_missing_is_a_loss(tmp_path: Path, command: Command) -> None:
    """A digest shows that the call was committed everywhere: a partition that lacks it is an old copy's, and is not proved."""
    history = History(tmp_path / "h", seed=92)
    copies = {n: history.nodes[n].copy_to(str(tmp_path)) for n in (2, 3)}
    txn_id = history.everywhere()
    for partition in (0, 1):
        assert history.spread(partition)
    history.nodes[2].flush()
    history.finish()
    plan = make_joint_plan(FILES, history.directories)
    assert not plan.incomplete
    history.restore_copy(3, copies[3])
    code, told = command("recover", history.directory_of(2), copies[3], "--to", tmp_path / "out")
    assert code == 0, told  # node 2 holds everything
    lost = find_parted({0: PartitionSpan(0, {txn_id: MultiCall(5, ())}, ran={txn_id}), 1: PartitionSpan(0)})
    assert lost[0].is_loss


def test_single_directory_is_held_to_the_same(tmp_path: Path) -> None:
    """A cluster of one whose log holds a call in one partition only: the plan drops it, and in place it is refused."""
    history = History(tmp_path / "h", nodes=1, seed=93)
    txn_id = 0
    real, history._append_multi = history._append_multi, lambda *_: None  # type: ignore[method-assign]
    txn_id = history.everywhere()
    real(1, 0, txn_id)
    history.deposits(0)
    history.finish()
    planned = make_plan(FILES, history.directory_of(1), PAST)
    (index,) = planned.plan.partitions[0].dropped
    assert any(f"transaction {txn_id}" in note and f"index {index}" in note for note in planned.plan.notes)
    assert Plan.from_json(planned.plan.to_json()) == planned.plan


def test_in_place_a_parted_call_is_refused(tmp_path: Path, command: Command) -> None:
    """The log would go on holding it; the message names the way."""
    history = History(tmp_path / "h", nodes=1, seed=94)
    real, history._append_multi = history._append_multi, lambda *_: None  # type: ignore[method-assign]
    real(1, 0, history.everywhere())
    history.finish()
    code, told = command.text("recover", history.directory_of(1))
    assert code == 17, told
    assert "cmdlog recover DIR --to OUT" in " ".join(told.split())
    assert command("recover", history.directory_of(1), "--to", tmp_path / "out")[0] == 0
    check_notes(history, tmp_path / "out", [])


def test_skip_on_one_partition_is_one_on_all(tmp_path: Path) -> None:
    """A SKIP that only one partition's log has takes the call out of the others, too."""
    history = History(tmp_path / "h", seed=95)
    txn_id = history.everywhere()
    index = history.nodes[1].held[0].last_index
    history.control(0, RecordKind.SKIP, {"index": index, "position": 0, "reason": "hung", "txn_id": txn_id})
    history.finish()
    plan, _ = recovered(history.directories, tmp_path / "out")
    assert any(f"skipped on all partitions: multi-partition call write_note, transaction {txn_id}" in note for note in plan.notes)
    check_notes(history, tmp_path / "out", [])


def line(*, ran: Iterable[int] = (), skipped: Iterable[int] = (), start: int = 0, **calls: int) -> PartitionSpan:
    """A line that holds calls of logs from before, which name no places."""
    held = {{"m": M, "n": N}[name]: MultiCall(index, ()) for name, index in calls.items()}
    return PartitionSpan(start, held, set(skipped), set(ran))


def test_lines_are_compared_behind_their_starts() -> None:
    """What a start holds is not missing, what has a digest was executed, and a call on all lines is no finding."""
    assert find_parted({0: line(m=3), 1: line(m=4)}) == []
    assert find_parted({0: line(m=3)}) == []
    assert find_parted({0: line(m=3), 1: line(start=M)}) == []
    assert find_parted({0: line(m=3, n=4, ran=[M]), 1: line(start=M)}) == [PartedCall(N, {0: 4}, (1,), (), ())]
    assert find_parted({0: line(n=4, ran=[N]), 1: line(start=M)})[0].is_loss
    assert find_parted({0: line(n=4, skipped=[4]), 1: line(n=7)}) == [PartedCall(N, {0: 4, 1: 7}, (), (0,), ())]
    assert find_parted({0: line(n=4, skipped=[4]), 1: line(n=7, ran=[N])}) == []


def placed(table: list[tuple[int, int]], last: int, *, passed: int = 0, ran: Iterable[int] = (), at: int = 0) -> PartitionSpan:
    """A line with these terms, which holds call N at index `at` if that is not 0. Its places are (term 3, index 5) and (3, 7)."""
    calls = {N: MultiCall(at, (CallPlace(3, 5), CallPlace(3, 7)))} if at else {}
    return PartitionSpan(0, calls, ran=set(ran), passed=passed, terms=TermTable(last, table))


HELD = placed([(1, 3)], 5, at=5)
OUT = PartedCall(N, {0: 5}, (1,), (), (), final=True)


def test_places_decide_whatever_the_lines_begin_with() -> None:
    """The term at the place, not the age of a state, says whether a line has the call."""
    assert find_parted({0: HELD, 1: placed([(1, 3)], 9, passed=9)}) == [], "it passed the place in the call's term"
    assert find_parted({0: HELD, 1: placed([(8, 3)], 9, passed=9)}) == [], "and began after it, in that term"
    assert find_parted({0: HELD, 1: placed([(1, 2), (6, 4)], 9, passed=9)}) == [OUT]
    assert find_parted({0: placed([(1, 3)], 9, at=5, passed=8), 1: placed([(1, 2), (6, 4)], 9)}) == [OUT], "passed over, void"


def test_a_line_that_ends_before_the_place_lacks_the_call_unless_others_passed_it() -> None:
    """Nobody can have run it, or what was decided is missing."""
    short = placed([(1, 3)], 6)
    assert find_parted({0: HELD, 1: short}) == [PartedCall(N, {0: 5}, (1,), (), ())]
    assert find_parted({0: placed([(1, 3)], 9, at=5, passed=6), 1: short})[0].is_loss
    assert find_parted({0: placed([(1, 3)], 5, at=5, ran=[N]), 1: placed([(1, 4)], 9)})[0].is_loss


def test_spark_leaves_out_what_recovery_drops(tmp_path: Path) -> None:
    """The rows of a read of the same logs; one of fewer logs, which prove nothing, gives what they know committed."""
    history, txn_id = half_replicated(tmp_path)
    pytest.importorskip("pyarrow")
    from tests.spark.reading import read, txns

    rows = txns(read(*history.directories[1:]))
    assert txn_id not in rows
    assert sum(txn_partition(txn) == MULTI_PARTITION for txn in rows) == 2
    assert txn_id in txns(read(history.directory_of(2)))
