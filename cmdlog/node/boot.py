"""Making a node and bringing one up: what is written before the first call is let in.

One rule: everything a replay will need is in the log, durable, before the first call that needs it: the code bundle under its
catalog version, the environment, the configuration, the schema.

A start is a new term (as an election would be), so that an index given again after a cut never has the same term twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from cmdlog.node.routes import SlotMap
from cmdlog.node.settings import BadSetting, Settings
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.groups import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.instance import Identity, Instance
from cmdlog.wal.log import Log
from cmdlog.wal.record import Kind, encode_json
from cmdlog.wal.sizing import check_room, reserve_for
from cmdlog.wal.tail import block_bytes_max
from procedures import Database
from procedures.bundle import Bundle, capture_bundle, environment
from procedures.outcomes import KeyPolicy
from procedures.state import open_reader
from procedures.versions import catalog_value
from replay.plan import STATE_FILE, Plan
from replay.recover import Progress, Report
from replay.trust import state_path

NODE_ID: Final = 1  # of the only node of a one-node cluster
FIRST_TERM: Final = 1

log = structlog.get_logger("cmdlog.node")


class OtherApplication(WalError):
    """The directory was made for another application, by the name of its `Database`."""

    exit_code = 11
    hint = "serve the application that it was made for, or use another directory"


@dataclass(frozen=True, slots=True)
class Boot:
    """What this start adds to the log."""

    term: int
    catalog: int  # version that new calls run
    bundle: Bundle
    policy: KeyPolicy
    catalogs: dict[str, Any]  # every catalog version that the log knows -> its record's value
    notes: list[bytes]  # records of the cluster group and hard states
    changes: list[str]  # human sentences: what is new since the last start


def create_node(files: Files, directory: str, settings: Settings) -> None:
    """Makes an empty node. Durable on return. Raises: WalError."""
    check_room(settings.partitions, settings.segment_bytes)
    initial = [_hard_state(CLUSTER_GROUP, FIRST_TERM), *_configurations(settings)]
    initial += [_hard_state(partition, FIRST_TERM) for partition in range(settings.partitions)]
    Log.create(
        files,
        directory,
        Identity.fresh(NODE_ID),
        segment_bytes=settings.segment_bytes,
        segments=settings.segments,
        reserve_bytes=reserve_for(settings.partitions, settings.segment_bytes, settings.log_reserve_bytes),
        initial=initial,
    )


def key_policy(settings: Settings) -> KeyPolicy:
    """The idempotency rules that the configuration record carries, so that replay expires the same keys."""
    return KeyPolicy(
        window_ms=settings.key_window_s * 1000,
        forget_ms=settings.key_forget_s * 1000,
        keys_max=settings.keys_max,
        clock_lead_max_ms=settings.clock_lead_max_ms,
    )


def make_boot(groups: Mapping[int, GroupState], db: Database, settings: Settings, *, target: str | None) -> Boot:
    """Compares the running program with what the log says and states the differences as records."""
    cluster = groups[CLUSTER_GROUP]
    term = max(group.term for group in groups.values()) + 1
    index = cluster.last_index
    changes: list[str] = []
    notes = [_hard_state(partition, term) for partition in sorted(groups)]

    def entry(kind: Kind, value: Mapping[str, Any]) -> None:
        nonlocal index
        index += 1
        notes.append(encode_json(kind, value, partition=CLUSTER_GROUP, term=term, index=index))

    bundle = capture_bundle(db, target)
    version = max(cluster.catalogs, default=0)
    catalogs = {str(known): catalog.value for known, catalog in sorted(cluster.catalogs.items())}
    if version and (made_for := cluster.catalogs[version].value.get("database", db.name)) != db.name:
        raise OtherApplication(f"the directory belongs to database {made_for!r}, not to {db.name!r}")
    if not version or cluster.catalogs[version].value["hash"] != bundle.hash:
        before = cluster.catalogs[version].value if version else None
        version += 1
        changes.append(f"code bundle {bundle.hash[:12]} becomes catalog version {version}")
        catalogs[str(version)] = catalog_value(db, bundle, version, before)
        entry(Kind.CATALOG, catalogs[str(version)])
    here = environment()
    if cluster.environment is None or cluster.environment.value != here:
        before = cluster.environment.value if cluster.environment else {}
        changed = sorted(name for name in here if before.get(name) != here[name])
        changes.append("environment: " + ", ".join(f"{name} {before.get(name, '-')} -> {here[name]}" for name in changed))
        entry(Kind.ENVIRONMENT, here)
    wanted = cluster_configuration(settings)
    if cluster.configuration != wanted:
        changes.append("configuration changed")
        entry(Kind.CONFIGURATION, wanted)
    return Boot(term, version, bundle, key_policy(settings), catalogs, notes, changes)


def cluster_configuration(settings: Settings) -> dict[str, Any]:
    """Value of the cluster group's CONFIGURATION record."""
    return {
        "voters": [NODE_ID],
        "learners": [],
        "epoch": 1,
        "partitions": settings.partitions,
        "slots": SlotMap(settings.partitions).ranges(),
        "key_policy": asdict(key_policy(settings)),
    }


