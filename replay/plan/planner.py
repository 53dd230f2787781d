"""The plan of a recovery: for each partition the source, the range of entries, and the reason.

Made by reading only; carried out by `replay.recover.execute`.

One rule: every source is proved against the log before it is chosen. A state file or snapshot is at an (index, term, checksum);
only if the log holds the same entry there is it a prefix of the log. One beyond the log's end, or that disagrees, is rejected
and named: it holds what was never acknowledged, or belongs elsewhere.

Preference: the state file, when this boot of the machine wrote it (`replay.state.trust`); the newest verified snapshot; nothing
at all, when the log reaches back to the first entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.opening.survey import SegmentFile
from procedures.code.bundle import bundle_of
from procedures.storage.state import Position
from replay.engine import CatalogMissing
from replay.errors import Incomplete, ReplayError, UntilUnreachable
from replay.log.archive_reach import Reach
from replay.log.evidence import BOOTSTRAP_INDEX
from replay.log.scan import Scan, ScannedStream, scan
from replay.log.source import LogSource, fold_end, open_source, partitions_of
from replay.log.split_calls import PartedCall, check_whole, find_parted, names_of
from replay.plan.node_plan import Kind, PartitionPlan, Plan, Planned
from replay.plan.sole_voter import check_alone
from replay.plan.until import check_begin, check_newest
from replay.state.trust import Trust, state_path
from snapshot.catalog import Passed, Snapshot, TimedChecks, list_snapshots

LEFT_MAX: Final = 128  # entries of a stream that nothing proves executed: a node has no more (`site_batches_max`)
STATE_FILE: Final = "state file"  # its name among the sources that were passed over
REASONS_MAX: Final = 3  # that a refusal names


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a plan is for: which sources it may use, how far it goes, and whether one directory has to decide alone."""

    states: Literal["trusted", "never"] = "never"
    leave: Literal["nothing", "unproved", "unexecuted"] = "nothing"  # entries at the end of each stream that are not replayed
    missing_code: Literal["refused", "left"] = "refused"  # "left": the replay finds it, and may set such calls aside
    voters: Literal["alone", "any"] = "alone"  # "any": the caller has decided which of several logs counts


RECOVER: Final = Purpose(states="trusted")
"""Every state to the end of the log, in place or to be read."""
START: Final = replace(RECOVER, leave="unproved")
"""A node alone starts. What the live run is not known to have executed is left to its sites, which are watched: a call there may
be the one that hangs, or that ended the process."""
MEMBER_START: Final = replace(RECOVER, leave="unexecuted", voters="any")
"""A member starts. Only what it has executed is known to be committed."""
PAST: Final = Purpose()
"""A state is made from snapshots and log alone, at the end or at a moment."""
QUARANTINE: Final = replace(PAST, missing_code="left")
"""The same, where calls that cannot be replayed are set aside."""
MEMBER_PAST: Final = replace(PAST, voters="any")
"""The same from the log of one of several nodes."""
MEMBER_QUARANTINE: Final = replace(MEMBER_PAST, missing_code="left")
PROOF: Final = replace(MEMBER_PAST, leave="unexecuted")
"""A drill of a member proves what the member has executed: the others decide about the rest."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible state to start from, not yet proved."""

    kind: Kind
    name: str
    position: Position
    snapshot: Snapshot | None = None


def make_plan(
    files: Files,
    directory: str,
    purpose: Purpose,
    *,
    until: int | None = None,
    accept_data_loss: bool = False,
    source: LogSource | None = None,
    trust: Trust | None = None,
) -> Planned:
    """Looks at log, snapshots and state files; changes nothing.

    `source` and `trust` are those of a caller that has the log open, and has checked who votes.

    Where snapshots and log do not reach back far enough, the archive is used.

    Raises: WalError of a log that is refused, NotSoleVoter, Incomplete, UntilUnreachable, CatalogMissing, BundleForged.
    """
    has_checked = source is not None
    source = source or open_source(files, directory, accept_data_loss=accept_data_loss)
    if purpose.voters == "alone" and not has_checked:
        check_alone(files, directory, source.instance.identity, fold_end(source))
    if purpose.states == "trusted" and trust is None:
        trust = Trust(files, directory)
    search = _Search(files, directory, purpose, trust, until, accept_data_loss)
    # The live log first; then the archive, where that does not reach, or is damaged before a wanted moment.
    try:
        return search.plan(source, list_snapshots(files, directory, source.instance.identity))
    except (Incomplete, UntilUnreachable) as error:
        return _from_archive(search, source, error)
    except Corrupt as damage:
        if until is None:
            raise
        return _from_archive(search, source, damage)


