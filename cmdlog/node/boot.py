"""Making a node and bringing one up: what is written before the first call is accepted.

One rule: everything a replay will need is in the log, durable, before the first call that needs it: the code bundle under its
catalog version, the environment, the configuration, the schema.

A start that writes is a new term (as an election would be), so that an index given again after a cut never has the same term
twice. A start with nothing to write changes nothing on disk: see `cmdlog.node.sequencing.block_builder.Opening`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from cmdlog.node.background.recovery_forecast import RecoverySpeeds
from cmdlog.node.background.snapshot_schedule import segments_wanted
from cmdlog.node.failure_sets import Failures
from cmdlog.node.settings import BadSetting, Settings
from cmdlog.node.slot_map import SlotMap
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity, Instance
from cmdlog.wal.directory.lock import new_folder
from cmdlog.wal.directory.sizing import RingSize, block_bytes_max, reserve_for
from cmdlog.wal.errors import RecordsTooLarge, WalError
from cmdlog.wal.fault_record import FaultRecord
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import block_bytes
from cmdlog.wal.format.control_record import single
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, COUNTER_BITS, PARTITION_BITS, txn_tick
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle, environment
from procedures.code.code_versions import CodeVersions
from procedures.code.procedure_versions import catalog_value, check_rows, facts_of
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.idempotency.request_history import VersionFacts
from procedures.storage.state import open_reader
from replay.plan.node_plan import Plan
from replay.plan.planner import STATE_FILE
from replay.plan.sole_voter import check_whole_member
from replay.recover.execute import RecoveryProgress, RecoveryReport
from replay.state.trust import state_path
from snapshot.catalog import Snapshot

FIRST_TERM: Final = 1
TryCode = Callable[[Bundle, Settings], None]
"""Loads code that is not logged yet as a recovery will. Raises: NotReplayable."""
STATED_BYTES: Final = 1024  # environment and configuration in a checkpoint, and the next version's

log = structlog.get_logger("cmdlog.node")


class OtherApplication(WalError):
    """The directory was made for another application, by the name of its `Database`."""

    exit_code = 11
    hint = "serve the application that it was created for, or use another directory"


@dataclass(frozen=True, slots=True)
class Boot:
    """What this start adds to the log."""

    term: int
    code: CodeVersions  # with those that this start adds
    bundle: Bundle  # of the running program
    policy: KeyPolicy
    terms: list[bytes]  # hard states of all groups, for the first block of this run
    records: list[bytes]  # what is new of the cluster group
    before: dict[str, Any]  # of a snapshot's manifest, what is still true before `records` are in the log
    changes: list[str]  # human sentences: what is new since the last start
    node_id: int
    configurations: dict[int, dict[str, Any]]  # group -> the configuration in force once `notes` are in the log

    @property
    def catalog(self) -> int:
        """The version that new calls run."""
        return self.code.newest

    @property
    def adds_code(self) -> bool:
        """Whether that version comes into the log by this start."""
        return str(self.catalog) not in self.before["catalogs"]

    @property
    def facts(self) -> VersionFacts:
        """What that version's record states beside the code."""
        return facts_of(self.code.newest_value)

    @property
    def epoch(self) -> int:
        """Of the cluster's configuration."""
        return int(self.configurations[CLUSTER_GROUP].get("epoch", 0))

    def membership(self) -> dict[str, Any]:
        """Who belongs to the cluster: epoch, voters, learners, and whether a recovery forced it."""
        value = self.configurations[CLUSTER_GROUP]
        voters, learners = list(value.get("voters", ())), list(value.get("learners", ()))
        return {"epoch": self.epoch, "voters": voters, "learners": learners, "forced": bool(value.get("forced"))}

    def role(self, partition: int) -> str:
        """What this node is in the partition's group. Nothing replicates yet, so only the sole voter of a group leads it."""
        configuration = self.configurations.get(partition, {})
        if self.node_id in (voters := {*configuration.get("voters", ()), *configuration.get("outgoing", ())}):
            return "leader" if voters == {self.node_id} else "follower"
        return "learner" if self.node_id in configuration.get("learners", ()) else "non-participant"


