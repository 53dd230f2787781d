"""What `cmdlog log inspect | dump | verify` show, as plain data.

One rule: read-only and never refusing to look. `inspect_log` and `verify_log` describe a damaged directory and return its error
as a value; only `dump_log` raises, because it may not pass damage over. All work beside a running node: what it is just writing
looks like an unproved end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import LOG_FOLDER, Instance, load_instance
from cmdlog.wal.directory.sizing import fresh_bytes
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, WalError
from cmdlog.wal.fault_log import FaultRecord, read_faults
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.block import SECTOR_BYTES, BlockFlag, block_bytes
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.record import BadRecord, Record, RecordKind, decode_commit_mark, decode_digest, decode_empty
from cmdlog.wal.format.session_columns import ENDED, KEY_BYTES
from cmdlog.wal.group_state import GroupState, GroupStates
from cmdlog.wal.hard_state import HardStateCopies
from cmdlog.wal.ids import CLUSTER_GROUP, Lsn, txn_millis
from cmdlog.wal.opening.restart import decide
from cmdlog.wal.opening.scan import records_at
from cmdlog.wal.opening.survey import SegmentFile, Survey, refusal
from cmdlog.wal.reader import LogReader, Recycled, read_segment, survey_settled

DUMP_ATTEMPTS = 10  # at a log whose oldest segment is recycled before it is read
RESULT_HASHES_SHOWN_MAX = 16  # of a digest
ReadRecords = Callable[[LogReader], Iterator[tuple[Lsn, Record]]]


def inspect_log(files: Files, directory: str) -> dict[str, Any]:
    """Node, verdict, segments and groups, as far as they can be read. Cost does not depend on the log's size.

    Raises: WrongDirectory, Corrupt (instance or hard state file), NewerFormat.
    """
    instance = load_instance(files, directory)
    survey = survey_settled(files, directory, instance)
    error = refusal(survey)
    groups = GroupStates() if survey.walk is None else _fold_newest(survey)
    return {
        "directory": directory,
        "instance": _instance(instance),
        "verdict": decide(survey.facts).verdict.value,
        "story": decide(survey.facts).story,
        "error": _error(error),
        "problems": [
            {"fact": p.fact, "path": p.path, "offset": p.offset, "what": p.what, "block": p.block} for p in survey.problems
        ],
        "hard_state": {
            "oldest_segment": survey.hard.oldest,
            "newest_segment": survey.hard.newest,
            "durable_block": survey.hard.durable,
            "both_copies": survey.hard_copies is HardStateCopies.EQUAL,
        },
        "segments": _segments(survey),
        "free_files": sum(not path.endswith(TEMP_SUFFIX) for path in survey.free),
        "reserved_files": sum(path.endswith(TEMP_SUFFIX) for path in survey.free),
        "cuts": [n for n in files.listdir(os.path.join(directory, LOG_FOLDER)) if n.startswith("cut-")],
        "tail": _tail(survey),
        "groups": {_group_name(p): _group(state) for p, state in sorted(groups.by_partition.items())},
        "reserve": _reserve(survey, groups),
        "members": _members(groups),
        "fault_log": _fault_log(files, directory, instance),
    }


def dump_log(files: Files, directory: str, *, read: ReadRecords = lambda reader: reader.read()) -> Iterator[dict[str, Any]]:
    """Every record from the oldest that is there, readable, in order; bounded memory.

    `read` may know an archive that has what a running node lets go meanwhile (`replay.log.source.read_on`).
    Raises: what opening would refuse, Corrupt at the place where reading meets damage, and Recycled.
    """
    for attempt in range(DUMP_ATTEMPTS):
        reader = LogReader(files, directory)
        names: dict[int, list[Mapping[str, Any]]] = {}
        cluster = _fold_newest(reader.survey).by_partition.get(CLUSTER_GROUP)
        for version, catalog in cluster.catalogs.items() if cluster else ():
            names[version] = catalog.value.get("procedures") or []
        given = False
        try:
            for lsn, record in read(reader):
                yield _describe(lsn, record, names)
                given = True
            return
        except Recycled:  # by a running node; what is the oldest now will do as well, unless something was given
            if given or attempt == DUMP_ATTEMPTS - 1:
                raise


def _fault_log(files: Files, directory: str, instance: Instance) -> dict[str, Any]:
    """Who is declared failed, record by record; `error` when that cannot be read."""
    records: tuple[FaultRecord, ...] = ()
    error: WalError | None = None
    try:
        records = read_faults(files, directory, instance.identity)
    except (Corrupt, Foreign, NewerFormat) as caught:
        error = caught
    names = ("sequence", "epoch", "term", "author", "reason")
    told = [
        {
            **{name: getattr(record, name) for name in names},
            "failed": sorted(record.failed),
            "demotions": [[_group_name(group), index, term] for group, index, term in record.demotions],
            "checksum": f"{record.checksum:08x}",
            "previous_checksum": f"{record.previous_checksum:08x}",
        }
        for record in records
    ]
    return {"failed": sorted(records[-1].failed) if records else [], "records": told, "error": _error(error)}


@dataclass(slots=True)
class VerifyReport:
    """What a full check found. `error` is the first error, which also decides the exit code."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    verdict: str = ""
    blocks: int = 0
    records: int = 0
    error: WalError | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None else self.error.exit_code

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "segments": self.segments,
            "blocks": self.blocks,
            "records": self.records,
            "error": _error(self.error),
            "exit_code": self.exit_code,
        }


