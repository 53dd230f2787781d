"""Real processes whose members change under load: no call fails but for retries, and every set of directories tells the truth."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.histories.list_checker import check_history
from tests.cluster.members.member_cluster import LISTS, MemberCluster
from tests.cluster.members.member_nemesis import DEEDS, MemberNemesis
from tests.cluster.nemesis import ListClients
from tests.waiting import wait_for

SEEDS: Final = int(os.environ.get("SEEDS") or "2")
FIRST: Final = int(os.environ.get("FIRST", "0"))
ALONE: Final = os.environ.get("DEEDS", "")
DEEDS_AT_ONCE: Final = 4  # with one cluster
LEVEL_S: Final = 240.0
SLOW_COPY: Final = 1 << 20  # bytes per second: a copy takes a second, and can be interrupted
SHORT: Final = ("leader killed at admitted of a join",)

Directories = list[tuple[int, ...]]


def judge(folder: Path, seed: int, deeds: Sequence[str], *, all_sets: bool) -> None:
    """One schedule; the lists at its end by reads of the cluster, and by recoveries of the directories."""
    cluster = MemberCluster(folder, copy_rate=SLOW_COPY)
    try:
        cluster.start()
        cluster.leader()
        clients = ListClients(cluster)
        clients.open_lists()
        nemesis = MemberNemesis(cluster, clients, seed)
        with clients.under_way(seed):
            clients.await_answers(10)
            for deed in deeds:
                nemesis.do(deed)
        assert clients.given_up == [], "a call failed for good"
        read = clients.read_all("final")
        check_history(clients.history.operations)
        assert min(len(read[name]) for name in LISTS) > 5
        wait_for(cluster.is_level, LEVEL_S, cluster.logs)
        for node in cluster.nodes:
            cluster.kill(node)
        rng = random.Random(seed)

        def choose(sets: Directories) -> Directories:
            return sets if all_sets else [sets[-1], rng.choice(sets[:-1])]

        cluster.judge_directories(read, choose)
    finally:
        cluster.close()


@pytest.mark.slow
def test_members_change_under_a_short_schedule(tmp_path: Path) -> None:
    """A node joins while the leader is killed, and another one retires."""
    judge(tmp_path, 1, SHORT, all_sets=False)


def schedules() -> list[tuple[int, int]]:
    """(seed, part): every deed once per seed, in an order that the seed chooses."""
    parts = 1 if ALONE else -(-len(DEEDS) // DEEDS_AT_ONCE)
    return [(seed, part) for seed in range(FIRST, FIRST + SEEDS) for part in range(parts)]


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("seed", "part"), schedules())
def test_members_change_under_long_schedules(tmp_path: Path, seed: int, part: int) -> None:
    """Every deed once per seed; `FIRST=` and `SEEDS=` repeat a failure, `DEEDS='one;another'` does these alone."""
    deeds = sorted(DEEDS)
    random.Random(seed).shuffle(deeds)
    chosen = ALONE.split(";") if ALONE else deeds[part * DEEDS_AT_ONCE : (part + 1) * DEEDS_AT_ONCE]
    judge(tmp_path, seed, chosen, all_sets=True)