@dataclass(frozen=True, slots=True)
class _Search:
    """What is wanted."""

    files: Files
    directory: str
    purpose: Purpose
    trust: Trust | None  # in the state files, if they may be used
    until: int | None
    accept_data_loss: bool

    def plan(self, source: LogSource, snapshots: Sequence[Snapshot]) -> Planned:
        """The plan that this log and these snapshots allow. Raises: Incomplete, UntilUnreachable, and what reading raises."""
        until, passed = self.until, {p: list[Passed]() for p in partitions_of(source)}
        candidates = {p: _candidates(source, snapshots, p, of, trust=self.trust, until=until) for p, of in passed.items()}
        taken = {p: [c for c in of if c.snapshot is not None] for p, of in candidates.items()}  # before any is dropped
        _check_reach(source, candidates, passed, until)
        found = _choose(self.files, source, candidates, passed, until=until, accept_data_loss=self.accept_data_loss)
        self._check_moment(source, found)
        if self.purpose.missing_code == "refused":
            _check_code(found)
        _check_end(source, candidates, found)
        parts = [_part(p, candidates[p][0], stream, passed[p], taken[p]) for p, stream in found.streams.items()]
        parted = find_parted({p: stream.line() for p, stream in found.streams.items()})
        if self.purpose.voters == "any":  # else all partitions count, so a multi-partition call must be in all
            parted = _void_here(parted, found)
        names = names_of(parted, source, found.from_block)
        if not self.accept_data_loss:
            check_whole(parted, names)
        parts = [_shortened(part.settled(parted), found.streams[part.partition], self.purpose) for part in parts]
        notes = [str(damage) for damage in (source.damage, found.damage) if damage is not None]
        notes += [call.describe(names.get(call.txn_id, "")) for call in parted]
        plan = replace(_plan_of(source, found, parts, notes, until), open_calls=any(c.lacking and not c.final for c in parted))
        return Planned(plan, lambda: source, found)

    def _check_moment(self, source: LogSource, found: Scan) -> None:
        """Raises: UntilBeyond."""
        if self.until is None:
            return
        check_begin(source, found, self.until)
        if not self.accept_data_loss and not source.provisional:
            check_newest(self.files, self.directory, found, self.until)

    def can(self, source: LogSource, until: int) -> bool:
        """Whether this other moment could be restored."""
        search = replace(self, until=until)
        reach = Reach(self.files, self.directory, source, until)
        for other in (source, *reach.sources()):
            with contextlib.suppress(ReplayError, Corrupt):
                search.plan(other, reach.snapshots)
                return True
        return False


def _void_here(parted: Iterable[PartedCall], found: Scan) -> list[PartedCall]:
    """Those that this log alone shows to be void: of one of several nodes, whatever it has passed it has seen decided."""
    passed = {partition: stream.executed for partition, stream in found.streams.items()}
    return [call for call in parted if call.final and not call.executed and any(passed[p] >= at for p, at in call.held.items())]


def _from_archive(search: _Search, source: LogSource, error: ReplayError | Corrupt) -> Planned:
    """The first of the other logs that reaches. Raises: `error` itself when the live log is damaged, else its kind."""
    reach = Reach(search.files, search.directory, source, search.until)
    for other in reach.sources():
        try:
            return search.plan(other, reach.snapshots)
        except (Incomplete, UntilUnreachable) as failed:
            error = error if isinstance(error, Corrupt) else failed
        except Corrupt as damage:
            reach.note_damage(damage)
        if other.patchwork is not None:
            reach.note_gaps(other.patchwork)
    if isinstance(error, Corrupt):
        raise error
    refused = type(error)(f"{error.args[0]}{reach.missing()}")
    if search.until is not None and (ranges := reach.restorable(partial(search.can, source))):
        refused.hint = f"restorable ranges: {ranges}; restore the named files from a backup to reach other times"
    raise refused from error


