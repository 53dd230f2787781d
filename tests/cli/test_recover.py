"""`cmdlog recover`, `fork` and `diff` where a user goes astray: plans, options that exclude each other, what is there already."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.wal.process_limits import worker_count
from replay.plan.node_plan import Plan
from tests.commands import Command
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.ledgers import SMALL, Versions, logged_calls
from tests.replay.rig import DRIFT, Rig, balances_of

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A stopped node with some deposits."""
    rig = Rig(tmp_path)
    rig.deposits(6)
    rig.close()
    return rig


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with accounts and deposits under keys."""
    folder = tmp_path_factory.mktemp("ledger") / "node"
    with cmdlog.open(folder, versions.load("ledger_v1"), partitions=2, **SMALL) as opened:
        for account in range(6):
            opened.call("begin", account=account)
            opened.call("deposit", account=account, amount=1, idempotency_key=f"k{account}")
    return folder


def test_target_that_is_the_directory_itself_is_called_so(rig: Rig, command: Command, tmp_path: Path) -> None:
    """Also by another name; the hint says what to do, which without --to is a recovery in place, where one directory is given."""
    (tmp_path / "link").symlink_to(tmp_path)
    for out in (rig.directory, tmp_path / "link" / Path(rig.directory).name):
        code, failed = command("recover", rig.directory, "--to", out, "--json")
        assert (code, failed["error"]["kind"]) == (1, "WrongDirectory")
        assert failed["error"]["message"] == f"{out} is one of the inputs, which are never changed"
        assert "another directory for --to, or recover without --to" in failed["error"]["hint"]
    code, failed = command("recover", rig.directory, "--to", Path(rig.directory) / "out", "--json")
    assert (code, failed["error"]["message"].split(", ")[0]) == (1, f"{rig.directory}/out is inside the input {rig.directory}")
    assert "outside of the inputs" in failed["error"]["hint"]
    assert "mounted" not in failed["error"]["hint"]


def test_plan_is_written_before_it_is_carried_out(rig: Rig, command: Command, tmp_path: Path) -> None:
    """Without --plan both is done, in place and to another one; a plan that cannot be written keeps everything as it is."""
    plan = tmp_path / "plan.json"
    rig.forget_state(0)
    code, failed = command("recover", rig.directory, "--plan-file", tmp_path / "no" / "plan.json", "--json")
    assert (code, "no/plan.json" in failed["error"]["message"]) == (1, True)
    assert not os.path.exists(rig.state_file(0))
    assert command("recover", rig.directory, "--to", tmp_path / "out", "--plan-file", tmp_path / "no" / "p")[0] == 1
    assert not (tmp_path / "out").exists()
    code, done = command("recover", rig.directory, "--plan-file", plan, "--json")
    assert (code, done["partitions"][0]["source"]) == (0, "empty")
    assert Plan.from_json(plan.read_bytes()).calls == done["replayed"]
    assert command("recover", rig.directory, "--to", tmp_path / "out", "--plan-file", plan)[0] == 0
    assert balances_of(str(tmp_path / "out")) == rig.balances
    plan.unlink()
    assert command("recover", rig.directory, "--plan", "--to", tmp_path / "other", "--plan-file", plan)[0] == 0
    assert plan.exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("to", [False, True])
def test_divergence_names_the_command_that_recovers_without_its_calls(to: bool, command: Command, tmp_path: Path) -> None:
    """One line of error, a table with every stopped partition, and a hint that can be pasted and then succeeds."""
    rig = Rig(tmp_path)
    rig.deposits(6)
    for partition in range(2):
        rig.batch(partition, [(DRIFT, [10 * partition])])
    txns = [str(txn) for txn, _ in rig.history[-2:]]
    rig.close()
    options = ["--to", tmp_path / "out"] if to else []
    if not to:
        for partition in range(2):
            rig.forget_state(partition)
    code, failed = command("recover", rig.directory, *options, "--json")
    assert (code, [stop["txn_id"] for stop in failed["error"]["stops"]]) == (16, txns)
    assert failed["error"]["place"] == failed["error"]["stops"][0]
    assert [stop["rows"][0]["key"] for stop in failed["error"]["stops"]] == [{"id": 0}, {"id": 10}]
    code, text = command.text("recover", rig.directory, *options)
    error, hint, *table = text.splitlines()
    assert (code, error.startswith("error: divergence in partition 0"), hint.startswith("hint: ")) == (16, True, True)
    assert all(any(txn in line and "accounts" in line and "drift" in line for line in table) for txn in txns)
    assert all(txn in hint for txn in txns)
    pasted = shlex.split(hint.split("`")[-2])
    assert pasted[:2] == ["cmdlog", "recover"]
    assert command(*pasted[1:])[0] == 0
    assert balances_of(pasted[pasted.index("--to") + 1]) == rig.balances, "the model has no drift"
    assert len(Path(pasted[pasted.index("--to") + 1], "quarantine.jsonl").read_text().splitlines()) == 2


def test_estimate_weighs_each_procedure_by_its_calls(rig: Rig, command: Command) -> None:
    """Few calls of a slow procedure do not make the many calls of a quick one slow: the plan forecasts as the node does."""
    for partition in range(rig.partitions):
        rig.forget_state(partition)
    Path(rig.directory, "state", "speeds.json").write_text('{"call_us": {"begin": 20000000, "deposit": 10, "clock": 3000000000}}')
    _, plan = command("recover", rig.directory, "--plan", "--json")
    begins = [part["procedures"]["begin"] for part in plan["partitions"]]
    assert sum(sum(part["procedures"].values()) for part in plan["partitions"]) == plan["calls"]
    workers = min(worker_count(), len(begins))
    assert plan["estimate_s"] == pytest.approx(max(*begins, sum(begins) / workers) * 20, abs=0.1)


def test_help_says_what_the_options_do_and_shows_how(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command teaches by examples, and its words are what it does."""
    monkeypatch.setenv("COLUMNS", "200")
    for name, says in (
        ("recover", ("then execute it", "--until 2026-01-31T12:00:00Z", "./n1 ./n2 ./n3", "--quarantine", "--partitions 8")),
        ("fork", ("--call-timeout-s", "cmdlog diff ./bank ./what-if", "--skip-missing")),
        ("diff", ("--parquet ./differences", "--keys")),
    ):
        code, text = command.text(name, "--help")
        assert code == 0
        assert all(words in text for words in ("Examples", *says)), text


