"""The invocations of one or several nodes' logs as one history, in the order of their transaction ids.

One rule: only what counts. The authoritative log of each partition is read, superseded entries and skipped calls are not in it,
and where completeness is not proved nothing is listed unless the loss is accepted.

Archived segments that end where a live log begins are part of it. Where others lie before those, something is missing in between:
the history begins after it only for a caller who wants nothing from there, or accepts the loss. Which logs are read decides
`replay.history.serving_logs`; the parts that they give are merged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import NO_KEY
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX
from replay.errors import Incomplete
from replay.history.merge_stream import Invocation
from replay.history.serving_logs import HistoryReading, time_text
from replay.log.collect_evidence import gather
from replay.log.source import LogSource, fold_end
from replay.plan.authority import decide
from replay.plan.cluster_planner import unproved


@dataclass(slots=True)
class CallHistory:
    """Calls, in order. `notes` describes what they omit: known before the first call, except for what `empty` says."""

    calls: Iterator[dict[str, Any]]
    partitions: Sequence[int]
    procedures: Sequence[str]  # of all versions of the code; (): not known
    notes: list[str] = field(default_factory=list)
    passed: int = 0  # calls before the wanted range
    met: int = 0  # the newest TxnId that was met, wanted or not

    def empty(self) -> str:
        """Explains why no call is in the range."""
        if not self.met:
            return "the logs at hand hold no call"
        if self.passed:
            return f"no call is in that range: the last one at hand is transaction {self.met} ({time_text(self.met)})"
        return f"no call is in that range: the first one at hand is transaction {self.met} ({time_text(self.met)})"


def history(
    files: Files, directories: Sequence[str], *, first: int = 0, until: int | None = None, accept_data_loss: bool = False
) -> CallHistory:
    """Every invocation with first <= TxnId <= until that logs and archives still hold, ascending; bounded memory.

    Raises: what `decide` refuses; Incomplete; HistoryDamaged; and what reading the logs raises, also while the calls are read.
    """
    evidence = [gather(files, directory) for directory in directories]
    verdict = decide(evidence, accept_data_loss=accept_data_loss)
    reading = HistoryReading(files, evidence, verdict, first=first, anyway=accept_data_loss)
    if not accept_data_loss:
        reading.check_undamaged()
        if open_questions := unproved(verdict):
            raise Incomplete.of(open_questions)
    parts = reading.parts()
    names = _names(list(reading.sources.values()))
    partitions = [group for group in sorted(verdict.groups) if group < PARTITIONS_MAX]
    told = CallHistory(iter(()), partitions, sorted({name for of in names.values() for name, _ in of.values()}), reading.notes)
    told.calls = _filter_calls(told, _together(parts), names, first, until)
    return told


def _together(parts: Sequence[Iterator[Invocation]]) -> Iterator[Invocation]:
    """Several histories as one: there are as few as logs, and stretches of damaged ones."""
    heads = [(part, call) for part in parts for call in (next(part, None),) if call is not None]
    while len(heads) > 1:
        at = min(range(len(heads)), key=lambda n: (heads[n][1].txn_id, heads[n][1].partition))
        part, call = heads[at]
        yield call
        following = next(part, None)
        if following is None:
            del heads[at]
        else:
            heads[at] = part, following
    for part, call in heads:
        yield call
        yield from part


def _filter_calls(
    told: CallHistory,
    calls: Iterator[Invocation],
    names: Mapping[int, Mapping[int, tuple[str, Sequence[str]]]],
    first: int,
    until: int | None,
) -> Iterator[dict[str, Any]]:
    # A call is after the range, before it, or in it.
    for call in calls:
        told.met = call.txn_id
        if until is not None and call.txn_id > until:
            return
        if call.txn_id < first:
            told.passed += 1
            continue
        procedure, parameters = names.get(call.catalog, {}).get(call.procedure, (f"number {call.procedure}", ()))
        named = len(parameters) == len(call.params)
        yield {
            "txn_id": str(call.txn_id),
            "time": time_text(call.txn_id),
            "partition": call.partition,
            "index": call.entry,
            "position": call.position,
            "procedure": procedure,
            "catalog": call.catalog,
            "key": call.key.hex() if call.key not in (None, NO_KEY) else None,
            "params": dict(zip(parameters, call.params, strict=True)) if named else call.params,
        }


def _names(sources: Sequence[LogSource]) -> dict[int, Mapping[int, tuple[str, Sequence[str]]]]:
    """Catalog version -> number of a procedure -> its name, and those of its parameters."""
    found: dict[int, Mapping[int, tuple[str, Sequence[str]]]] = {}
    for source in sources:
        archived = source.first_blocks[1 : len(source.archived) + 1]  # the next head names what a segment has stated
        for groups in (fold_end(source), *map(source.checkpoint, archived)):
            for version, catalog in groups.state(CLUSTER_GROUP).catalogs.items():
                stated = catalog.value.get("procedures", ())
                found.setdefault(
                    version,
                    {
                        number: (str(one["name"]), [str(name) for name in one.get("parameters", ())])
                        for number, one in enumerate(stated)
                    },
                )
    return found
