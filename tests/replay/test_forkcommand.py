"""`cmdlog fork` and `cmdlog diff` as an operator meets them: results, words, exit codes, and that both only read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pyarrow.parquet as pq
import pytest

import cmdlog
from replay.state.trust import state_path
from tests.commands import Command
from tests.replay.ledgers import SMALL, Versions, logged_calls

pytestmark = pytest.mark.slow
ACCOUNTS = 6


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with accounts and deposits."""
    folder = tmp_path_factory.mktemp("ledger") / "node"
    with cmdlog.open(folder, versions.load("ledger_v1"), partitions=2, **SMALL) as opened:
        for account in range(ACCOUNTS):
            opened.call("begin", account=account)
        opened.call("set_rate", name="eur", rate=3)
        for n in range(12):
            opened.call("deposit", account=n % ACCOUNTS, amount=n + 1, idempotency_key=f"k{n}")
    return folder


def by_table(value: Any) -> dict[str, tuple[int, int, int]]:
    """Table -> added, removed, changed."""
    return {of["table"]: (of["added"], of["removed"], of["changed"]) for of in value["tables"]}


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a directory but SQLite's own side files."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_what_if_is_one_command_and_its_answer_another(node: Path, versions: Versions, command: Command, tmp_path: Path) -> None:
    """Fork with another factor from the seventh deposit on, then diff: exactly the accounts behind it, with both values."""
    versions.load("ledger_v2", factor="amount * 10")
    deposits = [call for call in logged_calls(node) if len(call.params) == 2 and type(call.params[0]) is int]
    before = content(node)
    code, told = command("fork", node, "--at", deposits[6].txn_id, "--app", "ledger_v2:db", "--to", tmp_path / "out", "--json")
    assert (code, told["calls"], told["kept"], told["statuses"]) == (0, 5, 15, {"OK": 5})
    assert told["first"]["txn_id"] == str(deposits[7].txn_id)
    assert told["first"]["params"] == deposits[7].params
    assert told["forked_from"]["txn_id"] == str(deposits[6].txn_id)
    code, found = command("diff", node, tmp_path / "out", "--json")
    assert (code, found["equal"]) == (1, False)
    assert by_table(found) == {"accounts": (0, 0, 5), "rates": (0, 0, 0)}
    (accounts,) = [of for of in found["tables"] if of["table"] == "accounts"]
    for example in accounts["examples"]:
        late = next(call for call in deposits[7:] if call.params[0] == example["new"]["id"])
        assert example["new"]["balance"] - example["old"]["balance"] == 9 * late.params[1]
    assert accounts["rows"] == {"left": ACCOUNTS, "right": ACCOUNTS}
    assert content(node) == before


def test_words_for_people(node: Path, versions: Versions, command: Command, tmp_path: Path) -> None:
    """Both commands say the main thing in plain lines, and where the rest is."""
    versions.load("ledger_v2", factor="amount * 10")
    code, text = command("fork", node, "--at", "start", "--app", "ledger_v2:db", "--to", tmp_path / "out")
    flat = " ".join(text.split())
    assert code == 0
    assert "ended differently from the live run" in flat
    assert "the first of them: transaction" in flat
    code, text = command("diff", node, tmp_path / "out", "--limit", 2)
    flat = " ".join(text.split())
    assert code == 1
    assert "~ accounts id=0: balance: 8 -> 80" in flat
    assert f"accounts: {ACCOUNTS - 2} more" in flat


def test_misfit_has_its_code_and_can_be_left_out(node: Path, versions: Versions, command: Command, tmp_path: Path) -> None:
    """Exit code 13 names the call; --skip-missing lists it."""
    versions.load("ledger_v3", deposit="def pay(tx, account: int, amount: int) -> int:")
    arguments = ("fork", node, "--at", "start", "--app", "ledger_v3:db", "--to", tmp_path / "out")
    code, text = command(*arguments)
    assert code == 13
    assert "deposit(account, amount)" in " ".join(text.split())
    code, told = command(*arguments, "--skip-missing", "--json")
    assert code == 0
    assert [(of["procedure"], of["calls"]) for of in told["left_out"]] == [("deposit", 12)]
    assert command("fork", node, "--at", "yesterday", "--app", "ledger_v1:db", "--to", tmp_path / "x")[0] == 2
    assert command("fork", node, "--at", "start", "--app", "nowhere:db", "--to", tmp_path / "x")[0] == 13
    assert command("fork", tmp_path, "--at", "start", "--app", "ledger_v1:db", "--to", tmp_path / "x")[0] == 1


def test_sides_that_cannot_be_trusted_are_restored(node: Path, command: Command, tmp_path: Path) -> None:
    """A copy, and a node whose state is behind its log, are compared by what their logs end with; nothing of them changes."""
    copy = tmp_path / "copy"
    shutil.copytree(node, copy)
    connection = apsw.Connection(state_path(str(copy), 0))  # a copied state counts for nothing, so this is no difference
    connection.execute("UPDATE accounts SET balance = -1")
    connection.close()
    before = content(copy)
    code, found = command("diff", node, copy, "--json")
    assert (code, found["left"]["read_from"], found["right"]["read_from"]) == (0, "states", "snapshots and log")
    assert found["left"]["partitions"] == found["right"]["partitions"]
    assert content(copy) == before


def test_bad_input_is_trouble_and_not_a_difference(node: Path, command: Command, tmp_path: Path) -> None:
    """Exit code 2 where others say 1, since 1 says that the sides differ."""
    (tmp_path / "empty").mkdir()
    for left, right in ((node, tmp_path / "empty"), (tmp_path / "missing", node), (node / "snapshots", node)):
        code, text = command("diff", left, right)
        assert code == 2
        assert "error:" in text
    assert command("diff", node, node, "--table", "nothing")[0] == 2
    assert command("diff", node, node, "--limit", -1)[0] == 2
    assert command("diff", node, node, "--parquet", tmp_path / "empty")[0] == 2
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_parquet_of_a_fork(node: Path, versions: Versions, command: Command, tmp_path: Path) -> None:
    """All differences are in the files, also those that are not shown."""
    versions.load("ledger_v2", factor="amount * 10")
    command("fork", node, "--at", "start", "--app", "ledger_v2:db", "--to", tmp_path / "out")
    code, found = command("diff", node, tmp_path / "out", "--parquet", tmp_path / "files", "--limit", 0, "--json")
    assert (code, found["parquet"]) == (1, str(tmp_path / "files"))
    assert not any(of["examples"] for of in found["tables"])
    rows = pq.read_table(tmp_path / "files" / "accounts.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(ACCOUNTS))
    assert all(row["new_balance"] == 10 * row["old_balance"] and row["change"] == "changed" for row in rows)
    assert pq.read_table(tmp_path / "files" / "rates.parquet").num_rows == 0