def test_finished_recovery_says_so_when_it_is_wanted_again(rig: Rig, command: Command, tmp_path: Path) -> None:
    """Killed behind its last step or not: exit code 0 with the same report, and nothing is touched; another one is refused."""
    arguments = ("recover", rig.directory, "--to", tmp_path / "out", "--json")
    code, done = command(*arguments)
    assert (code, done["already"]) == (0, False)
    before = damage.tree_hash(str(tmp_path / "out"))
    code, again = command(*arguments)
    assert (code, again) == (0, {**done, "already": True})
    assert damage.tree_hash(str(tmp_path / "out")) == before
    assert "already contains this recovery" in " ".join(command(*arguments[:-1])[1].split())
    for more in (("--until", rig.history[-2][0]), ("--partitions", 4)):
        code, failed = command(*arguments, *more)
        assert (code, "already holds a node, made of" in failed["error"]["message"]) == (1, True)


def test_directory_that_is_given_twice_is_refused(rig: Rig, command: Command, tmp_path: Path) -> None:
    """Also under another name."""
    (tmp_path / "link").symlink_to(rig.directory)
    for twice in ((rig.directory, rig.directory), (rig.directory, tmp_path / "link")):
        for arguments in (
            ("recover", *twice, "--to", tmp_path / "out"),
            ("recover", *twice, "--plan"),
            ("log", "history", *twice),
        ):
            code, failed = command(*arguments, "--json")
            assert (code, "is given twice" in failed["error"]["message"]) == (2, True)


