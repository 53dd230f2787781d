"""What the node shows of itself: status, telemetry, and how long a recovery would take.

One rule: it only looks. Nothing here changes the node, and nothing waits longer than a lock of the sequencer is held.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cmdlog.node.assembly import NodeGround, NodeParts, SelfChecks
from cmdlog.node.sites.site_progress import SiteStall, describe_stall
from cmdlog.node.telemetry.recent_history import Gauges, RecentHistory
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.operator_error import full_text

if TYPE_CHECKING:
    from cmdlog.cluster.membership.operator_desk import OperatorDesk
    from cmdlog.node.telemetry.cluster_metrics import MemberLook


@dataclass(frozen=True, slots=True)
class Health:
    """What only the node itself knows."""

    ready: bool
    error: BaseException | None
    site_pids: Sequence[int]
    recovery: Sequence[Mapping[str, Any]]  # per partition: what its state was rebuilt from, and why


@dataclass(frozen=True, slots=True)
class StatusOverview:
    """Looks at the parts of one node."""

    ground: NodeGround
    parts: NodeParts
    checks: SelfChecks
    history: RecentHistory
    started_at: float  # seconds since 1970
    health: Callable[[], Health]
    cluster: MemberLook | None  # of a node that is one of several
    operator_desk: OperatorDesk | None  # the same

    @property
    def ready(self) -> bool:
        """Calls are accepted, by this node or by the leader that it follows."""
        return self.health().ready and (self.cluster is None or self.cluster.readiness().serves)

    def status(self) -> dict[str, Any]:
        """`GET /v1/status`: node, partitions with watermarks, log, who holds it, predicted recovery; plain data."""
        parts, wal, boot, sequencer = self.parts, self.ground.wal, self.ground.boot, self.parts.sequencer
        clock, health, archive = sequencer.clock, self.health(), dict(parts.archiver.status())
        log = wal.status()
        marks = sequencer.watermarks()
        recovered = wal.recovered
        cluster = {} if self.cluster is None else {"cluster": self.cluster.reading().status}
        roles = {
            group: {"role": of["role"], "term": of["term"]} for part in cluster.values() for group, of in part["groups"].items()
        }
        return {
            "node": str(wal.instance.identity),
            "node_id": wal.instance.identity.node_id,
            "cluster_id": str(uuid.UUID(bytes=wal.instance.identity.cluster_id)),
            "directory": self.ground.directory,
            "ready": self.ready,
            "error": None if health.error is None else full_text(health.error),
            "uptime_s": round(time.time() - self.started_at, 3),
            "durability": self.ground.settings.durability,
            "term": boot.term,
            "catalog_version": boot.catalog,
            "bundle": boot.code.newest_hash,
            "start": {
                "verdict": recovered.verdict.value,
                "notes": list(recovered.notes),
                "changes": boot.changes,
                "waits_for_room": sequencer.opening.waits_for_room,
                "recovery": list(health.recovery),
            },
            "disk_full": parts.desk.troubles.disk_full(),
            "partitions": {
                str(p): {"role": boot.role(p), "state": self.state_of(p), **marks[p], **roles.get(str(p), {})}
                for p in sorted(marks)
            },
            "membership": boot.membership(),
            "failure_set": parts.facts.failures.status(),
            "inflight_calls": sequencer.admission.inflight_calls,
            "inflight_bytes": sequencer.admission.inflight_bytes,
            "idempotency_keys": len(parts.keys),
            "sessions": len(parts.keys.sessions),
            "largest_shares": parts.keys.largest_shares(),
            "clock": {"jumped": clock.jumped, "jumps": clock.jumps, "last_txn": str(clock.closed())},
            "sites": list(health.site_pids),
            "stalled": [*self.stalls(), *(found.as_stall() for found in self.ground.work.stalled())],
            "log": {**log, "fill": fill_of(log), "held_by": held_by(log, archive)},
            "archive": archive,
            "drill": self.checks.drills.status(),
            "state_check": self.checks.pages.status(),
            "scrub": self.checks.scrub.status(),
            "snapshot_error": parts.snapshots.error or None,
            "predicted_recovery_s": self.predicted_recovery_s(),
            "recovery": self.recovery(),
            "snapshots": parts.snapshots.status(),
            **cluster,
        }

    def telemetry(self, front: RequestStats, after: int) -> dict[str, Any]:
        """The last minutes for a status page, as plain data; cheap, any thread, before and after `attach`.

        time     now, seconds since 1970
        node     ready, error, uptime_s, durability, inflight_calls, inflight_bytes
        history  step_s and rows_max: a row per second, ten minutes of them
                 next: give it as `after` the next time, and only newer rows come
                 columns, all of the same length, oldest first:
                   time (of the second's end), calls_per_s, refused_per_s, log_fill (0 to 1), inflight_calls;
                   p50_ms, p99_ms: per line (queue, log, commit, execute, settle, read, total, sync; see
                   `cmdlog.node.telemetry.stage_timings`) a list with null for seconds without any;
                   partitions: per partition (the first 64) durable, applied (indexes), open_calls
        errors   the kinds of errors seen lately, the newest last: code, procedure ("" for none), count, and time and
                 request_id of the last one; all of them every time
        """
        health, admission = self.health(), self.parts.sequencer.admission
        return {
            "time": round(time.time(), 3),
            "node": {
                "ready": self.ready,
                "error": None if health.error is None else full_text(health.error),
                "uptime_s": round(time.time() - self.started_at, 3),
                "durability": self.ground.settings.durability,
                "inflight_calls": admission.inflight_calls,
                "inflight_bytes": admission.inflight_bytes,
            },
            "history": self.history.since(after),
            "errors": front.errors(),
        }

    def sample(self) -> None:
        """A row of the history, if one is due."""
        self.history.sample_if_due(self.gauges)

    def stalls(self) -> list[dict[str, Any]]:
        """Sites that make no progress, the longest first; `[]` when all do. Per site:

        site, kind (`running`: one call runs; `stopped`, `silent`, `restarting`), seconds, partitions (that wait for it);
        partition, procedure and txn_id of the call that it is at (None, "" and None where no call is known), message.
        """
        return sorted(map(self._stall, self.parts.sites.stalls(time.monotonic())), key=lambda stall: -stall["seconds"])

    def _stall(self, stall: SiteStall) -> dict[str, Any]:
        sequencer = self.parts.sequencer
        number, txn_id = None, None
        if stall.partition is not None and stall.index:
            call = sequencer.site_feed.call_at(stall.partition, stall.index, stall.position)
            number, txn_id = call if call is not None else (None, None)
        elif stall.partition is not None:
            number = sequencer.reads.oldest_procedure(stall.partition)
        procedure, seconds = "" if number is None else sequencer.meter.names[number], round(stall.seconds, 3)
        waiting = list(stall.partitions) if stall.kind != "running" or stall.partition is None else [stall.partition]
        return {
            "site": stall.site,
            "kind": stall.kind,
            "seconds": seconds,
            "partitions": list(stall.partitions),
            "partition": stall.partition,
            "procedure": procedure,
            "txn_id": None if txn_id is None else str(txn_id),
            "message": describe_stall(stall.kind, seconds, waiting, procedure),
        }

    def state_of(self, partition: int) -> str:
        """`ok`, or why the partition refuses calls: `disk_full`, `io`, `refused` (the state does not fit), `died`."""
        trouble = self.parts.desk.troubles.by_partition().get(partition)
        return "ok" if trouble is None else trouble.kind

    def gauges(self) -> Gauges:
        """For a row of the history."""
        sequencer = self.parts.sequencer
        return Gauges(fill_of(self.ground.wal.status()), sequencer.admission.inflight_calls, sequencer.watermarks())

    def recovery(self) -> dict[str, Any]:
        """What the prediction is made of: seconds and calls after the newest snapshot per partition, time per call, budget."""
        forecast, speeds = self.parts.snapshots.forecast(), self.parts.sequencer.meter.speeds
        return {
            "budget_s": self.ground.settings.recovery_budget_s or None,
            "partitions": {
                str(p): {
                    "replay_s": round(forecast.replay_s[p], 3),
                    "restore_s": round(forecast.restore_s[p], 3),
                    "calls_behind": speeds.calls_behind(p),
                }
                for p in forecast.replay_s
            },
            "call_us": speeds.per_call_us(),
        }

    def predicted_recovery_s(self) -> float | None:
        """How long a recovery from snapshots and log would take if the power failed now; see `snapshot_schedule.Forecast`.

        The time to start processes is not in it, and a process that only dies keeps its states, so it recovers faster. None
        before any call was executed.
        """
        return round(self.parts.snapshots.forecast().total_s, 3) if any(self.parts.sequencer.meter.busy_s) else None


def fill_of(log: Mapping[str, Any]) -> float:
    """The share of the ring that is in use, of what `Log.status` says."""
    return round(int(log["bytes_used"]) / (int(log["segments"]["total"]) * int(log["segment_bytes"])), 6)


def held_by(log: Mapping[str, Any], archive: Mapping[str, Any]) -> dict[str, Any] | None:
    """What keeps the oldest segment from being recycled, and since when: the archive, or an anchor; None when nothing does."""
    if archive.get("problem"):
        return {"anchor": "archive", "block": log["first_block"], "offset": 0, "since": archive["problem_since"]}
    anchors = log["anchors"]
    if not anchors:
        return None
    name = min(anchors, key=lambda anchor: (anchors[anchor]["block"], anchors[anchor]["since"], anchor))
    return {"anchor": name, **anchors[name]}
