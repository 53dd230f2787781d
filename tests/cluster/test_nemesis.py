"""Real processes under faults: whatever happens between and below them, the clients' history is one that could have happened."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cluster.histories.list_checker import check_history
from tests.cluster.nemesis import ListClients, Lists, Nemesis, NemesisCluster
from tests.waiting import wait_for

SEEDS = int(os.environ.get("SEEDS") or "5")
FIRST = int(os.environ.get("FIRST", "0"))
SHORT = ("kill the leader", "leader is not heard")


def judge(folder: Path, seed: int, deeds: list[str] | tuple[str, ...]) -> Lists:
    """One schedule; the lists at its end, by three ways: two rounds of reads, a restart of all, and a recovery."""
    cluster = NemesisCluster(folder)
    try:
        cluster.start()
        cluster.leader()
        clients = ListClients(cluster)
        clients.open_lists()
        nemesis = Nemesis(cluster, clients, seed)
        with clients.under_way(seed):
            clients.await_answers(20)
            for deed in deeds:
                nemesis.do(deed)
        wait_for(cluster.is_level, why=cluster.logs)
        read = [clients.read_all(f"final {number}") for number in range(2)]
        check_history(clients.history.operations)
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.start()
        cluster.leader()
        read.append(clients.read_all("restarted"))
        check_history(clients.history.operations)
        wait_for(cluster.is_level, why=cluster.logs)
        for node in cluster.nodes:
            cluster.kill(node)
        assert read == [cluster.recovered_lists("OUT")] * 3
        return read[0]
    finally:
        cluster.close()


@pytest.mark.slow
def test_histories_hold_under_a_short_schedule(tmp_path: Path) -> None:
    """The leader is killed, and cut off one way; at the end all are killed, and the state is judged three ways."""
    lists = judge(tmp_path, 1, SHORT)
    assert min(map(len, lists.values())) > 3


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_histories_hold_under_long_schedules(tmp_path: Path, seed: int) -> None:
    """Every deed once, in an order that the seed chooses; `FIRST=` and `SEEDS=` repeat a failure."""
    deeds = sorted(Nemesis.DEEDS)
    random.Random(seed).shuffle(deeds)
    judge(tmp_path, seed, deeds)