def test_current_code_takes_what_a_fork_takes(node: Path, versions: Versions, command: Command, tmp_path: Path) -> None:
    """Options that it would ignore are refused, and its hints name commands that help."""
    versions.load("ledger_v3", deposit="def pay(tx, account: int, amount: int) -> int:")
    arguments = ("recover", node, "--to", tmp_path / "out", "--code", "current", "--app", "ledger_v3:db", "--json")
    for option in (("--quarantine",), ("--plan",), ("--plan-file", tmp_path / "p"), ("--accept-data-loss",)):
        code, failed = command(*arguments, *option)
        assert (code, option[0] in failed["error"]["message"]) == (2, True)
    code, failed = command(*arguments)
    hint = failed["error"]["hint"]
    assert (code, "cmdlog fork" in hint, "--skip-missing" in hint) == (13, True, True)
    words = hint.split("`")[1].split()
    assert command(*words[1:])[0] == 0


def test_fork_at_a_moment_that_never_was_names_its_own_option(node: Path, command: Command, tmp_path: Path) -> None:
    """Its hint is not that of a recovery."""
    last = logged_calls(node)[-1].txn_id
    for at in (last << 1, 1):
        code, failed = command("fork", node, "--at", at, "--app", "ledger_v1:db", "--to", tmp_path / "out", "--json")
        assert code == 1
        assert "--at" in failed["error"]["hint"]
        assert "--until" not in failed["error"]["hint"]


def test_fork_over_a_damaged_archive_says_what_can_be_restored(tmp_path: Path, command: Command, versions: Versions) -> None:
    """From the start it needs the damaged file; the last range that is named is one in which a fork can begin."""
    rig = ArchiveRig(tmp_path, segments=6)
    rig.rotate(4)
    rig.close()
    damage.flip(os.path.join(rig.directory, "archive", rig.names(".seg")[0]), 9000)
    app = versions.load("ledger_v1", app_of_rig())
    assert app.name == "ledger"
    arguments = ("fork", rig.directory, "--app", "ledger_v1:db", "--json", "--skip-missing")
    code, failed = command(*arguments, "--at", "start", "--to", tmp_path / "out")
    error = failed["error"]
    assert (code, rig.names(".seg")[0] in error["message"]) == (10, True)
    assert "restorable ranges: transactions" in error["hint"]
    first, last = (int(word) for word in error["hint"].rpartition("transactions ")[2].split()[:3:2])
    assert first <= last == rig.history[-1][0]


def app_of_rig() -> str:
    """An application of the name that the hand-made node has."""
    from tests.replay.rig import APP

    return f"FACTOR = 1\n{APP}"


def test_keys_are_one_set_whatever_the_partitions(node: Path, command: Command, tmp_path: Path) -> None:
    """Another number of partitions makes no difference of keys; a key that one side lacks does."""
    for already in (False, True):
        code, done = command("recover", node, "--to", tmp_path / "wide", "--partitions", 4, "--json")
        assert (code, done["already"]) == (0, already)
    code, found = command("diff", node, tmp_path / "wide", "--keys", "--json")
    assert (code, found["idempotency_keys"], found["idempotency_keys_apart"]) == (0, {"left": 6, "right": 6}, both(0, 0))
    until = logged_calls(node)[-3].txn_id
    assert command("recover", node, "--to", tmp_path / "early", "--until", until)[0] == 0
    code, found = command("diff", node, tmp_path / "early", "--keys", "--json")
    assert (code, found["idempotency_keys_apart"]) == (1, both(1, 0))
    assert "1 are on the left side alone" in command("diff", node, tmp_path / "early", "--keys")[1]


def both(left: int, right: int) -> dict[str, Any]:
    """Of two sides."""
    return {"left": left, "right": right}


def test_fork_that_is_finished_says_so(node: Path, command: Command, tmp_path: Path) -> None:
    """Once more it does nothing and tells the same."""
    arguments = ("fork", node, "--at", "start", "--app", "ledger_v1:db", "--to", tmp_path / "out", "--json")
    code, done = command(*arguments)
    assert (code, done["already"]) == (0, False)
    before = damage.tree_hash(str(tmp_path / "out"))
    code, again = command(*arguments)
    assert (code, again["already"], again["cluster_id"]) == (0, True, done["cluster_id"])
    assert damage.tree_hash(str(tmp_path / "out")) == before
    shutil.copytree(node, tmp_path / "copy")
    code, failed = command(*arguments[:1], tmp_path / "copy", *arguments[2:])
    assert (code, "already holds a node" in failed["error"]["message"]) == (1, True)
    assert json.dumps(done)