def verify_log(files: Files, directory: str) -> VerifyReport:
    """Checks every byte of every block of every segment, and decodes every record and batch.

    Raises: WrongDirectory when there is no node; everything else is in the report.
    """
    report = VerifyReport()
    try:
        survey = survey_settled(files, directory, load_instance(files, directory))
        report.verdict = decide(survey.facts).verdict.value
        report.error = refusal(survey)
    except (Corrupt, WalError) as error:
        if error.exit_code == 1:
            raise
        report.error = error
        return report
    segments = survey.segments
    for segment, after in zip(segments, [*segments[1:], None], strict=False):
        last = after.header.first_block - 1 if after else (survey.walk.expected - 1 if survey.walk else 0)
        _verify_segment(files, report, segment, last, after)
    return report


def _verify_segment(files: Files, report: VerifyReport, segment: SegmentFile, last: int, after: SegmentFile | None) -> None:
    """One segment into the report; the first error of all is kept. What a running node lets go meanwhile is not damaged."""
    row = _segment(segment) | {"blocks": 0, "records": 0, "seals": 0, "bytes": 0, "released": False, "error": None}
    chain = (segment.header.first_block - 1, segment.header.previous_chain)
    try:
        for block in read_segment(files, segment, upto=last):
            chain = (block.header.number, block.header.checksum)
            row["blocks"] += 1
            row["seals"] += bool(block.header.flags & BlockFlag.SEAL)
            row["bytes"] += block.header.total_bytes
            for lsn, record in block.records():
                row["records"] += 1
                _decode_fully(record, lsn, block.path, block.offset)
        if after is not None and chain != (last, after.header.previous_chain):
            raise Corrupt("segment does not reach its successor", path=segment.path, block=chain[0])
    except Recycled:
        row["released"] = True
    except WalError as error:
        row["error"] = _error(error)
        report.error = report.error or error
    report.segments.append(row)
    report.blocks += row["blocks"]
    report.records += row["records"]


def _decode_fully(record: Record, lsn: Lsn, path: str, offset: int) -> None:
    """Payloads too, not only checksums. Raises: Corrupt."""
    try:
        if record.kind is RecordKind.BATCH:
            decode_batch(record).params()
        elif record.kind is RecordKind.COMMIT_MARK:
            decode_commit_mark(record)
        elif record.kind is RecordKind.EMPTY:
            decode_empty(record)
        elif record.kind is RecordKind.DIGEST:
            decode_digest(record)
        elif record.payload:
            record.json()
    except BadRecord as bad:
        what = f"record with good checksums but a bad payload ({bad})"
        raise Corrupt(what, path=path, offset=offset, block=lsn.block, partition=record.partition, index=record.index) from bad


# -- records in words ----------------------------------------------------------------------------------------------------


def _describe(lsn: Lsn, record: Record, names: dict[int, list[Mapping[str, Any]]]) -> dict[str, Any]:
    """`names` collects catalog versions on the way: their procedures, by number."""
    row: dict[str, Any] = {
        "lsn": f"{lsn.block}:{lsn.offset}",
        "kind": record.kind.name.lower(),
        "partition": _group_name(record.partition),
        "term": record.term,
        "index": record.index,
        "checksum": f"{record.checksum:08x}",
    }
    # Four kinds are binary; all others are JSON, and what of it names code is kept for the batches that follow.
    if record.kind is RecordKind.BATCH:
        return row | _describe_batch(record, names)
    if record.kind is RecordKind.COMMIT_MARK:
        return row | {"closed_txn": str(decode_commit_mark(record))}
    if record.kind is RecordKind.EMPTY:
        return row | ({"closed_txn": str(closed)} if (closed := decode_empty(record)) else {})
    if record.kind is RecordKind.DIGEST:
        digest = decode_digest(record)
        return row | {
            "rows_digest": f"{digest.rows_digest:016x}",
            "catalog": digest.catalog,
            "calls": len(digest.result_hashes),
            "result_hashes": [f"{value:08x}" for value in digest.result_hashes[:RESULT_HASHES_SHOWN_MAX]],
        }
    value = record.json() if record.payload else {}
    for catalog in _catalogs_in(record, value):
        names[catalog["version"]] = catalog.get("procedures") or []
    return row | {"value": _without_bulk(value)}


