"""What was called: the invocations of one or several nodes' logs as one history, in the order of their transaction ids.

One rule: only what counts. The authoritative log of each partition is read, superseded entries and calls that were taken out are
not in it, and where completeness is not proved nothing is told unless the loss is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cmdlog.wal.files import Files
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX, txn_millis
from replay.authority import Verdict, decide
from replay.cursors import ChosenLog
from replay.errors import Incomplete
from replay.gather import gather
from replay.joint import fold_end, unproved
from replay.merge import Merge, streams_of
from replay.source import LogSource, open_source


def history(
    files: Files, directories: Sequence[str], *, first: int = 0, until: int | None = None, accept_data_loss: bool = False
) -> Iterator[dict[str, Any]]:
    """Every invocation with first <= TxnId <= until that the logs still hold, ascending; bounded memory.

    Raises: before the first one, what `decide` refuses, Incomplete, and what reading the logs raises.
    """
    verdict = decide([gather(files, directory) for directory in directories], accept_data_loss=accept_data_loss)
    if not accept_data_loss and (open_questions := unproved(verdict)):
        raise Incomplete("; ".join(open_questions))
    sources = [open_source(files, directory) for directory in dict.fromkeys(of.chosen for of in verdict.groups.values())]
    logs = [ChosenLog(source.directory, source, source.first_blocks[0]) for source in sources]
    names = _names(sources)
    for call in Merge(logs, streams_of(logs, _wanted(sources, verdict))).invocations():
        if until is not None and call.txn_id > until:
            return
        if call.txn_id < first:
            continue
        procedure, parameters = names.get(call.catalog, {}).get(call.procedure, (f"number {call.procedure}", ()))
        named = len(parameters) == len(call.params)
        yield {
            "txn_id": str(call.txn_id),
            "time": datetime.fromtimestamp(txn_millis(call.txn_id) / 1000, UTC).isoformat(timespec="milliseconds"),
            "partition": call.partition,
            "index": call.entry,
            "position": call.position,
            "procedure": procedure,
            "catalog": call.catalog,
            "params": dict(zip(parameters, call.params, strict=True)) if named else call.params,
        }


def _wanted(sources: Sequence[LogSource], verdict: Verdict) -> dict[int, tuple[int, int, int]]:
    """Partition -> number of its log, index that it begins behind, last index."""
    numbers = {source.directory: number for number, source in enumerate(sources)}
    heads = {source.directory: source.checkpoint(source.first_blocks[0]).by_partition for source in sources}
    wanted = {}
    for partition, of in verdict.groups.items():
        if partition < PARTITIONS_MAX:
            head = heads[of.chosen].get(partition)
            wanted[partition] = (numbers[of.chosen], head.last_index if head else 0, of.last_index)
    return wanted


def _names(sources: Sequence[LogSource]) -> dict[int, Mapping[int, tuple[str, Sequence[str]]]]:
    """Catalog version -> number of a procedure -> its name, and those of its parameters."""
    found: dict[int, Mapping[int, tuple[str, Sequence[str]]]] = {}
    for source in sources:
        for version, catalog in fold_end(source).state(CLUSTER_GROUP).catalogs.items():
            stated = catalog.value.get("procedures", ())
            found[version] = {
                number: (str(one["name"]), [str(name) for name in one.get("parameters", ())]) for number, one in enumerate(stated)
            }
    return found
