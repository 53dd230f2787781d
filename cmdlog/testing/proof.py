"""The proof that what a test did replays."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Final

from cmdlog.node.embedded.embedded import Embedded
from cmdlog.wal.files import RealFiles
from procedures.execution.hash_seed import PINNED, is_pinned
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from replay.state.trust import STATE_FOLDER
from snapshot.table_digest import TableDigest, open_image, table_digests

OTHER_SEED: Final = "1"  # of a replay, where this process has the pinned one


def assert_replays(database: Embedded) -> None:
    """Closes the database and rebuilds its state from its log, in another process under another hash seed; then compares.

    The log is replayed from the first call on, or from the newest snapshot if one was taken. The directory stays as it is.
    Raises: Divergence, naming the first call whose result or rows differ; AssertionError, naming the tables that do; BundleError,
    when the procedures are in no module.
    """
    directory = database.node.directory
    database.node.sequencer.log_feed.flush_notes()  # the last calls' digests: an idle node logs them a moment later
    database.close()
    lived = _digests(Path(directory))
    files = RealFiles()
    with tempfile.TemporaryDirectory(prefix="cmdlog-replay-") as folder:
        plan = make_plan(files, directory, PAST)
        rebuild(plan, files, folder, workers=1, hash_seed=OTHER_SEED if is_pinned() else PINNED)
        replayed = _digests(Path(folder))
    differing = sorted(name for name in lived.keys() | replayed.keys() if lived.get(name) != replayed.get(name))
    if differing:
        raise AssertionError(f"the replay differs from the live run in {', '.join(differing)}")


def _digests(directory: Path) -> dict[str, TableDigest]:
    """Every table of every partition, as `partition file: table`."""
    found: dict[str, TableDigest] = {}
    for path in sorted((directory / STATE_FOLDER).glob("p*.sqlite")):
        with contextlib.closing(open_image(path)) as image:
            found |= {f"{path.stem}: {name}": digest for name, digest in table_digests(image).items()}
    return found
