"""Scripted scenarios: command lines, then `----`, then the trace that they must give. They are documentation that is run.

    python -m tests.raft.scenario FILE...              runs files and shows what differs
    python -m tests.raft.scenario --rewrite FILE...    writes the traces anew: read the difference before you commit it

A block ends with an empty line; lines that begin with `#` are comments. `quiet` before a command leaves its trace out.

    nodes 1 2 3 [learners 4] [SETTING=VALUE...]     a new group; every member starts from the first configuration
    start N [log=1,1,2] [term=T] [vote=V] [commit=C] [base=I@T] [config=1,2,3] [blank] [no-vote] [admitted=I@T]
          [SETTING=VALUE...]                        (re)starts node N from a disk like this; `blank` knows no group
    tick N[,N...] [COUNT]      campaign N           time passes; until the node's election time-out
    run N[,N...] [COUNT]                            time passes, and everything arrives before the next tick
    spread N TICKS                                  its election time-outs are this much longer than the shortest
    elect N                                         campaign, and everything arrives
    propose N WORD...          read N CONTEXT       `a*300` is three hundred bytes
    transfer N TARGET
    change N +4 -3 ~5 [joint] [stay] [forced] [base=1,2,3]     add voter 4, remove 3, make 5 a learner
    leave N                    recover N [LEARNER...]
    snapshot N INDEX [keep=I]                       N has a snapshot of INDEX and cuts its log there (or at I)
    copied N [failed]                               the copy that N was to make has ended
    slow N     fast N     sync N [COUNT]            the disk: writes wait for `sync`
    complete N #NUMBER | old#NUMBER                 the core is told of a write once more; of one from before the crash
    crash N [keep=COUNT]       restart N            loses what is not durable, but for the oldest COUNT writes
    deliver [A>B] [COUNT|all]  settle               messages arrive; the first one, or all that are under way once; until quiet
    drop A>B [COUNT|all]       double A>B           last A>B: the first message on that way is the last one now
    hold A>B   release A>B                          what goes that way arrives only by `deliver A>B`
    cut N | cut A>B            heal                 what is sent from now on is lost
    say MESSAGE                                     a message as the trace would show it is under way
    wire   status [N...]   progress N               what is under way, what nodes know

About one node with many groups over one log, whose peers are played by the script:

    host N GROUP... [pre_vote=no]                   a node with these groups; voters are 1, 2 and 3
    frame [OPTION...] GROUP MESSAGE                 a peer's message in a sealed frame; an option makes it one of
                                                    `cluster=other`, of an earlier life of the sender (`life=old`) or of
                                                    this node (`life=mine`), of `session=old`, made with `secret=other`,
                                                    of an unknown `kind=N`, or with an unknown `field=N`
    frame again N                                   the last frame of peer N once more
    add GROUP [term=T] [vote=V]   remove GROUP   spoil GROUP     spoil: one of its invariants breaks
    ticks [COUNT]                                   time for all groups
    wait   written                                  rounds are not durable until `written`
    replay                                          what the one log gives for each group; it must be what the cores know
"""

from __future__ import annotations

import argparse
import difflib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.raft.scenario_script import Script

RULE: Final = "----"


@dataclass
class Block:
    """Commands and the trace that they must give; `line` is where the commands begin."""

    line: int
    commands: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def parse(text: str) -> list[str | Block]:
    """Comments and empty lines as they are, and blocks. Raises: ValueError for commands without a rule."""
    found: list[str | Block] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at] or lines[at].startswith("#"):
            found.append(lines[at])
            at += 1
            continue
        end = next((n for n in range(at, len(lines)) if not lines[n]), len(lines))
        if RULE not in lines[at:end]:
            raise ValueError(f"line {at + 1}: commands without {RULE}")
        rule = lines.index(RULE, at)
        found.append(Block(at + 1, lines[at:rule], lines[rule + 1 : end]))
        at = end
    return found


def rewritten(text: str) -> str:
    """The file with the traces that its commands give. Raises: ValueError and Violation, naming the line."""
    script = Script()
    out: list[str] = []
    for part in parse(text):
        if isinstance(part, str):
            out.append(part)
            continue
        try:
            trace = script.run(part.commands)
        except Exception as error:
            error.add_note(f"in the block at line {part.line}: {part.commands}")
            raise
        out += [*part.commands, RULE, *trace]
    return "\n".join(out) + "\n"


def difference(path: Path) -> str:
    """What the file expects and what happens, as a diff; empty when they agree."""
    text = path.read_text(encoding="utf-8")
    return "".join(difflib.unified_diff(text.splitlines(True), rewritten(text).splitlines(True), "expected", "happened", n=12))


def main() -> int:
    """The command line; 1 when a file differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.raft.scenario", description="Run scripted scenarios.")
    parser.add_argument("--rewrite", action="store_true", help="write the traces that happen")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    differ = 0
    for path in options.files:
        if options.rewrite:
            path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        elif found := difference(path):
            differ = 1
            print(f"{path}\n{found}")
    return differ


if __name__ == "__main__":
    sys.exit(main())
