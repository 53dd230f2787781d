"""Calls that cannot be replayed: they stop their partition, or are set aside with all that is known of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from procedures.execution.executor import Invocations, Status
from procedures.execution.outcome_bodies import SKIPPED
from procedures.execution.process_guard import REFUSED_EVENTS
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.storage.state import PartitionState
from replay.engine import CatalogMissing, PartitionEngine
from replay.errors import Divergence, Poison
from replay.plan.node_plan import Planned
from replay.plan.planner import PAST, QUARANTINE, make_plan
from replay.recover import skipped_calls
from replay.recover.execute import RecoveryReport, Target, execute
from replay.recover.quarantine import Aside, QuarantineFile, aside_from_json, joined
from replay.recover.to_directory import rebuild
from replay.state.touched_rows import Tables
from replay.state.trust import read_position, state_path
from tests.replay.rig import CLOCK, DEPOSIT, DRIFT, MIRROR, TRAP, Rig, balances_of, make_bundle


def set_aside(rig: Rig, out: Path, *, hang_after_s: float = 60) -> RecoveryReport:
    """A recovery to another place that sets calls aside."""
    planned = make_plan(rig.files, rig.directory, PAST)
    return rebuild(planned, rig.files, str(out), workers=1, quarantine=True, hang_after_s=hang_after_s)


def here(rig: Rig, out: Path) -> list[Aside]:
    """The same in this process, without a node around it."""
    (out / "state").mkdir(parents=True)
    planned = make_plan(rig.files, rig.directory, PAST)
    report = execute(planned, Target(rig.files, str(out)), quarantine=True, live=lambda _catalog: None)
    return list(report.aside)


def lines(out: Path) -> list[dict[str, object]]:
    """What `quarantine.jsonl` holds."""
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]


def test_diverging_call_is_set_aside_with_all_that_is_known(rig: Rig, tmp_path: Path) -> None:
    """Its effect is kept out of the state, everything else is in; the file says what it was and why."""
    index = rig.batch(0, [(DEPOSIT, [1, 5]), (DRIFT, [0]), (DEPOSIT, [2, 5])])
    txn = rig.history[-2][0]
    rig.deposits(4)
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    (line,) = lines(tmp_path / "out")
    assert line == aside.calls[0].to_json() | {"rows": line["rows"], "keys": line["keys"]}
    assert (line["partition"], line["index"], line["position"], line["txn_id"]) == (0, index, 1, str(txn))
    assert (line["procedure"], line["catalog"], line["source_hash"]) == ("drift", 1, make_bundle().hash)
    assert (line["params"], line["kind"]) == ({"account": 0}, "divergence")
    assert "not deterministic" in str(line["reason"])
    assert balances_of(str(tmp_path / "out")) == rig.balances, "the model has no drift"


@pytest.mark.slow
def test_a_logged_fork_is_named_and_set_aside(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that forked when that was still possible stops its partition by name, or is set aside; nothing else is missing."""
    monkeypatch.setenv("LEDGER_TRAP", "fork")
    refused = set(REFUSED_EVENTS)
    REFUSED_EVENTS.clear()
    try:
        rig.batch(0, [(DEPOSIT, [1, 5]), (TRAP, [0]), (DEPOSIT, [2, 5])])
    finally:
        REFUSED_EVENTS.update(refused)
    rig.deposits(4)
    rig.close()
    with pytest.raises(Divergence, match="trap"):
        rebuild(make_plan(rig.files, rig.directory, PAST), rig.files, str(tmp_path / "stopped"), workers=1)
    aside = [call for of in set_aside(rig, tmp_path / "out").aside for call in of.calls]
    assert [(call.procedure, call.kind) for call in aside] == [("trap", "divergence")]
    assert balances_of(str(tmp_path / "out")) == rig.balances | {0: rig.balances[0] - 1}


def test_what_came_before_a_set_aside_call_keeps_the_key_policy_of_its_time(rig: Rig, tmp_path: Path) -> None:
    """The batches in front of it are taken back and run again; the policy that the log brought in between is not theirs."""
    rig.set_policy(KeyPolicy(keys_max=2))
    rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [1, 5]), (DEPOSIT, [2, 5])], keys=[b"%016d" % number for number in range(1, 4)])
    rig.set_policy(KeyPolicy())
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert [call.procedure for call in aside.calls] == ["drift"]


