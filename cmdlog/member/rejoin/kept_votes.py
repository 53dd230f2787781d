"""The votes of a directory that is given up, as far as they can still be read.

One rule: a vote is never forgotten while a file shows it. The cluster does not rely on that, since the copied node begins a new
life that votes only after it was admitted again; but what costs nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from cmdlog.member.rejoin.rejoin_record import Vote, Votes
from cmdlog.wal.directory.instance import LOG_FOLDER
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.hard_state import read_hardstate
from replay.log.source import fold_end, open_source

NO_VOTE: Final[Vote] = (0, None)


def read_votes(files: Files, directory: str) -> Votes:
    """Term and vote of every group, from the hard state file and from the log. {}: neither can be read."""
    noted, logged = _noted_votes(files, directory), _logged_votes(files, directory)
    return {group: newer_vote(noted.get(group, NO_VOTE), logged.get(group, NO_VOTE)) for group in sorted({*noted, *logged})}


def newer_vote(known: Vote, other: Vote) -> Vote:
    """The higher term holds, with its vote; in the same term a vote holds against none."""
    return other if other[0] > known[0] or (other[0] == known[0] and known[1] is None) else known


def _noted_votes(files: Files, directory: str) -> Votes:
    with contextlib.suppress(WalError, OSError, ValueError, KeyError):
        return dict(read_hardstate(files, os.path.join(directory, LOG_FOLDER))[0].votes)
    return {}


def _logged_votes(files: Files, directory: str) -> Votes:
    with contextlib.suppress(WalError, OSError, BadRecord):
        return dict(fold_end(open_source(files, directory, accept_data_loss=True)).votes)
    return {}
