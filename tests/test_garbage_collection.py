"""A process that serves looks for garbage rarely, and not among what it has loaded."""

from __future__ import annotations

import subprocess
import sys

import orjson

from cmdlog.garbage_collection import OLDER_EVERY, YOUNG_MAX

LOADING = """
import gc, json
from cmdlog.garbage_collection import loading

looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
with loading():
    import decimal, email.message, xml.dom.minidom
    enabled = gc.isenabled()
held = [{} for _ in range(gc.get_threshold()[0] // 2)]
print(json.dumps([enabled, gc.isenabled(), looks, gc.get_freeze_count() > 1000]))
"""

PROGRAM = """
import gc, json, weakref
from cmdlog.garbage_collection import settle_garbage_collection

class Node:
    pass

loaded = Node()
settle_garbage_collection()
frozen = gc.get_freeze_count()
ring = Node()
ring.itself = ring
gone = weakref.ref(ring)
del ring
gc.collect()
print(json.dumps([gc.get_threshold(), frozen > 1000, gone() is None, gc.isenabled()]))
"""


def test_what_is_loaded_is_frozen_and_garbage_still_goes() -> None:
    """In a process of its own: the collector of this one stays as it is."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert orjson.loads(done.stdout) == [[YOUNG_MAX, OLDER_EVERY, OLDER_EVERY], True, True, True]


def test_nothing_looks_at_what_is_being_loaded() -> None:
    """Neither meanwhile nor when the collector is on again: a look takes as long as a tenth of the imports."""
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, check=True)
    assert orjson.loads(done.stdout) == [False, True, [], True]