def test_later_calls_on_the_same_rows_are_listed(rig: Rig, tmp_path: Path) -> None:
    """Each later invocation that changed a row of the missing call, with its place; others are not."""
    rig.batch(0, [(DRIFT, [0])])
    first = rig.batch(0, [(DEPOSIT, [0, 7]), (DEPOSIT, [1, 7])])
    second = rig.batch(0, [(DEPOSIT, [2, 7]), (DEPOSIT, [0, 7])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert len(aside.calls) == 1
    found = [(touch.index, touch.position, touch.procedure, touch.table, dict(touch.key)) for touch in aside.touches[0]]
    assert found == [(first, 0, "deposit", "accounts", {"id": 0}), (second, 1, "deposit", "accounts", {"id": 0})]
    assert all(touch.otherwise for touch in aside.touches[0]), "they answered with another balance than live"
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_batch_that_is_run_again_with_savepoints_lists_each_call_once(rig: Rig, tmp_path: Path) -> None:
    """A call that fails after it began to change rows makes the batch run again; what was noted first does not count."""
    rig.batch(0, [(DRIFT, [0])])
    index = rig.batch(0, [(DEPOSIT, [0, 7]), (DEPOSIT, [0, 7]), (MIRROR, [0, 999]), (DEPOSIT, [2, 7])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert [(touch.index, touch.position) for touch in aside.touches[0]] == [(index, 0), (index, 1)]
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_calls_that_read_the_missing_rows_answer_otherwise_and_pass_it_on(rig: Rig, tmp_path: Path) -> None:
    """A call that carries the missing amount on is no new divergence; its own rows are in question from then on."""
    rig.batch(0, [(DRIFT, [0])])
    carried = rig.batch(0, [(MIRROR, [1, 0])])
    later = rig.batch(0, [(DEPOSIT, [1, 1])])
    rig.batch(0, [(DEPOSIT, [2, 1])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert [(call.procedure) for call in aside.calls] == ["drift"]
    assert [(touch.index, touch.procedure, touch.otherwise) for touch in aside.otherwise] == [(carried, "mirror", True)]
    assert [touch.index for touch in aside.touches[0]] == [later], "only a row that the missing call put in question"
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_without_quarantine_a_failing_call_stops_its_partition_only(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position is named; the state stands before it; the other partition is at its end."""
    index = rig.batch(0, [(DEPOSIT, [0, 1]), (TRAP, [0])])
    txn = rig.history[-1][0]
    rig.deposits(4)
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "fault")
    (tmp_path / "out" / "state").mkdir(parents=True)
    target = Target(rig.files, str(tmp_path / "out"))
    with pytest.raises(Poison, match="MemoryError") as caught:
        execute(make_plan(rig.files, rig.directory, PAST), target, workers=0)
    place = caught.value.place
    assert (place.partition, place.index, place.position, place.procedure, place.txn_id) == (0, index, 1, "trap", txn)
    assert caught.value.exit_code == 16
    found = balances_of(str(tmp_path / "out"))
    assert {account: balance for account, balance in found.items() if account >= 10} == {
        account: balance for account, balance in rig.balances.items() if account >= 10
    }


def test_failing_call_is_set_aside_and_its_rows_are_watched(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changed before it failed counts as its rows."""
    rig.batch(0, [(DEPOSIT, [0, 1]), (TRAP, [0]), (DEPOSIT, [1, 1])])
    later = rig.batch(0, [(DEPOSIT, [0, 2])])
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "fault")
    (aside,) = here(rig, tmp_path / "out")
    assert [(call.procedure, call.kind, call.params) for call in aside.calls] == [("trap", "fault", {"account": 0})]
    assert "MemoryError" in aside.calls[0].reason
    assert [touch.index for touch in aside.touches[0]] == [later]
    assert balances_of(str(tmp_path / "out")) == rig.balances | {0: rig.balances[0] - 1}


def test_missing_code_stops_the_partition_or_is_set_aside(rig: Rig, tmp_path: Path) -> None:
    """A batch whose catalog version is in no catalog record: exit code 13 and the place; or its calls are kept as they are."""
    before = dict(rig.balances)
    index = rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [1, 5])], version=9, live=False)
    rig.balances = before
    rig.batch(0, [(DEPOSIT, [2, 5])], live=False)
    rig.stop()
    for name in ("stopped", "aside"):
        (tmp_path / name / "state").mkdir(parents=True)
    with pytest.raises(CatalogMissing):
        make_plan(rig.files, rig.directory, PAST)
    plan = make_plan(rig.files, rig.directory, QUARANTINE).plan
    with pytest.raises(Poison, match="catalog version 9") as caught:
        execute(Planned.of(rig.files, plan), Target(rig.files, str(tmp_path / "stopped")), workers=0)
    assert (caught.value.exit_code, caught.value.place.index) == (13, index)
    report = execute(
        Planned.of(rig.files, plan), Target(rig.files, str(tmp_path / "aside")), quarantine=True, live=lambda _catalog: None
    )
    found = [(call.position, call.params, call.kind) for call in report.aside[0].calls]
    assert found == [(0, [0, 5], "code"), (1, [1, 5], "code")]
    assert balances_of(str(tmp_path / "aside")) == rig.balances


def test_call_is_on_disk_before_anything_goes_on_without_it(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the line cannot be written, the replay goes no further, and the state holds nothing behind the call."""
    index = rig.batch(0, [(DRIFT, [0])])
    rig.deposits(4)
    rig.close()
    monkeypatch.setattr(os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(5, "gone")))
    with pytest.raises(OSError, match="gone"):
        here(rig, tmp_path / "out")
    monkeypatch.undo()
    assert not QuarantineFile(str(tmp_path / "out")).read()
    position = read_position(state_path(str(tmp_path / "out"), 0), 0)
    assert not isinstance(position, str)
    assert position.index < index


def test_number_of_quarantined_calls_is_bounded(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing replays as it did, setting aside call by call ends."""
    monkeypatch.setattr(skipped_calls, "CALLS_MAX", 2)
    rig.batch(0, [(CLOCK, [0])] * 4)
    rig.close()
    with pytest.raises(Divergence, match="2 calls were already set aside"):
        here(rig, tmp_path / "out")
    assert len(lines(tmp_path / "out")) == 2
    stands = read_position(state_path(str(tmp_path / "out"), 1), 1)
    assert not isinstance(stands, str)
    assert stands.index == rig.next_index[1] - 1, "the other partition goes on to its end"


def test_listed_touches_are_bounded_and_the_rest_is_counted(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hot row does not make the report grow without end."""
    monkeypatch.setattr(skipped_calls, "TOUCHES_MAX", 3)
    rig.batch(0, [(DRIFT, [0])])
    for _ in range(5):
        rig.batch(0, [(DEPOSIT, [0, 1])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert (len(aside.touches[0]), aside.more[0]) == (3, 2)
    assert aside_from_json(json.loads(json.dumps(aside.to_json()))) == aside


def test_repeated_call_is_told_that_it_was_set_aside(rig: Rig, tmp_path: Path) -> None:
    """The idempotency key of a call that was set aside is known, so that a retry does not run it on the new node."""
    key = b"k" * 16
    rig.batch(0, [(DRIFT, [0])], keys=[key])
    rig.batch(0, [(DEPOSIT, [1, 1])])
    rig.close()
    (aside,) = here(rig, tmp_path / "out")
    assert aside.calls[0].idempotency_key == key.hex()
    state = PartitionState.open(state_path(str(tmp_path / "out"), 0), partition=0)
    engine = PartitionEngine(state, rig.catalogs, digest_rows=True, policy=rig.policy)
    applied = engine.executor.apply(
        Invocations(rig.next_index[0], 1, 1, 1, rig.tick(1, 0), [DRIFT], [[0]], [key])
    )  # the same call again
    assert (Status(applied.statuses[0]), applied.bodies[0]) == (Status.FAILED, SKIPPED)
    engine.close()


def test_torn_line_is_none(rig: Rig, tmp_path: Path) -> None:
    """A crash while a line is written leaves a piece of it, which was never relied on."""
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    here(rig, tmp_path / "out")
    file = QuarantineFile(str(tmp_path / "out"))
    (call,) = file.read()
    with open(file.path, "ab") as handle:
        handle.write(b'{"partition": 0, "ind')
    assert file.read() == [call]
    file.drop({1})
    assert file.read() == [call]
    file.drop({0})
    assert not Path(file.path).exists()


def test_second_piece_of_a_recovery_knows_what_the_first_set_aside(rig: Rig, tmp_path: Path) -> None:
    """A recovery in pieces lists the same calls and touches as one in a whole, and sets no consequence aside."""
    middle = rig.batch(0, [(DRIFT, [0])])
    later = rig.batch(0, [(DEPOSIT, [0, 7])])
    rig.close()
    (whole,) = here(rig, tmp_path / "whole")
    plan = make_plan(rig.files, rig.directory, PAST).plan
    (tmp_path / "out" / "state").mkdir(parents=True)
    target = Target(rig.files, str(tmp_path / "out"))
    asides: list[Aside] = []
    for first, last in ((0, middle), (middle, later)):
        (part,) = (part for part in plan.partitions if part.partition == 0)
        part = replace(part, to_index=last, to_term=0, to_checksum=0)
        if first:
            at = read_position(state_path(target.directory, 0), 0)
            assert not isinstance(at, str)
            part = replace(part, source="state", from_index=at.index, from_term=at.term, from_checksum=at.checksum)
        report = execute(
            Planned.of(rig.files, replace(plan, partitions=(part,))), target, quarantine=True, live=lambda _catalog: None
        )
        asides += report.aside
    (found,) = joined(asides)
    assert [(call.index, call.procedure) for call in found.calls] == [(middle, "drift")]
    assert [(at, [t.index for t in of]) for at, of in found.touches.items()] == [(0, [later])]
    assert found.touches == whole.touches


def test_keys_of_bytes_survive_their_file() -> None:
    """A row is found again by the key that the file names, whatever its type."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE things (name BLOB, number INTEGER, note TEXT, PRIMARY KEY (number, name)) STRICT")
    connection.execute("INSERT INTO things VALUES (x'00ff', 7, 'a')")
    tables = Tables(connection)
    row = connection.execute("SELECT * FROM things").fetchall()[0]
    key = ("things", tables.key("things", row))
    assert key == ("things", (7, b"\x00\xff"))
    assert tables.key_from_named("things", json.loads(json.dumps(tables.named_key(key)))) == key
    assert tables.read(connection, key) == row
    assert tables.named_row("things", row) == {"name": "AP8=", "number": 7, "note": "a"}
    connection.close()


@pytest.mark.slow
def test_call_that_hangs_is_killed_and_set_aside(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both partitions go to their ends without it; later calls that were sent to the same place are listed."""
    rig.batch(0, [(DEPOSIT, [0, 1]), (TRAP, [0]), (DEPOSIT, [1, 1])])
    later = rig.batch(0, [(DEPOSIT, [0, 2])])
    rig.deposits(2)
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "hang")
    report = set_aside(rig, tmp_path / "out", hang_after_s=0.3)
    (aside,) = report.aside
    assert [(call.procedure, call.kind, call.params) for call in aside.calls] == [("trap", "hang", {"account": 0})]
    assert (later, "deposit") in [(touch.index, touch.procedure) for touch in aside.touches[0]]
    assert balances_of(str(tmp_path / "out")) == rig.balances | {0: rig.balances[0] - 1}
    assert len(lines(tmp_path / "out")) == 1


@pytest.mark.slow
def test_call_that_ends_its_process_is_named(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops its partition; the other one goes on to its end."""
    index = rig.batch(0, [(DEPOSIT, [0, 1]), (TRAP, [0]), (DEPOSIT, [1, 1])])
    rig.deposits(2)
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "end")
    with pytest.raises(Poison, match="code 3") as caught:
        rebuild(make_plan(rig.files, rig.directory, PAST), rig.files, str(tmp_path / "out"), workers=1)
    place = caught.value.place
    assert (place.partition, place.index, place.position, place.procedure) == (0, index, 1, "trap")
    ends = [read_position(state_path(str(tmp_path / "out"), p), p) for p in range(2)]
    assert [end.index for end in ends if not isinstance(end, str)] == [index - 1, rig.next_index[1] - 1]


def test_the_list_of_calls_follows_no_link(tmp_path: Path) -> None:
    """What a link in its place leads to is kept."""
    (tmp_path / "victim").write_text("kept")
    file = QuarantineFile(str(tmp_path))
    Path(file.path).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        file.append([])
    assert (tmp_path / "victim").read_text() == "kept"
