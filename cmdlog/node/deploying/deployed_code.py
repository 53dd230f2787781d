"""What a deploy says of itself in its CATALOG record, and what that means for a start with an older program.

One rule: a deploy is not undone by a restart. A unit file may name an older image for years; callers rely on what was
deployed since. So a program that a deploy has replaced gives way to the newest code of the log.

A record names the programs that it replaced, since the log forgets versions of the code that no batch of it needs any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from procedures.code.bundle import Bundle, bundle_of
from procedures.code.code_versions import CodeVersions
from procedures.code.loaded_modules import load_bundle

REPLACED: Final = "replaced"  # member of a CATALOG record's value: hashes of the programs that a deploy replaced, oldest first
REPLACED_MAX: Final = 128  # older ones are forgotten; 64 characters each

log = structlog.get_logger("cmdlog.node")


def replaced_by_deploy(code: CodeVersions, bundle: Bundle) -> dict[str, list[str]]:
    """What a deploy of this bundle adds to its record's value."""
    known = [*code.newest_value.get(REPLACED, ()), *(str(value["hash"]) for _, value in sorted(code.by_version.items()))]
    return {REPLACED: [hash_ for hash_ in dict.fromkeys(known) if hash_ != bundle.hash][-REPLACED_MAX:]}


def gives_way(program_hash: str, newest: Mapping[str, Any]) -> bool:
    """Whether a deploy, whose record's value is the log's newest, has replaced this program."""
    return program_hash != newest["hash"] and program_hash in newest.get(REPLACED, ())


def choose_program(groups: Mapping[int, GroupState], db: Database, bundle: Bundle) -> tuple[Database, Bundle]:
    """The program of this start, or the newest code of the log, if a deploy has replaced the program by it.

    Raises: BundleError, when that code cannot run here.
    """
    catalogs = groups[CLUSTER_GROUP].catalogs
    version = max(catalogs, default=0)
    if not version or not gives_way(bundle.hash, catalogs[version].value):
        return db, bundle
    value = catalogs[version].value
    deployed = bundle_of(version, value)
    log.warning(
        "older_program",
        bundle=bundle.hash[:12],
        runs=deployed.hash[:12],
        catalog_version=version,
        remedy="the deployed code is served; `cmdlog deploy APP` makes this program the newest version again",
    )
    return load_bundle(deployed), deployed
