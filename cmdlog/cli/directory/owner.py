"""Root that looks at a node's directory does so as the owner of it.

One rule: a file of root in the directory would stop the service, which runs as another user. So before a command opens anything
there, the process becomes the owner for good, with the children that it starts. What root could read, such as a Python below
/root, it still reads: of all its rights it keeps that one (capabilities(7), "Ambient").

A new directory may be made where only root may write. That is given to the owner when it is done.

Who may write a directory decides what a replay of its log executes. If that is another user, the command prints a warning.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from cmdlog.cli.output import out
from cmdlog.wal.directory.instance import INSTANCE_NAME

RUNS_CODE: Final = "Runs the application's code from the log of DIR, as the user of the command: use it on a DIR that you trust."
"""Part of the help of each command that replays calls or loads declarations."""
ROOT: Final = 0
CAPABILITY_VERSION: Final = 0x20080522  # of capset(2): 64 capabilities, in two words of 32
READ_RIGHTS: Final = (2, 1)  # CAP_DAC_READ_SEARCH; where a container has taken it away, CAP_DAC_OVERRIDE
PR_SET_KEEPCAPS: Final = 8
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_RAISE: Final = 2


def act_as_owner(directory: Path) -> Path:
    """No-op for other users, and where root owns the directory, or it holds no node. Raises: OSError where it is not allowed."""
    if (of := _other_owner(directory)) is not None:
        become(of.st_uid, of.st_gid)
    return directory


@contextlib.contextmanager
def made_for_owner(directory: Path, out: Path | None) -> Iterator[None]:
    """What root makes in `out` meanwhile, out of this node's directory, is its owner's afterwards. No-op as for `act_as_owner`.

    After a failure that holds for a new folder only: another one may be what it was refused for.
    """
    of = _other_owner(directory) if out is not None else None
    if of is None or out is None:
        yield
        return
    is_new = not out.exists() or not any(out.iterdir())
    try:
        yield
    except BaseException:
        if is_new:
            _give(out, of)
        raise
    _give(out, of)


def warn_of_code(*directories: Path) -> None:
    """Before a command runs the code in these directories' logs: a note for each of another user. After `act_as_owner`, if any.

    None for those of root, who may change what this user runs anyway.
    """
    for directory in directories:
        with contextlib.suppress(OSError):  # what is wrong with it is found when it is opened
            owner = directory.stat().st_uid
            if owner not in (os.geteuid(), ROOT):
                out.print_note(
                    f"{directory} belongs to {_name_of(owner)}, and the code in its log runs as {_name_of(os.geteuid())}"
                )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _other_owner(directory: Path) -> os.stat_result | None:
    """Of a node's directory that is not root's, for root."""
    if os.geteuid() != ROOT or not (directory / INSTANCE_NAME).exists():
        return None
    of = directory.stat()
    return of if of.st_uid != ROOT else None


def _give(out: Path, of: os.stat_result) -> None:
    """Root's files below, the folder itself last: before that, its owner cannot put anything else in the place of one."""
    for _, _, names, at in os.fwalk(out, topdown=False) if out.is_dir() else ():
        for name in names:
            if os.stat(name, dir_fd=at, follow_symlinks=False).st_uid == ROOT:
                os.chown(name, of.st_uid, of.st_gid, dir_fd=at, follow_symlinks=False)
        if os.fstat(at).st_uid == ROOT:
            os.chown(at, of.st_uid, of.st_gid)


def become(user: int, group: int) -> None:
    """This process, of root, is that user's from now on, and reads what root reads. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups(_groups(user, group))
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    for right in READ_RIGHTS:
        header, word = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), 1 << right
        rights = (ctypes.c_uint32 * 6)(word, word, word, 0, 0, 0)  # effective, permitted, inheritable; then the higher ones
        if libc.capset(header, rights) == 0:
            libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, right, 0, 0)  # children inherit it
            return


def _groups(user: int, group: int) -> list[int]:
    """Those of the user, who need not have an account here, as in a container."""
    with contextlib.suppress(KeyError):
        return os.getgrouplist(pwd.getpwuid(user).pw_name, group)
    return [group]


DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Node directory.", callback=act_as_owner)]
