"""What a fork's code runs by."""

from __future__ import annotations

from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value
from procedures.idempotency.request_history import JUDGED
from replay.fork.bind_calls import CallBinding
from tests.replay.rig import make_bundle


def test_same_code_keeps_the_history_of_its_requests() -> None:
    """Other code gets what a deploy of it would state."""
    bundle, other = make_bundle(), make_bundle(2)
    known = {1: catalog_value(load_bundle(bundle), bundle, 1, {"limits": {}, "forms": {}}, partitions=2)}
    same, changed = (CallBinding(load_bundle(one), one.hash, known, []).facts for one in (bundle, other))
    assert JUDGED in same.requests
    assert JUDGED not in changed.requests
