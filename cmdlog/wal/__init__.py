"""The command log: its format, its files, its threads."""

from cmdlog.wal.directory.instance import Identity, Instance, load_instance
from cmdlog.wal.directory.lock import DirectoryLock, take_ownership
from cmdlog.wal.ids import Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.opening.repair import CutReport, Recovered
from cmdlog.wal.opening.restart import RestartVerdict
from cmdlog.wal.reader import LogReader
from cmdlog.wal.writing.anchors import Anchors
from cmdlog.wal.writing.watermarks import RecordSource, Sync

__all__ = [
    "Anchors",
    "CutReport",
    "DirectoryLock",
    "Identity",
    "Instance",
    "Log",
    "LogReader",
    "Lsn",
    "RecordSource",
    "Recovered",
    "RestartVerdict",
    "Sync",
    "load_instance",
    "take_ownership",
]
