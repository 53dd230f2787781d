"""Where a node last ran: a copy of its directory is refused, not started as a second node under one identity.

One rule: a node starts only in the files in which it last ran. The hard state names the instance file by what a copy cannot take
along: the moment at which the file system made it, and its inode; and the machine.

    moved, renamed, mounted elsewhere (bind mount, container)   the same file: it starts
    copied, restored from a backup, on another machine          refused; `adopt`, or a recovery to another directory

The birth decides where it is known on both sides, since some file systems give other inode numbers after every mount. Device
numbers are not compared: they change with every boot. The machine is compared where both sides know theirs; many containers have
no /etc/machine-id.

`adopt` gives the directory a new incarnation. The instance file lists the earlier ones, whose files stay valid here
(`Identity.owns`), so should the original ever run again, the two are different nodes to everybody who looks at incarnations.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace

from cmdlog.wal.directory.instance import INSTANCE_NAME, LOG_FOLDER, Instance, load_instance, write_instance
from cmdlog.wal.directory.lock import take_node
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.hard_state import HardStateFile, HardStateValues, open_hardstate
from cmdlog.wal.opening.survey import identity_text


class LinkedNode(WalError):
    """The directory shares its files with another one through hard links."""

    exit_code = 11
    hint = "copy the files themselves (`cp -a`, not `cp -al`), or delete the directory that links to them; nothing was changed"


class CopiedNode(WalError):
    """The directory is not the one in which the node last ran."""

    exit_code = 11

    def __init__(self, message: str, directory: str) -> None:
        path = shlex.quote(directory)
        hint = (
            f"if the original will never run again (lost disk, restored backup, moved volume): `cmdlog adopt {path}`; "
            f"to keep both: `cmdlog recover {path} --to OUT` makes another incarnation, `cmdlog fork` a cluster of its own"
        )
        super().__init__(message, hint=hint)


@dataclass(frozen=True, slots=True)
class Home:
    """What distinguishes a directory from its copies; 0 and "" where it is unknown."""

    inode: int  # of the instance file
    birth_ns: int  # of the instance file, since 1970
    machine: str

    @classmethod
    def of(cls, files: Files, directory: str) -> Home:
        return cls(*files.identify(os.path.join(directory, INSTANCE_NAME)), files.machine_id())

    def doubt(self, found: Home) -> str:
        """Why the directory that was found is another one than this; "" when nothing says so."""
        if self.birth_ns and found.birth_ns:
            if self.birth_ns != found.birth_ns:
                return "its files were created by a copy or a restore"
        elif self.inode and found.inode and self.inode != found.inode:
            return "its files are not the ones that the node last ran on"
        if self.machine and found.machine and self.machine != found.machine:
            return "the node last ran on another machine"
        return ""

    def renewed(self, found: Home) -> Home:
        """What is recorded from now on: what is known stays known."""
        return Home(found.inode or self.inode, found.birth_ns or self.birth_ns, found.machine or self.machine)


def check_home(files: Files, directory: str, hard: HardStateValues) -> None:
    """Raises: LinkedNode, CopiedNode when the hard state names another directory than this."""
    instance = os.path.join(directory, INSTANCE_NAME)
    if (links := files.links(instance)) > 1:
        raise LinkedNode(f"{directory} is a hard-link copy, or has one: {instance} has {links} names")
    if hard.home is not None and (why := Home(*hard.home).doubt(Home.of(files, directory))):
        raise CopiedNode(f"{directory} is a copy of a node's directory, or was moved: {why}", directory)


def record_home(files: Files, directory: str, hard: HardStateFile) -> None:
    """The node runs here from now on; durable on return. Writes only what is new."""
    found, state = Home.of(files, directory), hard.state
    known = Home(*state.home).renewed(found) if state.home is not None else found
    home = (known.inode, known.birth_ns, known.machine)
    if any(home) and home != state.home:
        state.home = home
        hard.save()


def record_first_home(files: Files, directory: str) -> None:
    """`record_home` of a new node: a copy of a directory that was never opened is found, too."""
    hard = open_hardstate(files, os.path.join(directory, LOG_FOLDER))
    try:
        record_home(files, directory, hard)
    finally:
        hard.close()


def adopt(files: Files, directory: str) -> Instance | None:
    """Makes a copy the node's directory from now on, in a new incarnation; None when it is that already. Durable on return.

    A crash between the two writes leaves a directory that is still refused, and can be adopted again.
    Raises: LinkedNode, Locked, WrongDirectory, Corrupt, NewerFormat, DiskFull, WriteFailed.
    """
    owner = take_node(files, directory)
    try:
        instance = load_instance(files, directory)
        hard = open_hardstate(files, os.path.join(directory, LOG_FOLDER))
        try:
            try:
                check_home(files, directory, hard.state)
            except CopiedNode:
                made = replace(instance, identity=instance.identity.succeeded())
                write_instance(files, directory, made)
                hard.state.identity, hard.state.home = identity_text(made.identity), None
                record_home(files, directory, hard)
                return made
        finally:
            hard.close()
    finally:
        owner.close()
    return None
