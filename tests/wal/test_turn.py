"""The turn: one thread has it, and a waiting one is woken when there is something to take."""

from __future__ import annotations

import threading

from cmdlog.wal.writing.turn import Turn
from cmdlog.wal.writing.watermarks import Gate
from tests.waiting import PATIENCE_S, wait_for


def test_what_is_announced_during_a_turn_is_for_the_next_one() -> None:
    """A kick before the turn is taken is answered by it; one after that wakes a waiting thread when the turn is passed on."""
    lock = threading.Lock()
    turn, order = Turn(lock, Gate(lock)), list[str]()

    def serve() -> None:
        with lock:
            while turn.held or not turn.wanted:
                order.append("waits")
                turn.wait()
            turn.acquire()
            order.append("takes")
        turn.pass_on()

    with lock:
        turn.kick()
        turn.acquire()
    assert (turn.held, turn.wanted) == (True, False)
    thread = threading.Thread(target=serve)
    thread.start()
    wait_for(lambda: order == ["waits"])
    with lock:
        turn.kick()
    assert order == ["waits"], "a thread has the turn"
    turn.pass_on()
    thread.join(PATIENCE_S)
    assert order == ["waits", "takes"]
    assert (turn.held, turn.wanted) == (False, False)


def test_passing_it_on_opens_the_gate_of_those_who_wait_for_quiet() -> None:
    """A thread that waits until no thread has the turn looks again."""
    lock = threading.Lock()
    quiet = Gate(lock)
    turn, seen = Turn(lock, quiet), list[bool]()

    def wait_for_quiet() -> None:
        with lock:
            seen.append(turn.held)
            while turn.held:
                quiet.wait()
            seen.append(turn.held)

    turn.acquire()
    thread = threading.Thread(target=wait_for_quiet)
    thread.start()
    wait_for(lambda: seen == [True])
    turn.pass_on()
    thread.join(PATIENCE_S)
    assert seen == [True, False]