class ManifestFacts:
    """What a snapshot's manifest says beside the image: what is new with this start counts once the log has it."""

    def __init__(self, boot: Boot, failures: Failures) -> None:
        self._boot, self.failures = boot, failures
        self._logged = False

    def note_logged(self) -> None:
        """The log has what this start changes."""
        self._logged = True

    def set_failures(self, cluster_id: bytes, record: FaultRecord) -> None:
        """A new failure set is durable: status and images say it from now on."""
        self.failures = Failures.with_newest(cluster_id, record)

    def of_partition(self, partition: int) -> dict[str, Any]:
        boot = self._boot
        now = {
            "configuration": boot.configurations[CLUSTER_GROUP],
            "catalogs": {str(version): value for version, value in sorted(boot.code.by_version.items())},
            "environment": environment(),
            "key_policy": asdict(boot.policy),
        }
        stated = {"epoch": boot.epoch, "fault_record": self.failures.carried, "partition": partition}
        return {**(now if self._logged else boot.before), **stated}


def ensure_node(
    files: Files, directory: str, settings: Settings, db: Database, *, target: str | None, try_code: TryCode
) -> Bundle | None:
    """`create_node`, where there is none; then the code with which it was made. Raises as it does; FileTooLarge, BundleError."""
    check_whole_member(files, directory)
    if os.path.exists(os.path.join(directory, INSTANCE_NAME)):
        return None
    check_file_size(directory, settings.segment_bytes)
    bundle = capture_bundle(db, target)
    create_node(files, directory, settings, db, bundle, try_code=try_code)
    return bundle


def create_node(files: Files, directory: str, settings: Settings, db: Database, bundle: Bundle, *, try_code: TryCode) -> None:
    """Makes an empty node that has room for this program. Durable on return. Raises: BadSettings, WalError; as `try_code`."""
    s = settings
    code_bytes = len(_code(db, bundle, settings.partitions))
    state_bytes = 2 * code_bytes + STATED_BYTES
    RingSize(s.partitions, s.segments, s.segment_bytes, s.log_reserve_bytes, code_bytes, state_bytes).check()
    identity = Identity.fresh()
    groups = [CLUSTER_GROUP, *range(settings.partitions)]
    initial = [_hard_state(group, FIRST_TERM, identity.node_id) for group in groups]
    initial += [_first_configuration(group, identity.node_id, settings) for group in groups]
    with new_folder(files, directory) as owner:
        try_code(bundle, settings)
        Log.create(
            files,
            directory,
            identity,
            segment_bytes=settings.segment_bytes,
            segments=settings.segments,
            reserve_bytes=reserve_for(settings.partitions, settings.segment_bytes, settings.log_reserve_bytes),
            initial=initial,
            owner=owner,
            whole_ring=settings.preallocate == "ring",
        )


def _code(db: Database, bundle: Bundle, partitions: int) -> bytes:
    """The first version of the program as a record."""
    value = catalog_value(db, bundle, 1, None, partitions=partitions)
    return encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=FIRST_TERM, index=1)


def key_policy(settings: Settings) -> KeyPolicy:
    """The idempotency rules that the configuration record carries, so that replay expires the same keys."""
    return KeyPolicy(
        window_ms=settings.key_window_s * 1000,
        forget_ms=settings.key_forget_s * 1000,
        keys_max=settings.keys_max,
        clock_lead_max_ms=settings.clock_lead_max_ms,
        session_idle_ms=settings.session_idle_s * 1000,
        sessions_max=settings.sessions_max,
    )


