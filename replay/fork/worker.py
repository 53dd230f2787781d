"""A process that runs other code: `replay.fork.run` starts it, with its order as a line of JSON on standard input.

One rule: it does what the order says and reports in JSON lines on standard output. SIGTERM, or the end of its parent, ends it at
any moment: SQLite rolls an unfinished transaction back.
"""

from __future__ import annotations

import sys
from typing import Any

from cmdlog.garbage_collection import settle_garbage_collection
from cmdlog.wal.files import RealFiles
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from replay.fork.bind_calls import CallBinding
from replay.fork.rerun import ForkPlace, OtherCode
from replay.fork.run import run_calls
from replay.log.archive_reach import source_from
from replay.log.scan import ScannedStream
from replay.recover.worker import cell_writer, serve_order, write_message


def run(order: dict[str, Any]) -> None:
    """Runs the calls after the fork point."""
    bundle = Bundle.from_bytes(str(order["bundle"]).encode())
    db = load_bundle(bundle)
    fitting = CallBinding(db, bundle.hash, {int(v): value for v, value in order["catalogs"].items()}, order["slots"])
    source = source_from(RealFiles(), order["directory"], order["from_block"])
    settle_garbage_collection()
    places = {int(place["partition"]): ForkPlace(**place) for place in order["places"]}
    streams = {int(p): ScannedStream.from_json(value) for p, value in order["streams"].items()}
    results, tally = run_calls(
        order["target"],
        places,
        streams,
        source.read(from_block=order["from_block"]),
        OtherCode(db, fitting, order["missing"]),
        progress=lambda partition, calls: write_message({"progress": [partition, calls]}),
        report_running=cell_writer(order["cell"]),
        careful=order["careful"],
    )
    write_message({"done": [result.to_json() for result in results], "tally": tally.kept()})


def main() -> int:
    """Entry point of the process."""
    return serve_order(run)


if __name__ == "__main__":
    sys.exit(main())
