"""What a fork's code runs by."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from procedures.bundle import load_bundle
from procedures.procedure_versions import catalog_value, facts_of
from procedures.request_history import DECIMALS
from replay.fork.bind_calls import CallBinding
from tests.replay.rig import make_bundle


def without_decimals(value: dict[str, Any]) -> dict[str, Any]:
    """The record as it was made before it stated the decimal context."""
    text = orjson.loads(value["bundle"])
    del text["requests"][DECIMALS]
    return {**value, "bundle": orjson.dumps(text).decode()}


@pytest.mark.parametrize("early", [True, False])
def test_fork_runs_in_the_decimal_context_that_its_record_states(*, early: bool) -> None:
    """The same code keeps the record that the log has, other code gets one of today."""
    bundle, other = make_bundle(), make_bundle(2)
    value = catalog_value(load_bundle(bundle), bundle, 1, None, partitions=2)
    known = {1: without_decimals(value) if early else value}
    assert facts_of(known[1]).standard_decimals is not early
    same, changed = (CallBinding(load_bundle(one), one.hash, known, []).facts for one in (bundle, other))
    assert (same.standard_decimals, changed.standard_decimals) == (not early, True)
