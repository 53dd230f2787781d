"""What `cmdlog.testing` gives to the tests of applications."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.testing import OpenEmbedded, Server, StartServer
from tests.node.apps import faulty
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_each_database_is_its_own(cmdlog_embedded: OpenEmbedded) -> None:
    """Two databases of one test share nothing; one folder opened again is the same database."""
    first, second = cmdlog_embedded(faulty.db), cmdlog_embedded(faulty.db)
    assert first.call("bump", id=1, amount=5) == 5
    assert second.call("bump", id=1, amount=1) == 1
    kept = cmdlog_embedded(faulty.db, folder="kept", partitions=2)
    kept.call("bump", id=1, amount=3)
    kept.close()
    assert cmdlog_embedded(faulty.db, folder="kept").call("peek", id=1) == 3


@pytest.mark.slow
def test_server_is_real_and_may_be_killed(cmdlog_server: StartServer) -> None:
    """A process that serves a Database by the name it is found under; what it acknowledged survives its death."""
    server = cmdlog_server(faulty.db, partitions=1)
    assert server.app == "tests.node.apps.faulty:db"
    assert server.client.call("bump", id=1, amount=5) == 5
    pid, url = server.pid, server.url
    server.kill()
    with pytest.raises(RuntimeError, match="the server is not running"):
        server.stop()
    server.start()
    assert (server.url, server.pid != pid) == (url, True)
    assert server.client.call("peek", id=1) == 5
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The process's own words are in the error, and nothing is left running."""
    server = Server("tests.no_such_module:db", tmp_path)
    with pytest.raises(RuntimeError, match=r"there is no module tests\.no_such_module"):
        server.start()
    server.close()


@pytest.mark.slow
def test_plugin_works_where_an_application_enables_it(tmp_path: Path) -> None:
    """`pytest_plugins` in the topmost conftest is all that it takes."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["cmdlog.testing"]\n')
    (tmp_path / "shop.py").write_text(
        "from sqlalchemy import Column, Integer\n"
        "from procedures import Database\n"
        'db = Database("shop")\n'
        'stock = db.table("stock", Column("item", Integer, primary_key=True), partition_by="item")\n'
        "PUT = stock.insert()\n"
        '@db.procedure(partition_by="item")\n'
        "def put(tx, item: int) -> int:\n"
        "    tx.execute(PUT, item=item)\n"
        "    return item\n"
    )
    (tmp_path / "test_shop.py").write_text(
        "from cmdlog.testing import assert_replays\n"
        "from shop import db\n"
        "def test_put(cmdlog_embedded):\n"
        "    shop = cmdlog_embedded(db)\n"
        "    assert shop.call('put', item=7) == 7\n"
        "    assert_replays(shop)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
