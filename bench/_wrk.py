"""wrk, a load generator in C, sending requests that were made before; and the choice between it and the Python client.

One rule: both clients send the same bytes over as many kept connections and report the same figures, so either can stand in for
the other; the Python client takes more of the two cores, which the server then lacks.

wrk's percentiles are corrected: an answer that took n times as long as usual counts also for the n requests that were not sent
meanwhile. So its mean is not that of its requests, and clients / rate (Little's law) is told instead.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import orjson

from bench._load import Sample, Target, run_closed

MARK = "FIGURES "
TIMEOUT_S = 60
SCRIPT = """
local requests = {}
local file = assert(io.open(os.getenv("BENCH_REQUESTS"), "rb"))
while true do
  local size = file:read("*n")
  if not size then break end
  file:read(1)
  requests[#requests + 1] = file:read(size)
end
local at = 0
function request()
  at = at % #requests + 1
  return requests[at]
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('FIGURES {"count":%d,"seconds":%f,"p50":%f,"p99":%f,"p999":%f,"failed":%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    latency:percentile(99.9) / 1e6, errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""

ClientName = Literal["wrk", "python"]
Client = Callable[[Target, int, float], Sample]  # target, connections, seconds


def choose_client(wanted: ClientName | None) -> tuple[ClientName, Client]:
    """The client that is asked for; wrk by default, where it is installed. Raises: SystemExit."""
    installed = shutil.which("wrk") is not None
    if wanted == "wrk" and not installed:
        raise SystemExit("wrk is not installed: apt-get install wrk, or --client python")
    return ("wrk", run_wrk) if installed and wanted != "python" else ("python", run_closed)


def run_wrk(target: Target, connections: int, seconds: float) -> Sample:
    """As many requests as go through in the time (whole seconds). Raises: RuntimeError when one fails."""
    with tempfile.TemporaryDirectory(prefix="wrk-") as folder:
        script, requests = Path(folder, "requests.lua"), Path(folder, "requests")
        script.write_text(SCRIPT)
        requests.write_bytes(b"".join(b"%d\n%b" % (len(item), item) for item in target.requests))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", f"--timeout={TIMEOUT_S}s", "-s", str(script)]
        before = _children_cpu_s()
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{target.port}/"], env={**os.environ, "BENCH_REQUESTS": str(requests)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        cpu = _children_cpu_s() - before
    found = orjson.loads(next(line for line in done.stdout.splitlines() if line.startswith(MARK))[len(MARK) :])
    if found["failed"] or not found["count"]:
        raise RuntimeError(f"not all requests succeeded: {done.stdout}")
    rate = found["count"] / found["seconds"]
    return Sample(found["count"], rate, connections / rate, found["p50"], found["p99"], found["p999"], cpu)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
