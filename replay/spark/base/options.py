"""The options of `format("cmdlog")`: camelCase, case-insensitive, each checked, an unknown one refused with the nearest name.

One rule: text in, values out; nothing is read from disk here. Bounds are inclusive on both sides, like `--until`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import orjson

from cmdlog.wal.ids import MILLIS_SHIFT, PARTITIONS_MAX
from replay.errors import ReplayError

TXN_MAX: Final = (1 << 63) - 1
TASKS_MAX: Final = 10_000  # that `minPartitions` may ask for
ParamsFormat = Literal["object", "array", "binary"]
PARAMS_FORMATS: Final[tuple[ParamsFormat, ...]] = ("object", "array", "binary")
CALLS: Final = "calls"
FAULTS: Final = "faults"
TABLES: Final = (CALLS, "segments", "snapshots", "gaps", FAULTS)
STATE: Final = "state."  # before the name of a table of the application
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
LATEST_POINT: Final = "latestPoint"


class BadOption(ReplayError):
    """An unknown option, or a value that does not fit."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A TxnId per partition; `default` for those that are not named. None: as far as there is anything."""

    default: int | None = None
    by_partition: Mapping[int, int | None] | None = None

    def of(self, partition: int) -> int | None:
        if self.by_partition is not None and partition in self.by_partition:
            return self.by_partition[partition]
        return self.default


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read."""

    paths: tuple[str, ...]
    table: str = CALLS
    starting: Bound = Bound()
    ending: Bound = Bound()
    from_latest: bool = False  # only what comes after the start of a stream
    procedures: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    fail_on_data_loss: bool = True
    dedupe: bool = True
    include_metadata: bool = False
    min_partitions: int | None = None  # None: as many tasks as Spark runs side by side
    params_format: ParamsFormat = "object"
    max_txns_per_trigger: int | None = None
    as_of: int | Literal["latestPoint"] | None = None  # of a state: its last transaction; None: the end

    def check_batch(self) -> None:
        """Raises: BadOption for what only a stream can do."""
        if self.from_latest:
            raise BadOption(
                "startingTxn=latest is for streams: a batch read that begins after the last transaction has no rows; "
                "write earliest, a transaction id, or startingTimestamp"
            )
        if self.max_txns_per_trigger is not None:
            raise BadOption("maxTxnsPerTrigger is for streams: a batch read has one trigger, which reads the whole range")

    @property
    def state_table(self) -> str | None:
        """The application's table whose rows are wanted; None: another table."""
        return self.table.removeprefix(STATE) if self.table.startswith(STATE) else None