def make_boot(
    groups: Mapping[int, GroupState], db: Database, settings: Settings, *, node_id: int, bundle: Bundle, wall_s: float
) -> Boot:
    """Compares the running program with what the log says and states the differences as records.

    Who belongs to the cluster, its epoch and whether that was forced are the log's; a start never changes them.
    """
    cluster = groups[CLUSTER_GROUP]
    term = max(group.term for group in groups.values()) + 1
    index = cluster.last_index
    changes: list[str] = []
    terms = [_hard_state(partition, term, node_id) for partition in sorted(groups)]
    records: list[bytes] = []

    def entry(kind: RecordKind, value: Mapping[str, Any]) -> None:
        nonlocal index
        index += 1
        records.append(encode_json(kind, value, partition=CLUSTER_GROUP, term=term, index=index))

    version = max(cluster.catalogs, default=0)
    catalogs = {known: catalog.value for known, catalog in sorted(cluster.catalogs.items())}
    before = _facts_of(cluster, {str(known): value for known, value in catalogs.items()})
    if version and (made_for := cluster.catalogs[version].value.get("database", db.name)) != db.name:
        raise OtherApplication(f"the directory belongs to database {made_for!r}, not to {db.name!r}")
    # The code: its CATALOG record is the first that a replay needs.
    if not version or cluster.catalogs[version].value["hash"] != bundle.hash:
        predecessor = cluster.catalogs[version].value if version else None
        check_rows(db, predecessor)
        version += 1
        changes.append(f"code bundle {bundle.hash[:12]} becomes catalog version {version}")
        tick = max(txn_tick(max(group.last_txn for group in groups.values())) + 1, int(wall_s * 1000) << COUNTER_BITS)
        catalogs[version] = catalog_value(
            db, bundle, version, predecessor, partitions=settings.partitions, stated_at=tick << PARTITION_BITS
        )
        entry(RecordKind.CATALOG, catalogs[version])
    here = environment()
    # The environment: a replay under another one is warned of by name.
    if cluster.environment is None or cluster.environment.value != here:
        there = cluster.environment.value if cluster.environment else {}
        changed = sorted(name for name in {*here, *there} if there.get(name) != here.get(name))
        changes.append("environment: " + ", ".join(f"{name} {there.get(name, '-')} -> {here.get(name, '-')}" for name in changed))
        entry(RecordKind.ENVIRONMENT, here)
    configurations = {group: dict(state.configuration or {}) for group, state in groups.items()}
    wanted = {**configurations[CLUSTER_GROUP], **_shape(settings)}
    # The configuration: shape and key policy, by which keys expire in a replay too.
    if configurations[CLUSTER_GROUP] != wanted:
        changes.append("configuration: " + ", ".join(sorted(_differing(configurations[CLUSTER_GROUP], wanted))))
        entry(RecordKind.CONFIGURATION, wanted)
        configurations[CLUSTER_GROUP] = wanted
    policy = key_policy(settings)
    return Boot(term, CodeVersions(catalogs), bundle, policy, terms, records, before, changes, node_id, configurations)


def _facts_of(cluster: GroupState, catalogs: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot states of the node, as the log has it."""
    configuration = cluster.configuration or {}
    return {
        "configuration": configuration,
        "catalogs": catalogs,
        "environment": cluster.environment.value if cluster.environment else environment(),
        "key_policy": configuration["key_policy"],
    }


def check_fit(boot: Boot, wal: Log) -> None:
    """Whether the log's segments have room for what this start adds. Raises: RecordsTooLarge; nothing is written."""
    segment_bytes, head_bytes = wal.instance.segment_bytes, wal.head_bytes
    longest = max(map(len, boot.records), default=0)
    if block_bytes([bytes(longest)]) > wal.block_bytes_max or head_bytes + sum(map(len, boot.records)) > segment_bytes // 2:
        held = f"the head of a segment already takes {head_bytes} of {segment_bytes} bytes"
        raise RecordsTooLarge(f"the program takes {longest} bytes compressed, too much for segments of {segment_bytes}: {held}")


def _shape(settings: Settings) -> dict[str, Any]:
    """What the cluster group's configuration says beside its members."""
    return {
        "partitions": settings.partitions,
        "slots": SlotMap(settings.partitions).ranges(),
        "key_policy": asdict(key_policy(settings)),
    }


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name, value in after.items() if before.get(name) != value]


