"""What SQLAlchemy's suite expects of its plugin for pytest, and the list of what must fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import testing
from sqlalchemy.testing import config, provision

from tests.procedures.dialect_suite.not_run import NotRun, entry_of
from tests.procedures.dialect_suite.suite_engine import SuiteEngine

SUITE = Path(__file__).with_name("test_dialect_suite.py")
PREFIX = "Test"  # of the names under which pytest finds the suite's classes
ENTRIES_USED = pytest.StashKey[set[str]]()
REFUSED_BEFORE = pytest.StashKey[bool]()
LISTED = pytest.StashKey[NotRun | None]()  # of every test of the suite


@pytest.hookimpl(tryfirst=True)  # before tests are deselected: the list is judged by all of them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Finds the tests that are listed, and keeps which entries of the list there were tests for."""
    used = config.stash.setdefault(ENTRIES_USED, set())
    for item in items:
        if item.path == SUITE:
            found = entry_of(item.nodeid.partition("::")[2].removeprefix(PREFIX))
            item.stash[LISTED] = None if found is None else found[0]
            used.update(() if found is None else (found[1],))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """A test that fails as listed passes: it was tried, and refused as the list says. One that does not is a failure.

    (As an xfail, each would cost the text of a long traceback; a skip would say that nothing was tried.)
    """
    if LISTED not in item.stash or call.when == "teardown":
        return
    listed, error = item.stash[LISTED], None if call.excinfo is None else call.excinfo.value
    if listed is not None and (isinstance(error, listed.raises) or item.stash.get(REFUSED_BEFORE, False)):
        call.excinfo = None
        item.stash[REFUSED_BEFORE] = True  # in its setup: then the call finds nothing to run
        return
    try:
        if listed is not None and error is None and call.when == "call":
            pytest.fail(f"it passes: take it out of not_run.py ({listed.reason})", pytrace=False)
        if isinstance(error, pytest.skip.Exception):
            pytest.fail(f"it skips itself ({error}): list it in not_run.py", pytrace=False)
    except pytest.fail.Exception:
        call.excinfo = pytest.ExceptionInfo.from_current()


@pytest.fixture(scope="package", autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuiteEngine]:
    """The engine that the suite finds in its configuration."""
    engine = SuiteEngine(tmp_path_factory.mktemp("suite") / "site.db")
    suite_config: Any = config.Config
    suite_config.set_as_current(suite_config(engine, {}, None, None), testing)
    yield engine
    engine.close()


@pytest.fixture(scope="class")
def setup_class_methods(request: pytest.FixtureRequest) -> Iterator[None]:
    """The suite's classes ask for it by this name."""
    _call_if_there(request.cls, "setup_test_class")
    yield
    _call_if_there(request.cls, "teardown_test_class")


@pytest.fixture
def setup_test_methods(request: pytest.FixtureRequest) -> Iterator[None]:
    """As `setup_class_methods`."""
    _call_if_there(request.instance, "setup_test")
    yield
    _call_if_there(request.instance, "teardown_test")


def _call_if_there(owner: Any, name: str) -> None:
    if hasattr(owner, name):
        getattr(owner, name)()


@provision.is_preferred_driver.for_db("cmdlog")
def _is_preferred(_config: Any, _engine: Any) -> bool:
    return True


@provision.delete_from_all_tables.for_db("cmdlog")
def _delete_rows(connection: Any, _config: Any, metadata: Any) -> None:
    for table in reversed(metadata.sorted_tables):
        connection.execute(table.delete())
