"""Importing a package costs what its layer allows: nobody pays for FastAPI to read a log."""

import importlib
import json
import subprocess
import sys
from types import ModuleType

import pytest

from tests.waiting import PATIENCE_S

HEAVY = frozenset({"apsw", "fastapi", "httpx", "numpy", "pyarrow", "pyspark", "rich", "sqlalchemy", "typer", "uvicorn"})
SURFACE = frozenset({"click", "fastapi", "rich", "starlette", "typer", "uvicorn"})


def modules_after_import(name: str) -> set[str]:
    """Names in `sys.modules` of a fresh interpreter after it imported `name`."""
    program = f"import json, sys; import {name}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return set(json.loads(done.stdout))


def test_import_cmdlog_is_light() -> None:
    """`import cmdlog` loads none of the heavy packages: the client, the server and the engine are reached lazily."""
    assert modules_after_import("cmdlog") & HEAVY == set()


def test_import_of_the_log_needs_neither_sql_nor_http() -> None:
    """A tool that only reads a log loads no SQL engine and no server."""
    assert modules_after_import("cmdlog.wal.log, cmdlog.wal.reader") & HEAVY == set()


def test_import_of_a_site_is_light() -> None:
    """It is started again whenever a site ends, and for each of many nodes in tests: no server, no log writer, no loggers."""
    loaded = modules_after_import("cmdlog.node.sites.site_main")
    assert loaded & (SURFACE | {"cmdlog.wal.log", "snapshot.catalog", "structlog"}) == set()


def test_a_server_starts_without_fastapi() -> None:
    """It comes with the first request for one of its routes; calls, which need none of it, are served sooner."""
    loaded = modules_after_import("cmdlog.api.server, cmdlog.node.node, cmdlog.cli.server.serve")
    assert loaded & {"fastapi", "pydantic", "starlette.responses", "alembic", "pyarrow"} == set()


def test_a_node_alone_loads_no_consensus() -> None:
    """What several nodes say to each other is loaded by a member of a cluster."""
    loaded = modules_after_import("cmdlog.api.server, cmdlog.node.node, cmdlog.cli.server.serve")
    assert {name for name in loaded if name.startswith(("cmdlog.cluster", "cmdlog.raft", "cmdlog.member"))} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["procedures", "snapshot", "replay"])
def test_import_below_the_node_needs_no_surface(name: str) -> None:
    """A batch worker that replays has neither the HTTP layer nor the command line in memory."""
    assert modules_after_import(name) & SURFACE == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cmdlog", "cmdlog.client", "procedures", "replay.spark"])
def test_public_names_are_there(name: str) -> None:
    """Every name that a package lists as public can be imported from it, also those that are reached lazily."""
    package = importlib.import_module(name)
    assert [each for each in package.__all__ if getattr(package, each, None) is None] == []
    assert all(not isinstance(getattr(package, each), ModuleType) for each in package.__all__)


def test_a_prompt_completes_public_names() -> None:
    """`dir(cmdlog)` lists what is loaded at its first use, too: prompts and notebooks complete from it."""
    code = "import cmdlog; assert set(cmdlog.__all__) <= set(dir(cmdlog)), set(cmdlog.__all__) - set(dir(cmdlog))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