def _plan_of(source: LogSource, found: Scan, parts: Sequence[PartitionPlan], notes: Sequence[str], until: int | None) -> Plan:
    return Plan(
        directory=source.directory,
        **source.instance.identity.as_text(),
        verdict=source.verdict,
        from_block=found.from_block,
        last_block=found.last_block,
        until=until,
        row_digests=found.row_digests,
        partitions=tuple(parts),
        notes=tuple(notes),
        archive=tuple(name for name, segment in zip(source.archived, source.segments, strict=False) if _is_read(segment, found)),
        gaps=source.patchwork.accept_gaps(found.from_block, found.last_block) if source.patchwork is not None else (),
    )


def _is_read(segment: SegmentFile, found: Scan) -> bool:
    return found.from_block <= segment.header.first_block <= found.last_block


def _check_reach(
    source: LogSource, candidates: Mapping[int, Sequence[Candidate]], passed: Mapping[int, list[Passed]], until: int | None
) -> None:
    """Before anything is scanned: every partition has a candidate after which the log holds everything."""
    heads = source.checkpoint(source.first_blocks[0]).by_partition
    for partition, of in candidates.items():
        base = heads[partition].last_index if partition in heads else 0
        if all(candidate.position.index < base for candidate in of):
            passed[partition].extend(Passed(c.name or "nothing", _too_old(c.position, base)) for c in of)
            raise _no_source(partition, passed[partition], until)


def _check_end(source: LogSource, candidates: Mapping[int, Sequence[Candidate]], found: Scan) -> None:
    """A log that was cut short holds the skips of all that is applied: none can come after the digest of its batch."""
    for partition, stream in found.streams.items():
        if source.provisional and stream.to_index > max(candidates[partition][0].position.index, stream.executed):
            raise UntilUnreachable(
                f"partition {partition} may have a skip of entry {stream.to_index} after block {source.last_block}"
            )


def _too_old(position: Position, base: int) -> str:
    return f"it is at index {position.index}; the log begins after index {base}"


def _check_code(found: Scan) -> None:
    """Every catalog version that will run exists and matches its hash. Checked before anything is changed."""
    catalogs = found.catalogs
    for partition, stream in sorted(found.streams.items()):
        for version in sorted(stream.catalogs):
            if version not in catalogs:
                raise CatalogMissing(
                    f"partition {partition} ran catalog version {version}, which no catalog record of this log names"
                )
            bundle_of(version, catalogs[version].value)


def _candidates(
    source: LogSource,
    snapshots: Sequence[Snapshot],
    partition: int,
    passed: list[Passed],
    *,
    trust: Trust | None,
    until: int | None,
) -> list[Candidate]:
    """What the partition might start from, best first; what cannot be read goes to `passed`."""
    snapshots = [snapshot for snapshot in snapshots if snapshot.partition == partition]
    # The state file, the snapshots from the newest on, the beginning.
    found: list[Candidate] = []
    if trust is not None:
        position = trust.position(partition)
        if isinstance(position, str):
            passed.append(Passed(STATE_FILE, position))
        else:
            found.append(Candidate("state", state_path(source.directory, partition), position))
    for snapshot in sorted(snapshots, key=lambda s: s.order, reverse=True):
        if snapshot.manifest is None:
            passed.append(Passed(snapshot.name, snapshot.problem))
            continue
        m = snapshot.manifest
        found.append(Candidate("snapshot", snapshot.name, Position(m.index, m.term, m.checksum, m.txn_id), snapshot))
    found.append(Candidate("empty", "", Position()))
    if until is None:
        return found
    for candidate in [c for c in found if c.position.txn_id > until]:
        found.remove(candidate)
        passed.append(Passed(candidate.name, f"it holds transaction {candidate.position.txn_id}, after the requested end"))
    return found