def adopt_fixed(settings: Settings, groups: Mapping[int, GroupState], instance: Instance) -> Settings:
    """The settings with those that were fixed at creation as the directory has them.

    What no block of these segments could hold is refused at once: it would wait in front of the log for ever, or stop it.
    """
    configuration = groups[CLUSTER_GROUP].configuration or {}
    partitions: int = configuration["partitions"]
    if settings.partitions not in (partitions, Settings().partitions):  # the default says nothing about what is wanted
        raise BadSetting("partitions", f"the directory was made with {partitions}, which stays; leave the setting out")
    batch_bytes_max = block_bytes_max(instance.segment_bytes) // 2  # the other half is for notes, marks and headers
    return dataclasses.replace(
        settings,
        partitions=partitions,
        segment_bytes=instance.segment_bytes,
        segments=instance.segments,
        log_reserve_bytes=instance.log_reserve_bytes,
        batch_bytes_max=min(settings.batch_bytes_max, batch_bytes_max),
        call_bytes_max=min(settings.call_bytes_max, settings.batch_bytes_max, batch_bytes_max),
    )


def applied_index(directory: str, partition: int) -> int:
    """Index of the last entry that the state file holds; its site has ended."""
    connection, _ = open_reader(state_path(directory, partition))
    with contextlib.closing(connection):
        index: int = connection.execute("SELECT idx FROM _cmdlog_meta").get
    return index


def _configurations(settings: Settings) -> list[bytes]:
    configuration = cluster_configuration(settings)
    records = [encode_json(Kind.CONFIGURATION, configuration, partition=CLUSTER_GROUP, term=FIRST_TERM, index=1)]
    for partition in range(settings.partitions):
        value = {"voters": [NODE_ID], "learners": [], "epoch": 1}
        records.append(encode_json(Kind.CONFIGURATION, value, partition=partition, term=FIRST_TERM, index=1))
    return records


def _hard_state(partition: int, term: int) -> bytes:
    return encode_json(Kind.HARD_STATE, {"vote": NODE_ID}, partition=partition, term=term, index=0)


def live_code(db: Database, boot: Boot) -> Callable[[Mapping[str, Any]], Database | None]:
    """The running program's own code for catalog versions of the same bundle; others are loaded from the log."""
    return lambda catalog: db if catalog["hash"] == boot.bundle.hash else None


def reporter(progress: Callable[[Any], None] | None) -> Callable[[Progress], None]:
    """Tells the replay's progress on as plain data."""
    if progress is None:
        return lambda _progress: None

    def report(step: Progress) -> None:
        left = None if step.left_s is None else round(step.left_s, 1)
        progress({"step": "replay", "calls": step.calls, "percent": round(step.percent, 1), "left_s": left})

    return report


def tell_recovery(plan: Plan, report: Report) -> list[dict[str, Any]]:
    """What each partition was rebuilt from, and why, for `status`; the log is told of state files that were not trusted."""
    for part in plan.partitions:
        why = next((passed.why for passed in part.passed if passed.name == STATE_FILE), "")
        if why and (part.source != "empty" or part.calls):  # else there was no state yet
            path, source = state_path(plan.directory, part.partition), part.name or "the log's first entry"
            log.warning("state file rebuilt", partition=part.partition, path=path, reason=why, source=source)
    calls = {result.partition: result.calls for result in report.results}
    digests = {result.partition: result.digests for result in report.results}
    return [
        {
            "partition": part.partition,
            "from": part.source,
            "why": part.why,
            "passed": [asdict(passed) for passed in part.passed],
            "replayed_calls": calls.get(part.partition, 0),
            "compared_digests": digests.get(part.partition, 0),
        }
        for part in plan.partitions
    ]
