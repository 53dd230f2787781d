"""The meter: buckets, quantiles, outcomes, and the stages of batches on a clock that the test moves."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.sequencing.partition_pipeline import Limits
from cmdlog.node.telemetry.stage_timings import BYTES, CALLS, OUTCOMES, SECONDS, UNKNOWN, Histogram, StageTimings, quantile
from procedures.idempotency.known_outcome import Status
from tests.node.pipeline import Pipeline


def test_bounds_grow_by_even_steps() -> None:
    """Buckets ascend, each at most 1.7 times the one before (times), twice (calls), four times (bytes)."""
    for bounds, step in ((SECONDS, 1.7), (CALLS, 2.0), (BYTES, 4.0)):
        assert all(1 < b / a <= step for a, b in pairwise(bounds))


def test_outcomes_are_named_in_the_order_of_their_numbers() -> None:
    """The name of each status stands at its number, and unknown comes after them."""
    for status in Status:
        assert OUTCOMES[status].endswith(status.name.lower())
    assert OUTCOMES[UNKNOWN] == "outcome_unknown"


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=50))
def test_a_histogram_counts_every_observation_once(observations: list[tuple[float, int]]) -> None:
    """Each value lies in the first bucket whose bound is not below it; counts and sum are those of all observations."""
    histogram = Histogram()
    for value, weight in observations:
        histogram.add(value, weight)
    assert sum(histogram.counts) == sum(weight for _, weight in observations)
    assert histogram.total == pytest.approx(sum(value * weight for value, weight in observations))
    for at, bound in enumerate(SECONDS):
        assert sum(histogram.counts[: at + 1]) == sum(weight for value, weight in observations if value <= bound)


@given(st.lists(st.floats(1e-5, 60), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_off_by_a_bucket_at_most(values: list[float], share: float) -> None:
    """The estimate lies in the bucket that holds the true quantile."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    found = quantile(SECONDS, histogram.counts, share)
    assert found is not None
    at = bisect_left(SECONDS, true)
    assert (0.0, *SECONDS)[at] <= found <= SECONDS[at] * (1 + 1e-9)


def test_quantiles_of_nothing_and_of_too_much() -> None:
    """Without observations there is no quantile; beyond the last bound it is the last bound."""
    assert quantile(SECONDS, [0] * (len(SECONDS) + 1), 0.5) is None
    histogram = Histogram()
    histogram.add(1e9)
    assert quantile(SECONDS, histogram.counts, 0.5) == SECONDS[-1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=30))
def test_a_batchs_outcomes_are_counted_one_by_one(calls: list[tuple[int, int]]) -> None:
    """Batches of one kind are counted at once, mixed ones call by call: with the same result."""
    meter = StageTimings(["a", "b", "c"], partitions=1)
    meter.count([procedure for procedure, _ in calls], bytes(status for _, status in calls))
    meter.drain()
    for procedure in range(3):
        for status in range(6):
            assert meter.calls[procedure][status] == calls.count((procedure, status))
    assert meter.calls_total() == len(calls)


def test_each_stage_gets_the_time_between_its_ends() -> None:
    """On a clock that stands still but where the test moves it, every stage has exactly the time that was spent in it."""
    pipe = Pipeline(1)
    pipe.step_s = 0.0
    stages = pipe.sequencer.meter.stages
    pipe.add_many([0, 0, 0])
    pipe.time[0] += 1
    pipe.take()
    pipe.time[0] += 2
    pipe.write()
    pipe.time[0] += 4
    pipe.serve(0)
    pipe.time[0] += 8
    pipe.sync()
    pipe.sequencer.meter.drain()
    expected = {"queue": 1, "log": 2, "commit": 0, "execute": 4, "settle": 8}
    assert {stage: round(histogram.total / 3, 6) for stage, histogram in stages.items()} == expected
    assert pipe.sequencer.meter.busy_s == [pytest.approx(4)]


def test_stages_of_calls_with_either_promise() -> None:
    """A batch that is executed when written has its log stage end there; who waits for the disk spends the rest in `settle`."""
    pipe = Pipeline(1)
    pipe.step_s = 0.0
    stages = pipe.sequencer.meter.stages
    pipe.add_many([0, 0, 0], lax=[False, True, False])
    pipe.take()
    pipe.time[0] += 2
    pipe.write()
    pipe.time[0] += 4
    pipe.serve(0)
    pipe.time[0] += 8
    pipe.sync()
    pipe.sequencer.meter.drain()
    assert round(stages["log"].total / 3, 6) == 2
    assert round(stages["execute"].total / 3, 6) == 4
    assert round(stages["settle"].total / 2, 6) == 8
    assert sum(stages["settle"].counts) == 2


def test_no_outcome_is_counted_before_it_may_be_known() -> None:
    """Of a batch that is executed and not durable, lax calls count; the others, and what made it slow, when it is durable."""
    pipe = Pipeline(1)
    pipe.step_s = 0.0
    meter = pipe.sequencer.meter
    meter.slow_s = 5.0
    pipe.add_many([0, 0, 0], lax=[False, True, False])
    pipe.take()
    pipe.write()
    pipe.serve(0)
    meter.drain()
    assert meter.calls[7][0] == 1
    txn_id = pipe.batches(0)[0].first_txn
    assert not meter.stages_of(txn_id)
    pipe.time[0] += 8
    pipe.sync()
    meter.drain()
    assert meter.calls[7][0] == 3
    assert meter.stages_of(txn_id)["settle_ms"] == 8000


def test_a_batch_that_is_sent_again_is_timed_once() -> None:
    """A site that dies with a batch makes its `execute` longer; no stage counts the batch twice."""
    pipe = Pipeline(1, limits=Limits(site_batches_max=1))
    pipe.add(0)
    pipe.take()
    pipe.write()
    pipe.sync()
    pipe.lose_site(0)
    pipe.find_site(0)
    pipe.settle()
    pipe.sequencer.meter.drain()
    assert {stage: sum(h.counts) for stage, h in pipe.sequencer.meter.stages.items()} == {
        "queue": 1, "log": 1, "commit": 1, "execute": 1, "settle": 0,
    }  # fmt: skip


def test_calls_of_which_nobody_knows_are_counted() -> None:
    """When the node fails, calls whose callers wait count as unknown, also executed ones; a lax one keeps its outcome."""
    pipe = Pipeline(1)
    pipe.add_many([0, 0], lax=[True, False])
    pipe.take()
    pipe.write()
    pipe.serve(0)
    pipe.add(0)
    pipe.read_one(0)
    pipe.sequencer.failed(RuntimeError("planted"))
    meter = pipe.sequencer.meter
    meter.drain()
    assert (meter.calls[7][0], meter.calls[7][UNKNOWN]) == (1, 2)
    assert meter.calls[8][UNKNOWN] == 1