def _choose(
    files: Files,
    source: LogSource,
    candidates: Mapping[int, list[Candidate]],
    passed: Mapping[int, list[Passed]],
    *,
    until: int | None,
    accept_data_loss: bool,
) -> Scan:
    """Scans, and drops candidates that the log disproves, until every partition's first one holds."""
    checks = TimedChecks(files)
    while True:
        indexes = {p: of[0].position.index for p, of in candidates.items()}
        claims = {p: {candidate.position.index for candidate in of} for p, of in candidates.items()}
        found = scan(source, indexes, claims, until=until, accept_data_loss=accept_data_loss)
        # Where the log or its own checks disprove a candidate, the log is scanned again from the next one.
        stands = True
        for partition, of in candidates.items():
            best = of[0]
            why = _disproof(best.position, found.streams[partition])
            why = why or (checks.problem_of(best.snapshot) if best.snapshot is not None else "")
            if not why:
                continue
            passed[partition].append(Passed(best.name or "nothing", why))
            if len(of) == 1:
                raise _no_source(partition, passed[partition], until)
            del of[0]
            stands = False
        if stands:
            found.checked_bytes, found.checked_s = checks.bytes, checks.seconds
            return found


def _disproof(position: Position, stream: ScannedStream) -> str:
    """Why a state at this position is not a prefix of the log; "" when it is one."""
    if position.index < stream.base:
        return _too_old(position, stream.base)
    return _contradiction(position, stream)


def _contradiction(position: Position, stream: ScannedStream) -> str:
    if position.index > stream.last_index:
        return f"it is at index {position.index}, beyond the log's end at {stream.last_index}"
    if position.index > stream.base and stream.seen.get(position.index) != (position.term, position.checksum):
        return f"at index {position.index} it holds a different entry than the log"
    if position.index and position.index == stream.base and position.index not in stream.seen:
        return f"its last entry, index {position.index}, is in blocks that cannot be read"
    if position.index and position.index == stream.base and stream.seen[position.index] != (position.term, position.checksum):
        return f"at index {position.index} it holds a different entry than the log's head states"
    return ""


def _no_source(partition: int, passed: Sequence[Passed], until: int | None) -> ReplayError:
    reasons = "; ".join(f"{p.name or 'empty state'}: {p.why}" for p in passed[:REASONS_MAX])
    reasons += f"; and {len(passed) - REASONS_MAX} more" if len(passed) > REASONS_MAX else ""
    text = f"partition {partition} has no state to start from ({reasons})"
    return Incomplete(text) if until is None else UntilUnreachable(text)


WHY: Final[Mapping[str, str]] = {
    "state": "written by this boot of the machine, and the log holds its last entry",
    "snapshot": "newest intact snapshot whose last entry the log holds",
    "empty": "the log reaches back to the first entry",
}


def _part(
    partition: int, candidate: Candidate, stream: ScannedStream, passed: Iterable[Passed], snapshots: Iterable[Candidate]
) -> PartitionPlan:
    position = candidate.position
    wrong = [s for s in snapshots if s.position.index >= stream.base and _contradiction(s.position, stream)]
    return PartitionPlan(
        partition=partition,
        source=candidate.kind,
        name=candidate.name,
        from_index=position.index,
        from_term=position.term,
        from_checksum=position.checksum,
        to_index=max(stream.to_index, position.index),
        to_term=stream.to_term,
        to_checksum=stream.to_checksum,
        to_calls=stream.to_calls,
        to_txn=max(stream.to_txn, position.txn_id),
        entries=stream.entries,
        calls=stream.calls,
        bytes=stream.bytes,
        why=WHY[candidate.kind],
        procedures=stream.procedures,
        snapshot_bytes=candidate.snapshot.chain_bytes if candidate.snapshot is not None else 0,
        passed=tuple(passed),
        set_aside=tuple(snapshot.name for snapshot in wrong),
        skips=stream.skips,
        voids=tuple(stream.voids),
    )


def _shortened(part: PartitionPlan, stream: ScannedStream, purpose: Purpose) -> PartitionPlan:
    if purpose.leave == "unexecuted":
        end = max(min(max(stream.executed, BOOTSTRAP_INDEX), part.to_index), part.from_index)
    else:
        end = max(stream.proved, stream.last_index - LEFT_MAX, part.from_index)
    if purpose.leave == "nothing" or end >= part.to_index:
        return part
    return replace(part, to_index=end, to_term=0, to_checksum=0)
