"""`cmdlog recover` and `cmdlog snapshot` as an operator meets them: results, exit codes, words, and being broken off."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.cli.directory.recover_output import NO_DIGEST
from cmdlog.wal.divergence_file import DivergenceFile, PartitionDivergence
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.bundle import Bundle
from tests.commands import Command
from tests.replay import rig as rigs
from tests.replay.rig import CLOCK, DEPOSIT, Rig, balances_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A node with some deposits behind it, running."""
    rig = Rig(tmp_path)
    rig.deposits(8)
    return rig


def test_recover_in_place_tells_what_it_did(rig: Rig, command: Command) -> None:
    """Source, replayed calls, position and compared digests of each partition; the states are at the log's end."""
    rig.close()
    rig.forget_state(0)
    code, value = command("recover", rig.directory, "--json")
    assert code == 0
    told = [(p["source"], p["replayed"], p["digests_compared"]) for p in value["partitions"]]
    assert told == [("empty", 15, 5), ("state", 0, 0)]
    assert value["partitions"][0]["txn_id"].isdecimal()
    assert balances_of(rig.directory) == rig.balances


def test_table_for_people_names_partitions_and_sources(rig: Rig, command: Command) -> None:
    """Without --json a table closes the run."""
    rig.close()
    code, text = command("recover", rig.directory)
    assert code == 0
    assert "Recovered" in text
    assert "state" in text


def test_report_says_what_was_not_compared(rig: Rig, command: Command, tmp_path: Path) -> None:
    """How many batches nothing proves to be as they were live, and why; a recovery that compared all says nothing of it."""
    rig.close()
    code, value = command("recover", rig.directory, "--to", tmp_path / "whole", "--json")
    assert (code, [part["not_compared"] for part in value["partitions"]]) == (0, [[], []])
    rig.restart()
    for _ in range(3):
        rig.batch(1, [(DEPOSIT, [11, 1])], digest=False)
    rig.close()
    code, value = command("recover", rig.directory, "--to", tmp_path / "out", "--json")
    assert (code, [part["not_compared"] for part in value["partitions"]]) == (0, [[], [{"batches": 3, "why": NO_DIGEST}]])
    (Path(rig.directory) / "cluster").mkdir()
    DivergenceFile(rig.files, rig.directory).add_divergence(0, PartitionDivergence(3, "planted"))
    code, text = command("recover", rig.directory, "--to", tmp_path / "after")
    words = " ".join(text.split())
    assert f"not compared with the live run: 3 batches (3 of partition 1): {NO_DIGEST}" in words
    assert f"digests of {rig.directory} from entry 3 on are of a state that other nodes did not have" in words


def test_plan_only_looks(rig: Rig, command: Command) -> None:
    """--plan says what would be done and why, and changes nothing, not even for a lost state."""
    rig.close()
    rig.forget_state(0)
    code, plan = command("recover", rig.directory, "--plan", "--json")
    assert code == 0
    assert [(p["source"], p["calls"]) for p in plan["partitions"]] == [("empty", 15), ("state", 0)]
    assert plan["partitions"][0]["passed"][0]["why"] == "there is no state file"
    assert not Path(rig.state_file(0)).exists()
    code, text = command("recover", rig.directory, "--plan")
    assert "reaches back to the first entry" in " ".join(text.split())


def test_not_a_node_is_named(command: Command, tmp_path: Path) -> None:
    """Any other directory is refused in words, and left as it was."""
    (tmp_path / "x").mkdir()
    code, text = command("recover", tmp_path / "x")
    assert code == 1
    assert "not a node directory" in text
    assert command("snapshot", "list", tmp_path / "missing")[0] == 1


