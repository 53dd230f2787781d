"""Which code a member runs: what the log names, whatever program it was started with.

One rule: calls run the newest version of the code that is committed in the cluster group. A node that was started with a program
that the log does not know proposes it when it leads, before its first call; one that was started with an older program runs the
code of the log. So the code changes once in a rolling restart, when the leadership reaches a node that has the new program.

    start      the program is compared with the log: its tables must suit the states here, its environment that of the cluster
    committed  every site gets the version, then the batches that name it
    takeover   CATALOG and ENVIRONMENT of this program, where the log lacks them; the tables that it adds; then calls

Tables are tried out on the states before CATALOG is proposed, since every later leader has to add them. States may have changed
since the start: a migration that fails on a row of today would end one leader after the other, and each start of the cluster.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from cmdlog.node.deploying.deployed_code import gives_way
from cmdlog.node.migrating.table_changes import NewTables, SchemaEntry, plan_changes, state_paths, table_changes
from cmdlog.wal.format.control_record import CatalogVersion
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of, environment
from procedures.code.code_versions import CodeVersions
from procedures.code.loaded_modules import load_bundle
from procedures.code.procedure_versions import catalog_value, facts_of, partitions_of
from procedures.errors import ProceduresError, SchemaConflict

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class Program:
    """What this process was started with."""

    db: Database
    bundle: Bundle


class MemberCode:
    """`observe` and `missing_entries` are called under the driver's lock, `newest_database` by any thread."""

    def __init__(
        self,
        program: Program,
        versions: CodeVersions,
        environment_stated: Mapping[str, Any],
        *,
        partitions: int,
        known: Callable[[int, str, int | None], None],
        bound: Callable[[Database, int], None],
    ) -> None:
        """`environment_stated`: as the log has it. `known`: the log names one more version, its bundle, and how many
        partitions that is for; `bound`: calls are bound to this code and version from now on."""
        self._program, self.versions, self._environment = program, versions, dict(environment_stated)
        self._partitions, self._known, self._bind = partitions, known, bound
        self._loading = threading.RLock()
        self._loaded: tuple[int, Database] | None = None  # version, its code
        self._tables_of = 0  # version whose tables all states have
        self._tried: tuple[int, list[SchemaEntry]] | None = None  # version that this program will be, what its tables take
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
        threading.Thread(target=self._follow_code, name="cmdlog-code", daemon=True).start()

    def try_tables(self, directory: str, tick: int) -> None:
        """Before `missing_entries`: whether all states can have the tables of a program that is to be stated; blocking.

        Nothing changes a state from here to `missing_tables`, which gives what was found. Arguments as there. Raises:
        SchemaConflict, MigrationFailed: the log must not name this program.
        """
        self._tried = None
        if not self.proposes:
            return
        version, db = self.versions.newest + 1, self._program.db
        value = catalog_value(db, self._program.bundle, version, self.versions.newest_value, partitions=self._partitions)
        new = NewTables(db, version, self._partitions, tick, migrates=True, facts=facts_of(value), is_new=True)
        self._tried = version, table_changes(new, directory)

    def missing_entries(self) -> Sequence[tuple[RecordKind, dict[str, Any]]]:
        """What this program is, where the log lacks it: kinds and values of the entries that state it."""
        missing: list[tuple[RecordKind, dict[str, Any]]] = []
        if self.proposes:
            version, before = self.versions.newest + 1, self.versions.newest_value
            program = self._program
            value = catalog_value(program.db, program.bundle, version, before, partitions=self._partitions)
            missing.append((RecordKind.CATALOG, value))
        if (here := environment()) != self._environment:
            missing.append((RecordKind.ENVIRONMENT, dict(here)))
        return missing

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

    def missing_tables(self, directory: str, tick: int) -> list[tuple[int, RecordKind, dict[str, Any]]]:
        """The SCHEMA entry of every partition whose state lacks tables of the newest code, tried out on the state; blocking.

        States that had them once have them for good, so they are looked at once for each version. `directory` is the node's; no
        site runs a batch meanwhile. `tick`: of the transaction id that migrations see. Raises: SchemaConflict; as
        `newest_database`.
        """
        version = self.versions.newest
        if self._tables_of == version:
            return []
        if self._tried is not None and self._tried[0] == version:
            missing = self._tried[1]
        else:  # code with migrations was stated by a node that was asked to run them: the node that leads now does
            db, facts = self.newest_database(), facts_of(self.versions.newest_value)
            new = NewTables(db, version, self._partitions, tick, migrates=True, facts=facts, is_new=False)
            missing = table_changes(new, directory)
        self._tried = None
        if not missing:
            self._tables_of = version
        return missing

    def look_at_tables(self, directory: str) -> None:
        """Before the sites run: if the states have the newest tables, no take-over need look. Raises as `newest_database`."""
        with contextlib.suppress(SchemaConflict):
            if not plan_changes(self.newest_database(), state_paths(directory, self._partitions)):
                self._tables_of = self.versions.newest

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

    def _follow_code(self) -> None:
        try:
            self.run_newest()
        except ProceduresError as error:  # it is an error of this node when it leads
            log.error("code_not_loaded", catalog_version=self.versions.newest, reason=str(error))