def adopt_fixed(settings: Settings, groups: Mapping[int, GroupState], instance: Instance) -> Settings:
    """The settings with those that were fixed at creation as the directory has them.

    What no block of these segments could hold is refused at once: it would wait for the log for ever, or stop it.
    """
    configuration = groups[CLUSTER_GROUP].configuration or {}
    partitions: int = configuration["partitions"]
    if settings.partitions not in (partitions, Settings().partitions):  # the default says nothing about what is wanted
        raise BadSetting("partitions", f"the directory was created with {partitions}, which cannot be changed; omit the setting")
    _warn_of_small_ring(partitions, instance, settings.snapshot_log_fraction)
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


def _warn_of_small_ring(partitions: int, instance: Instance, fraction: float) -> None:
    wanted = segments_wanted(partitions, instance.segments, instance.segment_bytes, fraction)
    if wanted > instance.segments:
        log.warning(
            "small_log",
            partitions=partitions,
            segments=instance.segments,
            segment_bytes=instance.segment_bytes,
            remedy=f"writes will often wait for snapshots: use --segments {wanted} or more, larger segments, or fewer partitions",
        )


def applied_index(directory: str, partition: int) -> int:
    """Index of the last entry that the state file holds; its site has ended."""
    connection, _ = open_reader(state_path(directory, partition))
    with contextlib.closing(connection):
        index: int = connection.execute("SELECT idx FROM _cmdlog_meta").get
    return index


def _first_configuration(group: int, node_id: int, settings: Settings) -> bytes:
    """A new cluster has one voter."""
    value = single(_shape(settings) if group == CLUSTER_GROUP else {}, node_id)
    return encode_json(RecordKind.CONFIGURATION, value, partition=group, term=FIRST_TERM, index=1)


def _hard_state(partition: int, term: int, node_id: int) -> bytes:
    return encode_json(RecordKind.HARD_STATE, {"vote": node_id}, partition=partition, term=term, index=0)


def live_code(db: Database, boot: Boot) -> Callable[[Mapping[str, Any]], Database | None]:
    """The running program's own code for catalog versions of the same bundle; others are loaded from the log."""
    return lambda catalog: db if catalog["hash"] == boot.bundle.hash else None


def reporter(progress: Callable[[Any], None] | None) -> Callable[[RecoveryProgress], None]:
    """Tells the replay's progress on as plain data."""
    if progress is None:
        return lambda _progress: None

    def report(step: RecoveryProgress) -> None:
        left = None if step.left_s is None else round(step.left_s, 1)
        progress({"step": "replay", "calls": step.done, "percent": round(step.percent, 1), "left_s": left})

    return report


def tell_recovery(
    plan: Plan, report: RecoveryReport, newest: Callable[[int], Snapshot | None], speeds: RecoverySpeeds
) -> list[dict[str, Any]]:
    """What each partition was rebuilt from, and why, for `status`; the log names state files that were not trusted.

    `speeds` gets the newest snapshot of each partition, and the calls that the start replayed.
    """
    for part in plan.partitions:
        snapshot = newest(part.partition)
        speeds.found(part.partition, snapshot.name if snapshot is not None else "", part.procedures)
        why = next((passed.why for passed in part.passed if passed.name == STATE_FILE), "")
        if why and (part.source != "empty" or part.calls):  # else there was no state yet
            path, source = state_path(plan.directory, part.partition), part.name or "the log's first entry"
            log.warning("state_rebuilt", partition=part.partition, path=path, reason=why, source=source)
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
