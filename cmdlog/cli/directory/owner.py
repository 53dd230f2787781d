"""Root that looks at a node's directory does so as the owner of it.

One rule: a file of root in the directory would stop the service, which runs as another user. So before a command opens anything
there, the process becomes the owner for good, with the children that it starts. What root could read, such as a Python below
/root, it still reads: of all its rights it keeps that one (capabilities(7), "Ambient").
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
from pathlib import Path
from typing import Final

from cmdlog.wal.directory.instance import INSTANCE_NAME

ROOT: Final = 0
CAPABILITY_VERSION: Final = 0x20080522  # of capset(2): 64 capabilities, in two words of 32
READ_RIGHTS: Final = (2, 1)  # CAP_DAC_READ_SEARCH; where a container has taken it away, CAP_DAC_OVERRIDE
PR_SET_KEEPCAPS: Final = 8
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_RAISE: Final = 2


def act_as_owner(directory: Path) -> Path:
    """No-op for other users, and where root owns the directory, or it holds no node. Raises: OSError where it is not allowed."""
    if os.geteuid() == ROOT and (directory / INSTANCE_NAME).exists():
        of = directory.stat()
        if of.st_uid != ROOT:
            become(of.st_uid, of.st_gid)
    return directory


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
            libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, right, 0, 0)  # children have it, too
            return


def _groups(user: int, group: int) -> list[int]:
    """Those of the user, who need not have an account here, as in a container."""
    with contextlib.suppress(KeyError):
        return os.getgrouplist(pwd.getpwuid(user).pw_name, group)
    return [group]
