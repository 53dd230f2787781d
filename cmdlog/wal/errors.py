"""Errors of the log, worded so that an operator can act.

One rule: an error says who is at fault (caller, disk, operator), carries the numbers it is about and one hint of what to do.
"""

from __future__ import annotations

from typing import Final

from cmdlog.operator_error import OperatorError

MOVED_ON_HINT: Final = (
    "nothing is damaged: the running node recycles its log faster than this command reads it, and has no archive of it; run it "
    "again, stop the node first, or let it keep an archive (retention_window_s)"
)


class WalError(OperatorError):
    """Root of everything the log raises on purpose."""


class Corrupt(WalError):
    """Bytes that were durable have changed. Never raised for a torn tail."""

    exit_code = 10
    hint = "the directory was not changed; restore it from a backup, or analyse it with `cmdlog log verify`"

    def __init__(
        self,
        what: str,
        *,
        path: str,
        offset: int = 0,
        block: int | None = None,
        partition: int | None = None,
        index: int | None = None,
        txn_id: int | None = None,
    ) -> None:
        self.what, self.path, self.offset = what, path, offset
        self.block, self.partition, self.index, self.txn_id = block, partition, index, txn_id
        named = (("block", block), ("partition", partition), ("index", index), ("transaction", txn_id))
        where = "".join(f", {name} {value}" for name, value in named if value is not None)
        super().__init__(f"corrupt: {what} in {path} at offset {offset}{where}")


class Foreign(WalError):
    """A file of another cluster, node, directory or program."""

    exit_code = 11
    hint = "check that this is the right directory and that no file was copied into it from elsewhere"


class NewerFormat(WalError):
    """A file written by a newer version of the format than this program reads."""

    exit_code = 11
    hint = "use the newer cmdlog that wrote it"


class WrongDirectory(WalError):
    """Not a node directory, or one with essential parts missing."""

    hint = "check the path, its permissions, and that its volume is mounted; nothing was written"


class Unusable(WrongDirectory):
    """A file or folder of the directory cannot be used: its permissions, or what kind of file it is."""

    hint = "check its owner, its permissions, and whether it is a file or a folder"


class LimitReached(WalError):
    """A limit that the operating system sets for this process is too small."""

    hint = "raise the limit, then start again; nothing acknowledged is lost"


class NotEmpty(WrongDirectory):
    """A folder that is to be filled holds something already."""

    hint = "choose an empty or new folder; nothing was written"


class Locked(WalError):
    """Another process owns the directory."""

    exit_code = 12
    hint = "stop that process first, or use another directory"


class DiskFull(WalError):
    """No space (ENOSPC, EDQUOT, EFBIG)."""

    exit_code = 14
    hint = "free space on that volume, then start again; nothing acknowledged is lost"


class FileTooLarge(DiskFull):
    """A file would be larger than RLIMIT_FSIZE lets this process write (EFBIG)."""

    hint = "raise the limit (`ulimit -f`), then start again; nothing acknowledged is lost"


class WriteFailed(WalError):
    """A write or sync that the operating system refused or cut short. Never retried on the same file."""

    exit_code = 15
    hint = "the disk or its file system failed; check the kernel log, then restart; the log is read again from disk"


class ShortWrite(WriteFailed):
    """The operating system took fewer bytes than it was given."""


class Wedged(WalError):
    """The log refuses all writes since an earlier write or sync failed."""

    exit_code = 15
    hint = "restart the process; the log is read again from disk"


class LogFull(WalError):
    """No segment is free. Reads continue; writes wait for truncation."""

    hint = "wait for a snapshot to free a segment, take one now, or give the log more segments"


class RecordsTooLarge(WalError):
    """The caller's records do not fit the format's limits."""

    kind = "TooLarge"
