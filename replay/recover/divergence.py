"""Finds out by running it again why a batch behaves differently from the live run.

One rule: it only compares. Batches are run and rolled back by `replay.recover.partition_replay`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.wal.format.batch import Batch
from cmdlog.wal.format.record import Digest
from procedures.execution.executor import Applied
from procedures.storage.row_digest import ChangedRow
from replay.state.touched_rows import Key

UNSTEADY: Final = "replayed again with a different result"
RERUNS: Final = 2


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """Why a batch is not simply applied."""

    kind: str  # divergence, fault, hang, death, code
    reason: str
    position: int  # -1: not known which call
    applied: Applied | None = None  # what it did, for a divergence
    live: Digest | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a batch that was rolled back."""

    statuses: Sequence[int]
    hashes: Sequence[int]
    rows_digest: int
    changed: Mapping[Key, ChangedRow]
    touched: Mapping[Key, list[int]]  # row -> positions of the calls that touched it

    def rows_of(self, position: int) -> list[Key]:
        return [key for key, positions in self.touched.items() if position in positions]


def compare_with_live(batch: Batch, applied: Applied, live: Digest, aside: Collection[int] = ()) -> BatchProblem | None:
    """How a replayed batch, or its first calls, differs from the live run; calls of `aside` are not compared."""
    if list(live.result_hashes[: len(applied.result_hashes)]) != list(applied.result_hashes):
        at = differing_calls(live.result_hashes, applied.result_hashes, aside)
        if at:
            return BatchProblem("divergence", "", at[0], applied, live)
    rows = live.rows_digest and applied.rows_digest and live.rows_digest != applied.rows_digest
    if rows and not aside and len(applied.result_hashes) == batch.count:
        return BatchProblem("divergence", "", -1, applied, live)
    return None


def differing_calls(live: Sequence[int], ours: Sequence[int], aside: Collection[int]) -> list[int]:
    """Positions at which the answers differ; those of `aside` do not count."""
    return [at for at, (a, b) in enumerate(zip(live, ours, strict=False)) if a != b and at not in aside]


def changers(trial: Trial) -> list[int]:
    """Positions of the calls that touched what the batch changed."""
    return sorted({at for key in trial.changed for at in trial.touched.get(key, ())})


def unsteady_call(trials: Sequence[Trial]) -> int:
    """The first call whose answer or rows differ between two trials; -1 when none does."""
    first, second = trials
    keys = [key for key in first.changed.keys() | second.changed.keys() if _new(first, key) != _new(second, key)]
    rows = [at for key in keys for at in [*first.touched.get(key, ()), *second.touched.get(key, ())]]
    return min([*rows, *differing_calls(first.hashes, second.hashes, ())], default=-1)


def _new(trial: Trial, key: Key) -> tuple[Any, ...] | None:
    changed = trial.changed.get(key)
    return () if changed is None else changed.new


def reruns_in_words(problem: BatchProblem, trials: Sequence[Trial]) -> str:
    """What the trials say about the call; "" when there were none to compare."""
    if len(trials) < RERUNS or problem.applied is None:
        return ""
    at = problem.position
    hashes = (
        {trial.hashes[at] for trial in trials if at < len(trial.hashes)} | {problem.applied.result_hashes[at]}
        if at >= 0
        else set()
    )
    digests = {trial.rows_digest for trial in trials} | ({problem.applied.rows_digest} - {0})
    if len(hashes) > 1 or (at < 0 and len(digests) > 1) or (at >= 0 and unsteady_call(trials) == at):
        return f"{UNSTEADY}: the procedure is not deterministic"
    return "replayed again with the same result"
