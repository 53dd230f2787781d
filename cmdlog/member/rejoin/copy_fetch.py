"""Fetching a copy: from one source after another, until all of it is here.

One rule: whatever is here and checked is not fetched again, from whichever source. Followers are asked first: they have time.

    SourceLost, ChunkDamaged, and refusals that are the source's own      another source
    WAIT, or all sources are busy                                         again, a moment later
    refusals that say the cluster does not know this life (any more)      the cluster is asked again
    everything else, such as a full disk                                  the start ends with that error; what has arrived stays
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_client import ChunkDamaged, CopyClient, SourceLost
from cmdlog.cluster.copying.copy_values import CopyEnding, CopyFile, CopyManifest, CopyRefused, CopyRequest, CopyWait, RefusalCode
from cmdlog.member.rejoin.admission import ASK_SOON_S, is_admitted, rest_until
from cmdlog.member.rejoin.copied_files import CopiedFiles
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import RejoinRecord
from cmdlog.operator_error import OperatorError, full_text
from cmdlog.wal.errors import DiskFull
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.manifest import MANIFEST_NAME

REPORT_EVERY_S: Final = 0.2
KEEPS_FILES: Final = "free space on that volume, then start again: what was copied stays, and the copy is resumed"
ANOTHER_SOURCE: Final = frozenset(
    {
        RefusalCode.STALE_TERM, RefusalCode.ALREADY_COPYING, RefusalCode.BUSY, RefusalCode.UNKNOWN_COPY, RefusalCode.FILE_LOST,
        RefusalCode.UNAVAILABLE,
    }
)  # fmt: skip
ASK_AGAIN: Final = frozenset({RefusalCode.WRONG_RECIPIENT, RefusalCode.NOT_ADMITTED, RefusalCode.DELETED})

log = structlog.get_logger("cmdlog.cluster")


class CopyUnusable(OperatorError):
    """What a source offers is no copy of this cluster's data."""

    hint = "the source's log says what it offered; `cmdlog log verify` and `cmdlog snapshot verify` check its directory"


class AdmissionLost(Exception):
    """A source does not know that this life of the node is admitted."""


class CopyMeter:
    """How much of a copy is here, and how fast it comes."""

    def __init__(self, source: int, total: int, now: Callable[[], float]) -> None:
        """`total`: bytes of all files."""
        self._source, self._total, self._now, self._began = source, total, now, now()
        self._here = self.fetched = 0  # bytes; of them by this run
        self._reported = -REPORT_EVERY_S

    def note_kept(self, size: int) -> None:
        """An earlier run, or another source, has brought these."""
        self._here += size

    def note_fetched(self, size: int) -> None:
        """These have just arrived."""
        self._here += size
        self.fetched += size

    def due_report(self) -> dict[str, Any] | None:
        """What is shown, if enough time has passed since it was shown last."""
        now = self._now()
        if now - self._reported < REPORT_EVERY_S:
            return None
        self._reported = now
        rate = self.fetched / max(now - self._began, 0.001)
        left_s = round((self._total - self._here) / rate, 1) if rate > 0 else None
        return {
            "step": "copying", "copy": "COPYING", "source": self._source, "bytes": self._here, "bytes_total": self._total,
            "percent": round(100 * self._here / max(self._total, 1), 1), "rate": round(rate), "left_s": left_s,
        }  # fmt: skip


