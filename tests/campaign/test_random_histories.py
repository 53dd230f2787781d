"""Random histories of one real node: a slice always, many under `make torture`, and planted defects that they have to find."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.campaign.history import Life, live
from tests.campaign.mutants import MUTANTS
from tests.campaign.plan import History, Step, draw
from tests.campaign.truth import Planned, Wrong

SMALL_STEPS = 3
SECONDS = float(os.environ.get("CAMPAIGN_S", "240"))
SEEDS = int(os.environ.get("SEEDS") or "1000")
FIRST = int(os.environ.get("FIRST", "0"))
SETTINGS = {
    "partitions": 2, "segment_bytes": 128 << 10, "segments": 6, "sites": 1, "call_bytes_max": 8000, "batch_bytes_max": 16_000,
    "snapshots_kept": 2, "retention_window_s": 86_400, "archive_full": "stop",
}  # fmt: skip


def test_same_seed_draws_the_same_history() -> None:
    """Settings, calls and steps; another seed draws another one."""
    assert draw(7, steps=20) == draw(7, steps=20)
    assert draw(7, steps=20) != draw(8, steps=20)


@pytest.mark.slow
def test_node_is_what_its_history_says(tmp_path: Path) -> None:
    """A short history: state, recoveries to a moment, history and the rest agree with what callers were told."""
    counts = live(3, tmp_path, steps=SMALL_STEPS)
    assert counts["live"]
    assert counts["acknowledged"]


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_nodes_are_what_many_histories_say(tmp_path: Path) -> None:
    """As many seeds as begin within the time, `SEEDS=` and `CAMPAIGN_S=`; a failure says how to repeat it."""
    from tests.campaign.__main__ import STEPS, attempt

    end, failed = time.monotonic() + SECONDS, []
    for seed in range(FIRST, FIRST + SEEDS):
        if time.monotonic() > end:
            break
        _, why = attempt(seed, STEPS)
        failed += [why] if why else []
    assert not failed, "\n".join(failed)


def deposits(first: int, count: int, *, text: int = 0) -> tuple[Planned, ...]:
    """Calls under keys; with notes of so many characters, that fill segments."""
    return tuple(
        Planned(n, "note", {"account": 0, "text": "a" * text}, f"k{n}")
        if text
        else Planned(n, "deposit", {"account": 0, "amount": n}, f"k{n}")
        for n in range(first, first + count)
    )


OPEN = Step("calls", (Planned(1, "begin", {"account": 0}, "k1"), *deposits(2, 8)))
SCRIPTS: dict[str, tuple[Step, ...]] = {
    "forgotten-keys": (OPEN, Step("stop"), Step("retry", share=0.5)),
    "early-until": (OPEN, Step("check", share=0.5, checks=("recover",))),
    "dropped-segment": (
        OPEN,
        *(step for n in range(6) for step in (Step("calls", deposits(100 * (n + 1), 60, text=2000)), Step("snapshot"))),
        Step("check", share=0.1, checks=("recover", "history")),
    ),
    "old-code": (OPEN, Step("deploy", version=2), Step("calls", deposits(20, 3)), Step("check")),
}  # fmt: skip


@pytest.mark.torture
@pytest.mark.parametrize("mutant", ["", *MUTANTS])
def test_planted_defect_is_found(tmp_path: Path, mutant: str) -> None:
    """Each script passes without its defect, and fails with it: lost keys, `--until` off by one, a lost segment, old code."""
    for name in [mutant] if mutant else MUTANTS:
        folder = tmp_path / name
        folder.mkdir()
        life = Life(History(0, dict(SETTINGS), SCRIPTS[name]), folder, mutant)
        if not mutant:
            life.run()
            continue
        with pytest.raises(Wrong):
            life.run()
