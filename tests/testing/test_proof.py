"""The proof that what a test did replays."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import cmdlog
from cmdlog.testing import OpenEmbedded, assert_replays
from replay.errors import Divergence
from tests.node.apps import faulty
from tests.testing.apps import drift


@pytest.mark.slow
def test_what_was_done_replays(cmdlog_embedded: OpenEmbedded) -> None:
    """Results, aborts, failures, keys and calls on all partitions come back from the log; the directory is left as it is."""
    lived = cmdlog_embedded(faulty.db, folder="lived", partitions=2)
    for n in range(40):
        lived.call("bump", id=n % 7, amount=n, idempotency_key=f"k{n}")
    for name in ("abort_after_write", "raise_after_write"):
        with pytest.raises(cmdlog.CallError):
            lived.call(name, id=1, amount=1, idempotency_key=name)
    lived.call("set_rate", name="x", value=7)
    assert_replays(lived)
    again = cmdlog_embedded(faulty.db, folder="lived")
    assert again.call("bump", id=1, amount=1) > 1
    assert_replays(again)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["by_chance", "by_order"])
def test_what_does_not_replay_is_named(cmdlog_embedded: OpenEmbedded, name: str) -> None:
    """The first call that differs is named with its procedure, be it by its result or by its rows."""
    lived = cmdlog_embedded(drift.db)
    lived.call("steady", id=1)
    lived.call(name, id=2)
    with pytest.raises(Divergence, match=name):
        assert_replays(lived)


@pytest.mark.slow
def test_rows_that_no_call_wrote_are_found(cmdlog_embedded: OpenEmbedded, tmp_path: Path) -> None:
    """A state that holds what the log does not is told, with its table."""
    lived = cmdlog_embedded(faulty.db, folder="lived")
    lived.call("bump", id=1, amount=1)
    lived.close()
    (path,) = (tmp_path / "lived" / "state").glob("p0000.sqlite")
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE counters SET n = 1000")
    connection.close()
    with pytest.raises(AssertionError, match="p0000: counters"):
        assert_replays(lived)