class CopyFetch:
    """One copy of one node. Files that arrived are kept over sources, runs and starts."""

    def __init__(self, ground: RejoinGround, record: RejoinRecord, copied: CopiedFiles) -> None:
        self._ground, self._record, self._copied = ground, record, copied
        self._terms_known = True  # sources get our terms; not once all of them have refused for that

    def fetch_from(self, sources: list[MemberAddress]) -> CopyManifest | None:
        """The copy, once all of it is here; None: none of the sources gives one now.

        Raises: AdmissionLost; CopyRefused, CopyUnusable, DiskFull, WriteFailed; what the report of progress raises.
        """
        stale = 0
        for address in sources:
            try:
                with self._ground.connect(self._record.incarnation, address) as source:
                    return self._fetch_all(address.node, source)
            except (SourceLost, ChunkDamaged, CopyUnusable) as error:
                log.warning("copy_source_lost", node=address.node, why=full_text(error))
            except CopyRefused as error:
                if error.code in ASK_AGAIN:
                    raise AdmissionLost(error.why) from error
                if error.code not in ANOTHER_SOURCE:
                    raise
                stale += error.code == RefusalCode.STALE_TERM
                log.info("copy_refused", node=address.node, code=error.code, why=error.why)
        self._terms_known = self._terms_known and not (stale and stale == len(sources))
        return None

    def _fetch_all(self, node: int, source: CopyClient) -> CopyManifest:
        manifest = self._begin_copy(node, source)
        self._copied.begin_copy()
        self._copied.check_room(manifest)
        meter = CopyMeter(node, manifest.size, self._ground.now)
        log.info("copy_begun", source=node, bytes=manifest.size, files=len(manifest.files), rate=manifest.rate)
        for file in manifest.files:
            if self._copied.is_whole(file):
                meter.note_kept(file.size)
            else:
                self._fetch_file(source, manifest.copy, file, meter)
        self._copied.end_copy(manifest)
        log.info("copy_fetched", source=node, bytes=manifest.size, fetched=meter.fetched)
        _end_copy(source, manifest)
        return manifest

    def _fetch_file(self, source: CopyClient, copy: bytes, file: CopyFile, meter: CopyMeter) -> None:
        kept = iter((meter.note_kept,))  # what an earlier run has left of the file is reported first

        def arrived(size: int) -> None:
            next(kept, meter.note_fetched)(size)
            if (report := meter.due_report()) is not None:
                self._ground.report(report)

        try:
            self._copied.fetch_file(file, lambda offset: source.read_chunks(copy, file, offset), arrived)
        except DiskFull as error:
            raise DiskFull(str(error), hint=KEEPS_FILES) from error

    def _begin_copy(self, node: int, source: CopyClient) -> CopyManifest:
        votes = self._record.votes or {}
        terms = {group: (term, 0) for group, (term, _) in votes.items()} if self._terms_known else {}
        request = CopyRequest(self._ground.node, self._record.incarnation, terms)
        while True:
            answer = source.begin_copy(request)
            if not isinstance(answer, CopyWait):
                self._check_manifest(answer)
                return answer
            rest_until(self._ground, max(answer.after_s, ASK_SOON_S), {"copy": "ABSENT", "source": node, "why": answer.why})

    def _check_manifest(self, manifest: CopyManifest) -> None:
        """Raises: CopyUnusable; AdmissionLost when the source's log has not come so far that it states this life."""
        partitions = set(range(int(self._ground.member.cluster.shape["partitions"])))
        whole = {file.partition for file in manifest.files if file.name.endswith(MANIFEST_NAME)}
        if (
            manifest.partitions.keys() != partitions
            or whole != partitions
            or manifest.groups.keys() != partitions | {CLUSTER_GROUP}
        ):
            raise CopyUnusable(f"the copy is of partitions {sorted(manifest.partitions)}, the cluster has {len(partitions)}")
        stated = manifest.groups[CLUSTER_GROUP].members.get(self._ground.node)
        if not is_admitted(None if stated is None else ClusterMember.from_json(stated.value), self._record.incarnation):
            raise AdmissionLost("the source's log does not reach so far yet")


def _end_copy(source: CopyClient, manifest: CopyManifest) -> None:
    """The source may let go; it would by itself, later."""
    try:
        source.end(manifest.copy, CopyEnding.DONE)
    except (SourceLost, CopyRefused) as error:
        log.debug("copy_end_unheard", why=str(error))


def in_order(members: tuple[MemberAddress, ...], *, leader: int) -> list[MemberAddress]:
    """Sources as they are tried: the leader last."""
    return sorted(members, key=lambda member: (member.node == leader, member.node))
