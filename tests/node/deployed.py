"""Versions of one application as bundles, each with its own answer, and callers that keep on calling while they are deployed."""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
from pathlib import Path
from typing import Any

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle
from tests.node.rig import send

SOURCE = '''
"""A version of a small application."""

from sqlalchemy import Column, Index, Integer, Text, bindparam, func, insert, select, update

from procedures import Database, Transaction

VERSION = {version}
db = Database({name!r})
COUNT = Column("count", Integer, nullable=False)
tally = db.table("tally", Column("id", Integer, primary_key=True), COUNT{columns}, partition_by="id")
{more_tables}
NEW = insert(tally).values(id=bindparam("id_"), count=1)
MORE = update(tally).values(count=tally.c.count + 1).where(tally.c.id == bindparam("id_"))
ALL = select(func.sum(tally.c.count))
{first}

@db.procedure(partition_by="id")
def hit(tx: Transaction, id: int) -> int:
    """Counts, and says which version did."""
    if tx.execute(MORE, id_=id).rowcount == 0:
        tx.execute(NEW, id_=id)
    return VERSION


@db.procedure(read_only=True)
def total(tx: Transaction) -> list[int]:
    """What a partition has counted, and which version says so."""
    return [tx.execute(ALL).scalar_one() or 0, VERSION]


@db.procedure(partition_by="id", read_only=True)
def version(tx: Transaction, id: int) -> int:
    """Which version answers."""
    return VERSION


@db.procedure(partition_by=None)
def hit_all(tx: Transaction) -> int:
    """On every partition at one place of the order."""
    return VERSION
{last}
'''
OTHER = '''
@db.procedure(partition_by="id")
def only_in_{version}(tx: Transaction, id: int) -> int:
    """Moves the numbers of procedures."""
    return VERSION

'''
RENAMED = ', Column("note", Text, nullable=False, server_default="")'
MIGRATION = """
from sqlalchemy import text

@db.migration("0001_double")
def double(tx, op):
    op.add_column("tally", Column("note", Text, nullable=False, server_default=""))
    # here
    tx.execute(update(tally).values(count=tally.c.count * 2, note="doubled"))
"""
_numbers = itertools.count()


def make_version(folder: Path, version: int, *, name: str = "tally", **parts: str) -> tuple[Database, Bundle]:
    """The application's code of this version; even ones declare one more procedure before the others."""
    source = SOURCE.format(
        version=version, name=name, columns=parts.get("columns", ""), more_tables=parts.get("tables", ""),
        first=OTHER.format(version=version) if version % 2 == 0 else "", last=parts.get("last", ""),
    )  # fmt: skip
    return import_version(folder, source)


def import_version(folder: Path, source: str) -> tuple[Database, Bundle]:
    """Any source as the module `tally_app`: bundles of it differ in nothing else."""
    home = folder / f"code-{next(_numbers)}"
    home.mkdir(parents=True)
    (home / "tally_app.py").write_text(source)
    sys.path.insert(0, str(home))
    try:
        forget_app()
        importlib.invalidate_caches()
        module = importlib.import_module("tally_app")
        return module.db, capture_bundle(module.db, "tally_app:db")
    finally:
        sys.path.remove(str(home))


def forget_app() -> None:
    """The next import of the application reads its file again."""
    sys.modules.pop("tally_app", None)
    importlib.invalidate_caches()


class Callers:
    """Threads that call without a pause until they are stopped; every call's end is kept."""

    def __init__(self, node: Node, *, threads: int = 3) -> None:
        self._node, self._stop = node, threading.Event()
        self.current: list[int] = [1]  # versions in the order of their deploys
        self.deploying: list[int] = [1]  # whose deploy has begun
        self.answers: list[tuple[int, int, int]] = []  # version, number of deploys that had ended before and begun after
        self.failed: list[Any] = []
        self.hits = 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, thread: int) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            ended = len(self.current)
            params: dict[str, Any]
            name, params = (
                ("hit", {"id": thread * 1000 + number % 50}) if number % 8 else
                (("version", {"id": number}), ("hit_all", {}), ("total", {}))[number // 8 % 3]
            )  # fmt: skip
            try:
                reply = send(self._node, name, **params).wait()
            except Exception as error:  # noqa: BLE001 - that is what the tests look for
                self.failed.append(error)
                continue
            begun = len(self.deploying)
            if not isinstance(reply, CallOutcome) or reply.status:
                self.failed.append(reply)
                continue
            with self._lock:
                self.hits += name == "hit"
                self.answers += [(version, ended, begun) for version in versions_in(name, reply.body)]

    def wrong(self) -> list[tuple[int, int, int]]:
        """Answers of versions that were not current at any time between the call's start and its end."""
        return [
            (version, ended, begun)
            for version, ended, begun in self.answers
            if version not in self.deploying[max(ended - 1, 0) : begun]
        ]


def versions_in(name: str, body: bytes) -> set[int]:
    """The versions that an answer names: one, or one per partition."""
    import orjson

    value = orjson.loads(body)
    return {part[1] for part in value} if name == "total" else set(value) if isinstance(value, list) else {value}
