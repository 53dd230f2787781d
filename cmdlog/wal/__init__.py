"""The command log: its format, its files, its threads."""

from cmdlog.wal.anchors import Anchors
from cmdlog.wal.ids import Lsn
from cmdlog.wal.instance import Identity, Instance, load_instance
from cmdlog.wal.log import Log
from cmdlog.wal.marks import Source, Sync
from cmdlog.wal.owner import Owner, take_ownership
from cmdlog.wal.reader import LogReader
from cmdlog.wal.repair import CutReport, Recovered
from cmdlog.wal.restart import Verdict

__all__ = [
    "Anchors",
    "CutReport",
    "Identity",
    "Instance",
    "Log",
    "LogReader",
    "Lsn",
    "Owner",
    "Recovered",
    "Source",
    "Sync",
    "Verdict",
    "load_instance",
    "take_ownership",
]
