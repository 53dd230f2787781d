"""The start of a node that is one of several: its part of a new cluster, what its log says of the program, its parts.

One rule: nothing is written that the others might not agree with. The first entries are compared with the cluster file's digest
before the directory is made, and a start adds nothing to the log: what is new is proposed by the node that leads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import structlog

from cmdlog.cluster.cluster_file import BadClusterFile, ClusterFile
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.genesis import Genesis
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.member.consensus import Consensus, StatedEntries, make_code, make_consensus, make_network
from cmdlog.member.leading.leading import make_leading
from cmdlog.member.member import Member
from cmdlog.member.member_code import Program
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.membership.membership import Membership
from cmdlog.member.rejoin.life_end import LifeEnd
from cmdlog.member.rejoin.member_opening import open_own
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import RejoinReason
from cmdlog.node.assembly import MACHINE, NodeGround, NodeParts, Outside, build_parts, closed_on_failure, make_checks
from cmdlog.node.background.page_checks import unsealed_states
from cmdlog.node.boot import (
    Boot,
    OtherApplication,
    TryCode,
    adopt_fixed,
    check_fit,
    key_policy,
    live_code,
    reporter,
    tell_recovery,
)
from cmdlog.node.deploying.code_trial import CodeTrial
from cmdlog.node.migrating.table_changes import NewTables, table_changes
from cmdlog.node.node import Node
from cmdlog.node.scrub.log_comparison import ScrubPeers
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import SlotMap
from cmdlog.wal.directory.instance import INSTANCE_NAME, Identity
from cmdlog.wal.directory.lock import new_folder
from cmdlog.wal.directory.sizing import reserve_for
from cmdlog.wal.errors import WalError
from cmdlog.wal.fault_log import FaultLog
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP, txn_tick
from cmdlog.wal.log import Log
from cmdlog.wal.os_errors import check_file_size
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle, environment
from procedures.code.code_versions import CodeVersions
from procedures.code.procedure_versions import catalog_value, check_rows, facts_of
from procedures.idempotency.known_outcome import KeyPolicy
from procedures.migration.stated_change import StatedChange
from replay.plan.planner import MEMBER_START
from replay.recover.in_place import bring_up
from replay.state.trust import Trust

log = structlog.get_logger("cmdlog.cluster")


class OtherProgram(WalError):
    """The program is not the one whose calls the cluster runs."""

    exit_code = 13
    hint = "start the node with the code that the cluster runs"


class OtherEnvironment(WalError):
    """The same calls might do something else here than on the other nodes."""

    exit_code = 13
    hint = (
        "run the node with what the cluster runs; to move the cluster to another Python or SQLite, stop it, and recover its "
        "directories into a new one with `cmdlog recover DIR... --to OUT`"
    )


def make_genesis(db: Database, bundle: Bundle, settings: Settings, voters: tuple[int, ...]) -> Genesis:
    """What a new cluster of this program begins with."""
    partitions = settings.partitions
    shape = {
        "partitions": partitions, "slots": SlotMap(partitions).ranges(), "key_policy": asdict(key_policy(settings)),
    }  # fmt: skip
    catalog = catalog_value(db, bundle, 1, None, partitions=partitions)
    return Genesis(voters, shape, catalog, environment(), first_tables(db))


def ensure_member(
    files: Files,
    directory: str,
    settings: Settings,
    db: Database,
    *,
    target: str | None,
    cluster: ClusterFile,
    node: int,
    try_code: TryCode,
) -> Bundle | None:
    """Makes the directory of this member, where there is none; then the code with which it was made.

    Raises: BadClusterFile, OtherApplication, OtherProgram, WalError, BundleError; as `try_code`.
    """
    cluster.member(node)
    if os.path.exists(os.path.join(directory, INSTANCE_NAME)):
        return None
    if cluster.database != db.name:
        raise OtherApplication(f"the cluster is for database {cluster.database!r}, not for {db.name!r}")
    check_file_size(directory, settings.segment_bytes)
    bundle = capture_bundle(db, target)
    # What the others will begin with is compared before anything is made.
    genesis = Genesis(cluster.nodes, cluster.shape, *_program(db, bundle, cluster))
    if (digest := genesis.digest()) != cluster.genesis:
        raise OtherProgram(
            f"this program, with Python and packages as they are here, begins a cluster as {digest}, but the cluster file says "
            f"{cluster.genesis}: it was made for other code, or in another environment"
        )
    with new_folder(files, directory) as owner:
        try_code(bundle, settings)
        Log.create(
            files,
            directory,
            Identity(cluster.cluster_id, node, os.urandom(8)),
            segment_bytes=settings.segment_bytes,
            segments=settings.segments,
            reserve_bytes=reserve_for(settings.partitions, settings.segment_bytes, settings.log_reserve_bytes),
            initial=genesis.records(),
            owner=owner,
            whole_ring=settings.preallocate == "ring",
        )
    return bundle


def join(
    directory: str,
    db: Database,
    settings: Settings,
    member: MemberGround,
    *,
    target: str | None = None,
    progress: Callable[[Any], None] | None = None,
    outside: Outside = MACHINE,
) -> Node:
    """Creates this node's part of a new cluster if the directory is empty or missing, else recovers what it executed; after a
    copy, if one is wanted, under way, or the only way (`cmdlog.member.rejoin.member_opening`).

    Returns when the sites run; `attach` then begins to speak with the others.
    Raises: BadClusterFile, MemberRemoved, WalError, and the errors of procedures and replay.
    """
    folder = os.path.abspath(directory)
    rejoin = RejoinGround(outside.files, folder, member, progress)

    def open_node() -> Node:
        with CodeTrial(inline=False) as trial:
            return open_member(folder, db, settings, member, trial, target=target, progress=progress, outside=outside)

    return open_own(rejoin, open_node)


def open_member(
    directory: str,
    db: Database,
    settings: Settings,
    member: MemberGround,
    trial: CodeTrial,
    *,
    target: str | None,
    progress: Callable[[Any], None] | None,
    outside: Outside,
) -> Node:
    """Makes the directory where there is none, opens its log, and recovers its states as far as this node had executed them.

    Raises: BadClusterFile, WalError, and the errors of procedures and replay.
    """
    files = outside.files
    if doubt := doubt_of_url(member.cluster.member(member.node).client, settings):
        log.warning("client_url_doubtful", node=member.node, reason=doubt)
    bundle = ensure_member(
        files, directory, settings, db, target=target, cluster=member.cluster, node=member.node, try_code=trial.load
    )
    wal = Log.open(files, directory)
    with closed_on_failure(wal):
        check_file_size(directory, wal.instance.segment_bytes)
        groups = wal.recovered.groups.by_partition
        settings = replace(adopt_fixed(settings, groups, wal.instance), durability="sync")
        if progress is not None:
            progress({"step": "opened"})
        boot = member_boot(groups, db, wal.instance.identity, bundle or capture_bundle(db, target))
        trial.load_added(boot.bundle, boot.code.by_version, settings)
        program = Program(db, boot.bundle)
        unsealed = unsealed_states(files, directory, range(settings.partitions))
        plan, report = bring_up(files, wal, live=live_code(db, boot), progress=reporter(progress), purpose=MEMBER_START)
        Trust(files, directory).unseal()
        check_program(directory, settings, db, boot, wal)
        run_upto = {part.partition: part.to_index for part in plan.partitions}
        ground = NodeGround(directory, db, settings, wal, boot, outside)
        parts = build_parts(ground, first_site=trial.take_site, run_upto=run_upto)
        recovery = tell_recovery(plan, report, parts.snapshots.newest, parts.sequencer.meter.speeds)
        node = build_member(ground, parts, member, program, recovery)
        node.checks.pages.wish(unsealed, plan)
        node.start()
    return node


def build_member(
    ground: NodeGround, parts: NodeParts, member: MemberGround, program: Program, recovery: list[dict[str, Any]]
) -> Node:
    """Bottom-up; nothing runs yet."""
    wal, files, identity = ground.wal, ground.outside.files, ground.wal.instance.identity
    readiness = parts.calls.readiness
    roll = MemberRoll(wal.recovered.groups, member.cluster)
    network = make_network(ground, member, roll)
    life = LifeEnd(
        RejoinGround(files, ground.directory, member), network.book.me.incarnation, roll, readiness.fail,
        can_write=lambda: wal.disk_full is None,
        connected=lambda: [of.node for of in network.status().peers if of.connected_since_s is not None],
    )  # fmt: skip
    faults = FaultSets(
        FaultLog.open(files, ground.directory, identity), identity.cluster_id,
        partial(parts.facts.set_failures, identity.cluster_id),
    )  # fmt: skip
    if roll.faults is not None:
        faults.adopt_set(roll.faults)
    code = make_code(ground, parts, program)
    stated = StatedEntries(faults, roll, code)
    consensus = make_consensus(ground, parts, member, roll=roll, network=network, life=life, stated=stated)
    leading = make_leading(ground, parts, consensus, code)
    membership = Membership(
        consensus, leading, faults, failed=readiness.fail, failure_s=ground.settings.failure_after_s
    )  # fmt: skip
    checks = make_checks(ground, parts, make_scrub_peers(consensus, wal, life))
    replicator = Member(
        ground, parts, checks, consensus=consensus, leading=leading, membership=membership, code=code, life=life
    )  # fmt: skip
    return Node(ground, parts, checks, replicator, recovery)


def make_scrub_peers(consensus: Consensus, wal: Log, life: LifeEnd) -> ScrubPeers:
    """Whom the scrub compares the log with."""
    me, member = wal.instance.identity, consensus.ground
    return ScrubPeers(
        copy_credentials(me.cluster_id, member.node, me.incarnation, member.secret), consensus.driver, consensus.network,
        lambda: consensus.roll.members, want_copy=partial(life.want_copy, RejoinReason.DAMAGED), tls=member.tls,
    )  # fmt: skip


def doubt_of_url(url: str, settings: Settings) -> str:
    """Why clients may not reach the node under its URL in the cluster file; "" when its scheme is the one that is served."""
    stated, served = url.partition("://")[0].lower(), "http" if settings.tls_cert_file is None else "https"
    if stated == served:
        return ""
    remedy = "set tls_cert_file" if stated == "https" else "give the cluster its https URL"
    return f"the cluster file has {url}, and this node serves {served}: {remedy}, unless a proxy translates between both"


def first_tables(db: Database) -> dict[str, Any]:
    """What the first SCHEMA entry of every partition says, without its transaction id."""
    plan = db.plan_change({}, ())
    return StatedChange(plan.statements, marked=plan.marked).to_json()


def _program(db: Database, bundle: Bundle, cluster: ClusterFile) -> tuple[dict, dict, dict]:  # type: ignore[type-arg]
    partitions = int(cluster.shape["partitions"])
    return catalog_value(db, bundle, 1, None, partitions=partitions), environment(), first_tables(db)


def member_boot(groups: Mapping[int, GroupState], db: Database, identity: Identity, bundle: Bundle) -> Boot:
    """What this node's log says; a program that it does not know is proposed when this node leads.

    Raises: BadClusterFile, OtherApplication, OtherEnvironment.
    """
    state = groups[CLUSTER_GROUP]
    configuration = state.configuration or {}
    if "key_policy" not in configuration:
        raise BadClusterFile("the log states no shape: the directory is not a member's")
    code = CodeVersions({version: catalog.value for version, catalog in state.catalogs.items()})
    if (made_for := code.newest_value.get("database", db.name)) != db.name:
        raise OtherApplication(f"the cluster belongs to database {made_for!r}, not to {db.name!r}")
    if state.environment is not None:
        check_environment(state.environment.value, environment())
    return Boot(
        term=max(group.term for group in groups.values()),
        code=code,
        bundle=bundle,
        policy=KeyPolicy(**configuration["key_policy"]),
        terms=[],
        records=[],
        before={},
        changes=[],
        node_id=identity.node_id,
        configurations={group: dict(of.configuration or {}) for group, of in groups.items()},
    )


def check_environment(stated: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises: OtherEnvironment when the cluster runs another Python or SQLite than this process."""
    there, this = dict(stated), dict(here)
    for versions in (there, this):
        versions["python"] = ".".join(str(versions.get("python", "")).split(".")[:2])
    names = {"python": "Python", "implementation": "the Python", "sqlite": "SQLite"}
    other = [
        f"{text} {there.get(name)}, not {this.get(name)}" for name, text in names.items() if there.get(name) != this.get(name)
    ]
    if other:
        raise OtherEnvironment(f"the cluster runs {'; '.join(other)} as here: results and rows might differ between nodes")


def check_program(directory: str, settings: Settings, db: Database, boot: Boot, wal: Log) -> None:
    """Whether a program that the log does not know can become the cluster's: the log has room for it, and its tables suit.

    Raises: RecordsTooLarge, SchemaConflict.
    """
    if boot.bundle.hash in {value["hash"] for value in boot.code.by_version.values()}:
        if boot.bundle.hash != boot.code.newest_hash:
            log.warning("older_program", bundle=boot.bundle.hash[:12], runs=boot.code.newest_hash[:12])
        return
    check_rows(db, boot.code.newest_value)
    value = catalog_value(db, boot.bundle, boot.catalog + 1, boot.code.newest_value, partitions=settings.partitions)
    record = encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=boot.term, index=1)
    check_fit(replace(boot, records=[record]), wal)
    tick = txn_tick(wal.recovered.txn_id_max) + 1
    new = NewTables(db, boot.catalog + 1, settings.partitions, tick, settings.migrate, facts_of(value), is_new=True)
    table_changes(new, directory)
    log.warning("new_program", bundle=boot.bundle.hash[:12], runs=boot.code.newest_hash[:12])
