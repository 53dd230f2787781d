"""Point-in-time recovery of a real node that was killed while it archived."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from procedures.samples.bank import BankModel
from replay.plan.planner import make_plan
from replay.recover.to_directory import rebuild
from replay.state.trust import state_path
from snapshot.archive_layout import list_segments
from snapshot.table_digest import open_image
from tests.replay import pitrnode

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run_and_kill(directory: Path, first: int, lines: int, count: int) -> list[tuple[int, int]]:
    """Starts the node at call `first`, kills it after so many answers (or lets it end); the answers (number, transaction)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", pitrnode.__name__, str(directory), str(first), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True)
    assert process.stdout is not None
    answers = []
    for line in process.stdout:
        number, txn = map(int, line.split()[1:])
        answers.append((number, txn))
        if len(answers) == lines:
            process.kill()
    process.wait()
    process.stdout.close()
    return answers


def bank_of(directory: Path) -> tuple[dict[tuple[int, int], list[int]], list[dict[str, int]]]:
    """Accounts of all partitions, and each partition's rates."""
    accounts, rates = {}, []
    for partition in range(pitrnode.SETTINGS["partitions"]):
        connection = open_image(state_path(str(directory), partition))
        for branch, customer, savings, checking in connection.execute("SELECT branch, customer, savings, checking FROM accounts"):
            accounts[int(str(branch)), int(str(customer))] = [int(str(savings)), int(str(checking))]
        rates.append({str(name): int(str(points)) for name, points in connection.execute("SELECT name, basis_points FROM rates")})
        connection.close()
    return accounts, rates


def test_real_node_killed_at_random_moments_restores_every_acknowledged_moment(tmp_path: Path) -> None:
    """Three partitions, calls on all of them, kill -9 while it archives: until any acknowledged T, exactly what the model has."""
    chance, directory = random.Random(11), tmp_path / "node"
    answered: dict[int, int] = {}
    total = 420
    while len(answered) < total:
        begin = len(answered)
        answered |= dict(run_and_kill(directory, begin, chance.randrange(100, 200), total - begin))
    assert list(answered.values()) == sorted(answered.values()), "one caller's calls are in order"
    identity = load_instance(RealFiles(), str(directory)).identity
    assert len(list_segments(RealFiles(), str(directory), identity)) > 5
    wanted = sorted(chance.sample(range(20, 120), 3) + chance.sample(range(120, total), 1))
    model, listed, archived = BankModel(), pitrnode.calls(), 0
    for number in range(total):
        model.apply(*listed[number])
        if number not in wanted:
            continue
        out = tmp_path / f"out{number}"
        planned = make_plan(RealFiles(), str(directory), use_state="never", until=answered[number])
        rebuild(planned, RealFiles(), str(out), workers=0)
        archived += bool(planned.plan.archive)
        accounts, rates = bank_of(out)
        assert accounts == model.accounts, f"until call {number}"
        assert rates == [model.rates] * 3, f"until call {number}"
    assert archived >= 3, "the early ones are behind the ring"
