"""Settings of the interpreter decide no outcome: a call has the standard ones, and the process has its own back after it."""

from __future__ import annotations

import io
import locale
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from procedures import Database, Transaction
from procedures.execution import call_settings
from procedures.execution.call_settings import FRAMES, standard_settings
from procedures.execution.executor import Status
from tests.procedures import settings_app
from tests.procedures.settings_app import PROCEDURES, db
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]
OUTCOMES = {
    "warn": "warned", "warn_recorded": 1, "compare_bytes": False, "descend": 900, "digits": 4001, "say": 2, "say_bytes": 1,
}  # fmt: skip


class _Closed(io.StringIO):
    """A stream that nobody reads."""

    encoding = "ascii"

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    flush = write  # type: ignore[assignment]


@contextmanager
def _filters() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def _limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * before)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def _digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def _streams(stream: Any) -> Callable[[], Any]:
    @contextmanager
    def given() -> Iterator[None]:
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = stream
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before

    return given


WORLDS: dict[str, Callable[[], Any]] = {
    "filters": _filters,
    "limit": _limit,
    "digits": _digits,
    "closed": _streams(_Closed()),
    "none": _streams(None),
    "ascii": _streams(io.TextIOWrapper(io.BytesIO(), encoding="ascii")),
}


def _settings() -> tuple[Any, ...]:
    return list(warnings.filters), sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.stdout, sys.stderr


@pytest.mark.parametrize("world", WORLDS)
def test_a_call_ends_the_same_whatever_the_process_has_set(make_site: MakeSite, world: str) -> None:
    """Each procedure brings its result, rows change alike, and the settings of the process are as they were."""
    site = make_site(db)
    with WORLDS[world]():
        before = _settings()
        applied = site.apply(*[(name, {"item": 1}) for name in OUTCOMES])
        _, read = site.executor.read([(site.numbers["measure_read"], [1])], catalog=1)
        assert _settings() == before
    assert dict(zip(OUTCOMES, map(orjson.loads, applied.bodies), strict=True)) == OUTCOMES
    assert (applied.rows_digest, read) == _plain(make_site)


def _plain(make_site: MakeSite) -> tuple[int, Any]:
    """The same without any setting."""
    site = make_site(db)
    applied = site.apply(*[(name, {"item": 1}) for name in OUTCOMES])
    return applied.rows_digest, site.executor.read([(site.numbers["measure_read"], [1])], catalog=1)[1]


def _at_depth(depth: int, run: Callable[[], Any]) -> Any:
    return run() if depth == 0 else _at_depth(depth - 1, run)


def _on_a_thread(run: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_every_call_may_go_equally_deep(make_site: MakeSite) -> None:
    """Straight, with a savepoint, as a read, from a deep caller, on another thread, under another limit: to the frame."""
    site = make_site(db)

    def measured() -> set[int]:
        _, answers = site.executor.read([(site.numbers["measure_read"], [1])], catalog=1)
        alone = site.apply(("measure", {"item": 1}))
        failed = site.apply(("measure", {"item": 1}), ("measure_and_fail", {"item": 2}))
        bodies = [answers[0][1], alone.bodies[0], failed.bodies[0], orjson.loads(failed.bodies[1])["message"]]
        return set(map(int, bodies))

    found = measured() | _at_depth(300, measured) | _on_a_thread(measured)
    with _limit():
        found |= measured() | _at_depth(2000, measured)
    assert len(found) == 1
    assert abs(found.pop() - FRAMES) < 20


def test_migrations_go_as_deep_too() -> None:
    """The block around a migration is counted as that around a call."""
    with standard_settings(frames=0):
        here = settings_app._bottom(0)
    with standard_settings(frames=7):
        assert settings_app._bottom(0) == here + 7


def test_another_thread_keeps_its_own_filters_and_streams() -> None:
    """While a call runs, a warning of the program is still an error, and what it prints to a closed pipe still fails."""
    found: list[str] = []

    def program() -> None:
        acts: list[Callable[[], object]] = [lambda: warnings.warn("mine", UserWarning, stacklevel=1), lambda: print("mine")]
        for act in acts:
            try:
                act()
            except (UserWarning, BrokenPipeError) as error:
                found.append(type(error).__name__)

    with _filters(), WORLDS["closed"](), standard_settings():
        warnings.warn("of the call", UserWarning, stacklevel=1)
        print("of the call")
        thread = threading.Thread(target=program)
        thread.start()
        thread.join()
    assert found == ["UserWarning", "BrokenPipeError"]


def test_text_that_a_stream_cannot_encode_is_escaped() -> None:
    """Nothing that a call prints is lost for its characters."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with _streams(stream)(), standard_settings():
        print("für 5 €", flush=True)
        with pytest.raises(TypeError, match="must be str, not int"):
            sys.stdout.write(5)  # type: ignore[arg-type]
    assert raw.getvalue() == b"f\\xfcr 5 \\u20ac\n"


def test_blocks_of_several_threads_restore_the_process_at_the_last() -> None:
    """Each has at least the frames; what the process had is back when all have ended."""
    before, reached, leave = _settings(), threading.Barrier(2), threading.Event()

    def other() -> None:
        with standard_settings():
            reached.wait()
            leave.wait()

    thread = threading.Thread(target=lambda: _at_depth(100, other))
    thread.start()
    with standard_settings():
        reached.wait()
        assert settings_app._bottom(0) > FRAMES - 20
    assert sys.stdout is not before[3]
    leave.set()
    thread.join()
    assert _settings() == before


def test_the_locale_of_a_call_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a program has set for numbers and the like is "C" in a call, and back after it."""
    other = next((name for name in ("C.UTF-8", "de_DE.UTF-8", "en_US.UTF-8", "POSIX.UTF-8") if _has(name)), "")
    if not other:
        pytest.skip("this system has the locale C alone")
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, other)
        with standard_settings():
            assert {locale.setlocale(category) for category in call_settings._CATEGORIES} == {"C"}
        assert locale.setlocale(locale.LC_TIME) == other
    finally:
        locale.setlocale(locale.LC_ALL, before)


def _has(name: str) -> bool:
    before = locale.setlocale(locale.LC_TIME)
    try:
        return locale.setlocale(locale.LC_TIME, name) != "C"
    except locale.Error:
        return False
    finally:
        locale.setlocale(locale.LC_TIME, before)


def test_what_a_call_sets_is_fixed_for_the_next_batch(make_site: MakeSite) -> None:
    """Filters, limits and streams that a procedure leaves behind are not those of the calls after its batch."""
    app = Database("sets")

    @app.procedure(partition_by="item")
    def set_all(tx: Transaction, item: int) -> None:
        warnings.simplefilter("error")
        sys.setrecursionlimit(5000)
        sys.set_int_max_str_digits(0)

    @app.procedure(partition_by="item")
    def look(tx: Transaction, item: int) -> list[int]:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return [sys.get_int_max_str_digits(), settings_app._bottom(0)]

    site, limits = make_site(app), (sys.getrecursionlimit(), sys.get_int_max_str_digits())
    first = site.apply(("look", {"item": 1}))
    with warnings.catch_warnings():
        try:
            site.apply(("set_all", {"item": 1}))
            assert site.apply(("look", {"item": 1})).bodies == first.bodies
        finally:
            sys.setrecursionlimit(limits[0])
            sys.set_int_max_str_digits(limits[1])
    assert first.statuses[0] == Status.OK


def test_every_procedure_is_in_the_table() -> None:
    """The whole-process test calls them all."""
    assert {*PROCEDURES, "measure_read", "measure_and_fail"} == set(db.procedures)