def _describe_batch(record: Record, names: Mapping[int, list[Mapping[str, Any]]]) -> dict[str, Any]:
    batch = decode_batch(record)
    known, keys, calls = names.get(batch.catalog, []), batch.key_list(), []
    for position, params in enumerate(batch.params()):
        number = batch.procedures[position]
        procedure: Mapping[str, Any] = known[number] if number < len(known) else {}
        labels = procedure.get("parameters") or []
        call: dict[str, Any] = {
            "txn_id": str(batch.txn_ids[position]),
            "millis": txn_millis(batch.txn_ids[position]),
            "procedure": procedure.get("name", number),
            "params": dict(zip(labels, params, strict=True)) if len(labels) == len(params) else params,
        }
        if keys is not None and any(keys[position]):
            call |= _call_name(keys[position])
        calls.append(call)
    floors = {session.hex(): "ended" if floor == ENDED else floor for session, floor in sorted(batch.floors.items())}
    return {"catalog": batch.catalog, "calls": calls, **({"floors": floors} if floors else {})}


def _call_name(name: bytes) -> dict[str, Any]:
    """A key; or a session, and the call's number in it."""
    if len(name) == KEY_BYTES:
        return {"key": name.hex()}
    return {"session": name[:KEY_BYTES].hex(), "number": int.from_bytes(name[KEY_BYTES:], "little")}


def _catalogs_in(record: Record, value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if record.kind is RecordKind.CATALOG:
        return [value]
    if record.kind is RecordKind.CHECKPOINT:
        return [stated[3] for stated in value["catalogs"]]
    return []


def _without_bulk(value: Mapping[str, Any]) -> dict[str, Any]:
    """Source text of modules by length only: a dump is for reading."""
    shown = dict(value)
    if isinstance(bundle := shown.get("bundle"), str):
        shown["bundle"] = f"{len(bundle)} characters"
    if isinstance(catalogs := shown.get("catalogs"), list):
        shown["catalogs"] = [[*stated[:3], _without_bulk(stated[3])] for stated in catalogs]
    return shown


# -- heads and groups in words -------------------------------------------------------------------------------------------


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        **instance.identity.as_text(),
        "segment_bytes": instance.segment_bytes,
        "segments": instance.segments,
        "log_reserve_bytes": instance.log_reserve_bytes,
    }


def _segment(segment: SegmentFile) -> dict[str, Any]:
    header = segment.header
    return {
        "sequence": header.sequence,
        "path": segment.path,
        "generation": f"{header.generation:016x}",
        "recycled": header.earlier_life != 0,
        "open_count": header.open_count,
        "first_block": int(header.first_block),
    }


def _segments(survey: Survey) -> list[dict[str, Any]]:
    rows = []
    for segment, after in zip(survey.segments, [*survey.segments[1:], None], strict=False):
        last = after.header.first_block - 1 if after else (survey.walk.expected - 1 if survey.walk else None)
        rows.append(_segment(segment) | {"last_block": last})
    return rows


def _tail(survey: Survey) -> dict[str, Any] | None:
    walk = survey.walk
    if walk is None:
        return None
    return {
        "last_block": walk.expected - 1,
        "end_offset": walk.end,
        "known_durable": max(survey.evidence, walk.evidence),
        "stands_at_end": walk.end_kind.value,
        "blocks_behind_end": len(walk.later),
    }


def _reserve(survey: Survey, groups: GroupStates) -> dict[str, Any] | None:
    """What the log has for control records alone, and how much of it is left; None where its end is not known."""
    if survey.walk is None:
        return None
    instance = survey.instance
    checkpoint = block_bytes(groups.checkpoints(oldest_block=survey.segments[0].header.first_block))
    left = max(0, instance.segment_bytes - survey.walk.end - SECTOR_BYTES)
    left += (instance.segments - len(survey.segments)) * fresh_bytes(instance.segment_bytes, checkpoint)
    return {"bytes": instance.log_reserve_bytes, "left_bytes": min(left, instance.log_reserve_bytes)}


def _fold_newest(survey: Survey) -> GroupStates:
    """The groups as of the good chain's end; what does not decode is left to `verify`."""
    groups = GroupStates()
    with contextlib.suppress(BadRecord):
        for place in survey.walk.places if survey.walk else ():
            groups.observe_all(records_at(survey.data, place))
    return groups


def _group(state: GroupState) -> dict[str, Any]:
    return {
        "term": state.term,
        "vote": state.vote,
        "commit": state.commit,
        "last_index": state.last_index,
        "last_term": state.last_term,
        "last_checksum": f"{state.last_checksum:08x}",
        "closed_txn": str(state.closed_txn),
        "last_txn": str(state.last_txn),
        "configuration": state.configuration,
        "catalog_versions": sorted(state.catalogs),
        "snapshots": state.snapshots,
    }


def _members(groups: GroupStates) -> list[dict[str, Any]]:
    """What the log states of each node of a cluster, committed or not, removed ones too; [] of a node alone."""
    state = groups.by_partition.get(CLUSTER_GROUP)
    stated = {} if state is None else {node: ClusterMember.from_json(of.value) for node, of in sorted(state.members.items())}
    return [{"former": [], "forced": False, **of.to_json(), "state": of.stage.value} for of in stated.values()]


def _group_name(partition: int) -> int | str:
    return "cluster" if partition == CLUSTER_GROUP else partition


def _error(error: WalError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"kind": error.kind, "message": full_text(error), "exit_code": error.exit_code}
