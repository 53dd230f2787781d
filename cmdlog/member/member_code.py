"""Which code a member runs: what the log names, whatever program it was started with.

One rule: calls run the newest version of the code that is committed in the cluster group. A node that was started with a program
that the log does not know proposes it when it leads, before its first call; one that was started with an older program runs the
code of the log. So the code changes once in a rolling restart, when the leadership reaches a node that has the new program.

    start      the program is compared with the log: its tables must suit the states here, its environment that of the cluster
    committed  every site gets the version, then the batches that name it; calls are bound to it when the states have its tables
    takeover   CATALOG and ENVIRONMENT of this program, where the log lacks them; the tables that it adds; then calls
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from cmdlog.node.deploying.code_change import NewCode
from cmdlog.node.deploying.deployed_code import gives_way
from cmdlog.node.deploying.table_plan import plan_tables
from cmdlog.wal.format.control_record import CatalogVersion
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of, environment
from procedures.code.code_versions import CodeVersions
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value, partitions_of
from procedures.errors import ProceduresError

LOOK_S: Final = 0.02  # at whether the states have the tables of new code

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class Program:
    """What this process was started with."""

    db: Database
    bundle: Bundle


class MemberCode:
    """`observe` is called under the driver's lock, whatever else by any thread."""

    def __init__(
        self,
        program: Program,
        versions: CodeVersions,
        environment_stated: Mapping[str, Any],
        *,
        directory: str,
        partitions: int,
        known: Callable[[int, str, int | None], None],
        bound: Callable[[Database, int], None],
    ) -> None:
        """`environment_stated`: as the log has it. `directory`: the node's. `known`: the log names one more version, its
        bundle, and how many partitions that is for; `bound`: calls are bound to this code and version from now on."""
        self._program, self.versions, self._environment = program, versions, dict(environment_stated)
        self._directory, self._partitions, self._known, self._bind = directory, partitions, known, bound
        self._loading, self._ending = threading.RLock(), threading.Event()
        self._following: list[threading.Thread] = []  # one for each version that came into the log
        self._loaded: tuple[int, Database] | None = None  # version, its code
        self._bound = program.db  # what calls are bound to
        self._bound_version = 0  # the newest one when that was looked at last

    @property
    def proposes(self) -> bool:
        """Whether the log does not know this program, and no deploy has replaced it."""
        known = {value["hash"] for value in self.versions.by_version.values()}
        return not (self._program.bundle.hash in known or gives_way(self._program.bundle.hash, self.versions.newest_value))

    def observe(self, record: bytes) -> None:
        """An entry of the cluster group is committed."""
        kind = peek_record(record).kind
        if kind is RecordKind.ENVIRONMENT:
            self._environment = dict(decode_record(record).json())
        if kind is not RecordKind.CATALOG:
            return
        catalog = CatalogVersion.from_record(decode_record(record))
        if catalog.version in self.versions.by_version:
            return
        self.versions.add(catalog.value)
        self._known(catalog.version, str(catalog.value["bundle"]), partitions_of(catalog.value))
        log.info("code_changed", catalog_version=catalog.version, bundle=str(catalog.value["hash"])[:12])
        following = threading.Thread(target=self._follow_code, name="cmdlog-code", daemon=True)
        self._following.append(following)
        following.start()

    def next_code(self) -> NewCode:
        """What the node that leads has to run: this program, where the log lacks it, else the newest code that the log names.

        Blocking. Raises: as `newest_database`.
        """
        newest, value = self.versions.newest, self.versions.newest_value
        if not self.proposes:
            return NewCode(self.newest_database(), value, is_logged=True)
        db, bundle = self._program.db, self._program.bundle
        return NewCode(db, catalog_value(db, bundle, newest + 1, value, partitions=self._partitions), is_logged=False)

    def missing_environment(self) -> Mapping[str, Any] | None:
        """That of this process, where the log has another one."""
        here = environment()
        return here if here != self._environment else None

    def newest_database(self) -> Database:
        """The code that calls run. Loads it where it is not this program's; blocking.

        Raises: BundleError, and what derives from it, when that code cannot run here.
        """
        with self._loading:
            version, value = self.versions.newest, self.versions.newest_value
            if value["hash"] == self._program.bundle.hash:
                return self._program.db
            if self._loaded is None or self._loaded[0] != version:
                self._loaded = version, load_bundle(bundle_of(version, value))
            return self._loaded[1]

    def run_newest(self) -> None:
        """Calls are bound to the newest code; blocking. Raises as `newest_database`."""
        with self._loading:
            version, database = self.versions.newest, self.newest_database()
            if database is not self._bound or version != self._bound_version:
                self._bind(database, version)
                self._bound = database
            self._bound_version = version

    @property
    def is_bound(self) -> bool:
        """Whether calls are bound to the newest code, which the sites run reads with."""
        return self._bound_version == self.versions.newest

    def stop(self) -> None:
        """Before the sites end."""
        self._ending.set()
        for thread in self._following:
            thread.join()

    def _follow_code(self) -> None:
        """The states get the tables of the newest code after its CATALOG entry, if it adds any."""
        version = self.versions.newest
        try:
            database = self.newest_database()
            while version == self.versions.newest and plan_tables(database, self._directory, self._partitions):
                if self._ending.wait(LOOK_S):
                    return
            if version == self.versions.newest:  # else its own thread waits for its tables
                self.run_newest()
        except ProceduresError as error:  # it is an error of this node when it leads
            log.error("code_not_loaded", catalog_version=self.versions.newest, reason=str(error))