NAMES: Final = (  # SPARK.md says what each of them means
    "path",
    "paths",
    "table",
    "startingTxn",
    "endingTxn",
    "startingTimestamp",
    "endingTimestamp",
    "procedures",
    "partitions",
    "failOnDataLoss",
    "dedupe",
    "includeMetadata",
    "minPartitions",
    "paramsFormat",
    "maxTxnsPerTrigger",
    "asOfTxn",
    "asOfTimestamp",
)
_INSTEAD: Final = {"asOfTxn": "endingTxn", "asOfTimestamp": "endingTimestamp"}
_OF_CALLS: Final = {  # option -> its counterpart of a state
    **dict.fromkeys(("startingTxn", "startingTimestamp"), "a state has everything from the first transaction on"),
    "endingTxn": "write asOfTxn",
    "endingTimestamp": "write asOfTimestamp",
    "procedures": "a state is the result of all procedures",
    "dedupe": "a state holds every call once",
    "minPartitions": "there is one task for each partition of the log",
    "paramsFormat": "rows of a state have the columns of their table",
    "maxTxnsPerTrigger": "a state cannot be streamed",
}
_OF_CALLS_ALONE: Final = {  # option -> why a table about the log has no use for it
    **dict.fromkeys(("startingTxn", "endingTxn", "startingTimestamp", "endingTimestamp"), "it covers the whole log"),
    **dict.fromkeys(("procedures", "dedupe", "paramsFormat"), "it has no rows of calls"),
    "failOnDataLoss": "it lists what is wrong, and never fails because of it",
    "includeMetadata": "its columns are always the same",
    "minPartitions": "it is small, and read in one task",
    "maxTxnsPerTrigger": "it cannot be streamed",
}
_OTHER_END: Final = {  # (option, word) -> why it is refused there
    ("startingTxn", LATEST): "a partition alone cannot start there; a stream as a whole can, with startingTxn=latest",
    ("endingTxn", EARLIEST): "a read that ends before it begins has no rows",
}
_TIME: Final = "2026-01-31T12:00:00Z"
_BY_LOWER: Final = {name.lower(): name for name in NAMES}


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Raises: BadOption, naming the option and what it may be."""
    found = {_name_of(name): value for name, value in given.items()}
    if empty := next((name for name, value in found.items() if not value.strip()), None):
        raise BadOption(f"{empty} is empty; omit the option for its default")
    text = found.get
    table = _table(text("table"))
    check_fit(table, found)
    starting, from_latest = _starting(text("startingTxn"), text("startingTimestamp"))
    ending = _ending(text("endingTxn"), text("endingTimestamp"))
    _check_order(found, starting, ending)
    return ReadOptions(
        paths=_paths(text("path"), text("paths")),
        table=table,
        starting=starting,
        ending=ending,
        from_latest=from_latest,
        procedures=_procedures(text("procedures")),
        partitions=_partitions(text("partitions")),
        fail_on_data_loss=_bool("failOnDataLoss", text("failOnDataLoss"), True),
        dedupe=_bool("dedupe", text("dedupe"), True),
        include_metadata=_bool("includeMetadata", text("includeMetadata"), False),
        min_partitions=_number("minPartitions", text("minPartitions"), TASKS_MAX),
        params_format=_params_format(text("paramsFormat")),
        max_txns_per_trigger=_number("maxTxnsPerTrigger", text("maxTxnsPerTrigger"), TXN_MAX),
        as_of=_as_of(text("asOfTxn"), text("asOfTimestamp")),
    )


def names_paths(given: Mapping[str, str]) -> bool:
    """Whether these options name what is read."""
    return not {name.lower() for name in given}.isdisjoint(("path", "paths"))


def _table(text: str | None) -> str:
    if text is None:
        return CALLS
    if text.lower().startswith(STATE) and len(text) > len(STATE):
        return STATE + text[len(STATE) :]
    if text.lower() in TABLES:
        return text.lower()
    near = difflib.get_close_matches(text.lower(), TABLES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"a table of the application is {STATE}<name>"
    raise BadOption(f"table is one of {', '.join(TABLES)}, or {STATE}<name>, not {text!r}; {hint}")


def check_fit(table: str, given: Collection[str]) -> None:
    """Raises: BadOption for one that has no meaning for this table."""
    of_state = table.startswith(STATE)
    for name in given:
        if of_state and name in _OF_CALLS:
            raise BadOption(f"the table {table} has no option {name}: {_OF_CALLS[name]}")
        if not of_state and name in _INSTEAD:
            instead = f"write {_INSTEAD[name]}" if table == CALLS else "it is read as it is now"
            raise BadOption(f"{name} is an option of the tables {STATE}<name>, not of {table}: {instead}")
        if not of_state and table != CALLS and name in _OF_CALLS_ALONE:
            raise BadOption(f"the table {table} has no option {name}: {_OF_CALLS_ALONE[name]}")
    if table == FAULTS and "partitions" in given:
        raise BadOption(f"the table {table} has no option partitions: damage is in files, which hold every partition")


def _as_of(txn: str | None, timestamp: str | None) -> int | Literal["latestPoint"] | None:
    if txn is not None and timestamp is not None:
        raise BadOption("asOfTxn and asOfTimestamp exclude each other")
    if timestamp is not None:
        return _moment("asOfTimestamp", timestamp)
    if txn is not None and txn.strip().lower() == LATEST_POINT.lower():
        return "latestPoint"
    text = "latest" if txn is None else txn.strip()
    if text.lower() != "latest" and (not text.isdecimal() or int(text) > TXN_MAX):
        raise BadOption(f"asOfTxn is a transaction id, latest or {LATEST_POINT}; not {text!r}")
    return None if text.lower() == "latest" else int(text)


def _name_of(name: str) -> str:
    known = _BY_LOWER.get(name.lower())
    if known is not None:
        return known
    near = difflib.get_close_matches(name.lower(), _BY_LOWER, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_LOWER[near[0]]}?" if near else f"there are {', '.join(NAMES)}"
    raise BadOption(f"cmdlog has no option {name}; {hint}")


def _paths(path: str | None, paths: str | None) -> tuple[str, ...]:
    found = [path] if path else []
    if paths:
        listed = _json("paths", paths)
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise BadOption(f"paths must be a JSON array of strings, not {paths}")
        found += listed
    if not found:
        raise BadOption("which node directories? Give them to load(), or as the option path")
    return tuple(dict.fromkeys(found))


def _starting(txn: str | None, timestamp: str | None) -> tuple[Bound, bool]:
    if txn is not None and timestamp is not None:
        raise BadOption("startingTxn and startingTimestamp exclude each other")
    if timestamp is not None:
        return Bound(_moment("startingTimestamp", timestamp) >> MILLIS_SHIFT << MILLIS_SHIFT), False
    if txn is not None and txn.strip().lower() == LATEST:
        return Bound(), True
    return _bound("startingTxn", txn, EARLIEST), False


def _ending(txn: str | None, timestamp: str | None) -> Bound:
    if txn is not None and timestamp is not None:
        raise BadOption("endingTxn and endingTimestamp exclude each other")
    if timestamp is not None:
        return Bound(_moment("endingTimestamp", timestamp))
    return _bound("endingTxn", txn, LATEST)


def _check_order(given: Mapping[str, str], starting: Bound, ending: Bound) -> None:
    """Raises: BadOption for a range that ends before it begins: it would silently have no rows."""
    first = "startingTimestamp" if "startingTimestamp" in given else "startingTxn"
    last = "endingTimestamp" if "endingTimestamp" in given else "endingTxn"
    for partition in (None, *sorted({*(starting.by_partition or ()), *(ending.by_partition or ())})):
        low, high = (bound.default if partition is None else bound.of(partition) for bound in (starting, ending))
        if low is not None and high is not None and low > high:
            where = "" if partition is None else f" of partition {partition}"
            raise BadOption(
                f"{first} {given[first]} is after {last} {given[last]}{where}: no transaction is in that range; swap them"
            )


def _moment(name: str, text: str) -> int:
    """The last TxnId of that millisecond: RFC 3339, or milliseconds since 1970 like other Spark sources."""
    if text.isdecimal():
        return (min(int(text), TXN_MAX >> MILLIS_SHIFT) + 1 << MILLIS_SHIFT) - 1
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(f"{name} is a time such as {_TIME}, or milliseconds since 1970; not {text!r}") from None
    if moment.tzinfo is None:
        raise BadOption(f"{name}: {text!r} has no time zone; write {_TIME}")
    from replay.plan.until import parse_until  # noqa: PLC0415 - brings the whole replay, for those who say a time

    return min(parse_until(text), TXN_MAX)


def _bound(name: str, text: str | None, open_end: str) -> Bound:
    text = open_end if text is None else text.strip()
    if not text.startswith("{"):
        return Bound(_txn(name, text, open_end))
    value = _json(name, text)
    by_partition = {_partition(name, key): _txn(name, str(txn), open_end) for key, txn in value.items()}
    return Bound(None, by_partition)


def _txn(name: str, text: str, open_end: str) -> int | None:
    if text.lower() == open_end:
        return None
    if not text.isdecimal() or int(text) > TXN_MAX:
        other = _OTHER_END.get((name, text.lower()), "")
        forms = f'a transaction id, {open_end}, or JSON such as {{"0": 123, "1": "{open_end}"}}'
        raise BadOption(f"{name} is {forms}; not {text!r}{other and f': {other}'}")
    return int(text)


def _procedures(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    names = _json("procedures", text) if text.lstrip().startswith("[") else text.split(",")
    found = frozenset(str(name).strip() for name in names) - {""}
    if not found:
        raise BadOption("procedures is empty; omit the option to read all")
    return found


def _partitions(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    return frozenset(_partition("partitions", part.strip()) for part in text.strip().strip("[]").split(","))


def _partition(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) >= PARTITIONS_MAX:
        raise BadOption(f"{name}: {text!r} is not a partition; partitions are numbers from 0 to {PARTITIONS_MAX - 1}")
    return int(text)


def _bool(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _number(name: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise BadOption(f"{name} is a number from 1 to {most}, not {text!r}")
    return int(text)


def _params_format(text: str | None) -> ParamsFormat:
    for one in PARAMS_FORMATS:
        if text is None or text.lower() == one:
            return one
    raise BadOption(f"paramsFormat is one of {', '.join(PARAMS_FORMATS)}, not {text!r}")


def _json(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadOption(f"{name} is not JSON: {error}") from error
