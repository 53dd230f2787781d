"""Keys used before a deploy that reorders and renames parameters, and retried after it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.errors import KeyReused
from cmdlog.wal.files import RealFiles
from replay.fork.fork import fork
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from tests.replay.deployed import Deployed, application, copied, make_deployed, tables_of
from tests.replay.ledgers import SMALL, Versions

pytestmark = pytest.mark.slow
FILES = RealFiles()


@pytest.fixture(scope="module")
def past(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """See `make_deployed`: the key `adjusted` was used by `adjust(id=1, times=3, plus=5)` of the first code."""
    return make_deployed(tmp_path_factory.mktemp("years") / "node", versions)


@pytest.fixture
def copy(past: Deployed, tmp_path: Path) -> Path:
    """To be written to."""
    return copied(past.directory, tmp_path / "copy")


def answers(call: Callable[..., Any]) -> None:
    """`call` makes a call under a key and returns its value: the stored answer for the same request, a refusal for others."""
    assert call("adjusted", plus=5, factor=3, id=1) == 1 * 3 + 5
    assert call("adjusted by default", id=2, factor=7, plus=1) == 2 * 7 + 1
    with pytest.raises(KeyReused):
        call("adjusted", plus=3, factor=5, id=1)
    with pytest.raises(KeyReused):
        call("adjusted", plus=5, factor=3, id=1, extra=1)


def test_retry_gets_its_stored_answer(copy: Path, versions: Versions, tmp_path: Path) -> None:
    """Live, and by a replay from the start, which must find the same digests."""
    before = tables_of(copy)
    with cmdlog.open(copy, application(versions, 4), **SMALL) as node:
        answers(lambda key, **params: node.call("adjust", **params, idempotency_key=key))
    assert tables_of(copy) == before
    shutil.rmtree(copy / "snapshots")
    (copy / "snapshots").mkdir()
    rebuild(make_plan(FILES, str(copy), PAST), FILES, str(tmp_path / "out"), workers=2)
    assert tables_of(tmp_path / "out") == before


def test_site_processes_know_the_former_signatures(copy: Path, versions: Versions) -> None:
    """The bundle's text brings them."""
    with cmdlog.open(copy, application(versions, 4), sites=1, **SMALL) as node:
        answers(lambda key, **params: node.call("adjust", **params, idempotency_key=key))


def test_fork_with_the_new_code_keeps_the_answers(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """Forked after the keyed calls, and before the code was deployed; the new node's catalog says the same."""
    db = application(versions, 3)
    fork(FILES, str(past.directory), at=past.last(1).txn_id, db=db, out=str(tmp_path / "out"), missing="skip")
    with cmdlog.open(tmp_path / "out", db, **SMALL) as node:
        answers(lambda key, **params: node.call("adjust", **params, idempotency_key=key))