def test_damage_foreign_code_and_divergence_have_their_codes(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 corrupt, 13 code missing, 13 code forged, 16 divergence; each names where."""
    for name in ("missing", "forged", "swapped", "divergent", "corrupt"):
        (tmp_path / name).mkdir()
    rig = Rig(tmp_path / "missing")
    rig.batch(0, [(DEPOSIT, [0, 1])], live=False, version=9)
    rig.stop()
    code, text = command("recover", rig.directory)
    assert (code, "catalog version 9" in text) == (13, True)

    rig = Rig(tmp_path / "forged")
    forged = Bundle("ledger:db", {"ledger": "evil"}, [], {}, [], rigs.make_bundle(1).hash)
    monkeypatch.setattr(rigs, "load_bundle", lambda _bundle: rig.catalogs(1))
    monkeypatch.setattr(rigs, "make_bundle", lambda _factor: forged)
    rig.add_catalog(1)
    rig.batch(0, [(DEPOSIT, [0, 1])], live=False)
    rig.stop()
    assert command("recover", rig.directory)[0] == 13
    monkeypatch.undo()
    rig = Rig(tmp_path / "swapped")
    record = {"version": 2, "hash": rigs.make_bundle(1).hash, "bundle": rigs.make_bundle(7).to_bytes().decode()}
    rig.log(encode_json(RecordKind.CATALOG, record, partition=CLUSTER_GROUP, term=1, index=rig.cluster_index + 1))
    rig.batch(0, [(DEPOSIT, [0, 1])], live=False, version=2)
    rig.stop()
    code, text = command("recover", rig.directory)
    assert (code, "not the one that its record names" in text) == (13, True)

    rig = Rig(tmp_path / "divergent")
    rig.batch(0, [(CLOCK, [0])])
    rig.close()
    rig.forget_state(0)
    code, text = command("recover", rig.directory, "--json")
    assert (code, text["error"]["kind"]) == (16, "Divergence")
    assert "clock" in text["error"]["message"]

    rig = Rig(tmp_path / "corrupt")
    rig.batch(0, [(DEPOSIT, [0, 424242])])
    rig.deposits(2)
    rig.close()
    segment = next(path for path in Path(rig.directory, "log").glob("seg-*") if b"424242" in path.read_bytes())
    segment.write_bytes(segment.read_bytes().replace(b"424242", b"424243"))
    assert command("recover", rig.directory)[0] == 10


def test_snapshot_list_and_verify(rig: Rig, command: Command) -> None:
    """Listing reads manifests; verifying reads every byte, names the damaged one and exits with 10."""
    rig.snapshot(0)
    rig.deposits(2)
    newest = Path(rig.snapshot(0))
    rig.stop()
    code, rows = command("snapshot", "list", rig.directory, "--json")
    assert (code, [row["name"] for row in rows][-1]) == (0, newest.name)
    assert command("snapshot", "verify", rig.directory, "--json")[0] == 0
    image = newest / "image.sqlite"
    data = bytearray(image.read_bytes())
    data[5000] ^= 1
    image.write_bytes(data)
    assert command("snapshot", "list", rig.directory, "--json")[0] == 0
    code, text = command("snapshot", "verify", rig.directory)
    assert code == 10
    assert f"{image} has changed" in text


def test_plan_file_is_applied_as_it_is(rig: Rig, command: Command, tmp_path: Path) -> None:
    """What --plan-file wrote, --apply does: here, recovery to a moment."""
    rig.close()
    txn, balances = rig.history[-4]
    plan = tmp_path / "plan.json"
    assert command("recover", rig.directory, "--plan", "--to", "unused", "--until", txn, "--plan-file", plan, "--json")[0] == 0
    assert not Path("unused").exists()
    assert command("recover", rig.directory, "--apply", plan, "--to", tmp_path / "out", "--json")[0] == 0
    assert balances_of(str(tmp_path / "out")) == balances


def test_outdated_plan_file_is_refused_in_place(rig: Rig, command: Command, tmp_path: Path) -> None:
    """The command carries out this plan, or none."""
    rig.stop()
    plan = tmp_path / "plan.json"
    assert command("recover", rig.directory, "--plan", "--plan-file", plan, "--json")[0] == 0
    rig.restart()
    rig.batch(0, [(DEPOSIT, [0, 1])])
    rig.stop()
    code, told = command("recover", rig.directory, "--apply", plan, "--json")
    assert (code, told["error"]["kind"]) == (1, "PlanOutdated")


@pytest.mark.parametrize(
    "options",
    [
        ("--apply", "f", "--to", "o", "--until", "5"),
        ("--plan", "--partitions", "3"),
        ("--quarantine",),
        ("--partitions", "2"),
        ("--until", "1"),
        ("--accept-data-loss",),
        ("several",),  # the name of another directory
    ],
    ids=["until of a plan", "shape in a plan", "aside in place", "shape in place", "moment in place", "loss in place", "several"],
)
def test_options_that_would_be_ignored_are_refused(rig: Rig, command: Command, options: tuple[str, ...]) -> None:
    """An option that has no effect is a state that somebody did not ask for: usage error, and nothing happens."""
    rig.close()
    code, told = command("recover", rig.directory, *options)
    assert (code, options[-2 if len(options) > 1 else -1] in str(told)) == (2, True)
