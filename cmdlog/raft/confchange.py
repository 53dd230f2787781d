"""The changer: what a configuration becomes by a change. Raft paper, section 6; dissertation, chapter 4.

One rule: pure. The log, the leader's duties (one change at a time, only after an entry of its own term is committed) and the live
quorum are `core`'s; here is only what the members become, and the reason why not, which names the node.

    simple       no voter differs, or one does and the old voters are an odd number
    joint        the old voters go to `outgoing`, and both halves decide until `leave_joint`
    demotion     in a joint configuration a voter that becomes a learner still votes in `outgoing`; it waits in `learners_next`

What each change keeps: a quorum that can commit under the next configuration could have committed under this one, that is, every
quorum of the next one holds a majority of one half of this one. So logs that meet every majority here meet every quorum there:
when the next configuration was committed, one of them has it, and a recovery from these logs sees how far the changes went and
asks for enough of the voters of each (`replay.plan.authority`). That two majorities share a node, which is all that elections
need, is less.

    joint        its quorums hold a majority of the old voters, which are its outgoing half; what it ends in is its other half
    2k+1 voters  a majority is k+1. With one more it is k+2, of which k+1 at least are old; with one less it is k+1, all old
    2k voters    a majority is k+1. With one more it is k+1, of which only k may be old; with one less it is k

The last line is why no voter of an even number changes in one step: A and B vote, D joins; B and D commit the change, and more,
while A alone still meets every majority that its own log knows of.

Steps of one change name different nodes, so their order means nothing. A step that changes nothing is refused: it was made for
another configuration than this one. A change is compared with the configuration it was made for by `check_base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cmdlog.raft.configuration import MEMBERS_MAX, NODE_ID_MAX, Act, Configuration, MemberChange, NodeId, nodes
from cmdlog.raft.errors import BadChange, ChangeRefused, Refusal


def apply_change(config: Configuration, steps: Sequence[MemberChange]) -> Configuration:
    """The configuration that the steps make of `config`: in one, or the joint one that the leader ends by itself.

    Raises: BadChange.
    """
    target = _changed(config, steps)
    differing = set(config.voters) ^ set(target.voters)
    if len(differing) > 1 or (differing and len(config.voters) % 2 == 0):
        return enter_joint(config, target)
    return target


def check_base(config: Configuration, base: Configuration) -> None:
    """Compare-and-set: a change holds only for the configuration that its author saw. Raises: ChangeRefused (stale_base)."""
    if config != base:
        raise ChangeRefused(Refusal.STALE_BASE, f"made for {base}, but in force is {config}")


def enter_joint(config: Configuration, target: Configuration) -> Configuration:
    """The joint configuration between two that are not joint."""
    demoted = set(target.learners) & set(config.voters)
    return replace(
        target,
        outgoing=config.voters,
        learners=nodes(set(target.learners) - demoted),
        learners_next=nodes(demoted),
        auto_leave=True,
    )


def leave_joint(config: Configuration) -> Configuration:
    """The end of a joint configuration: the outgoing voters go, the demoted become learners. Raises: BadChange when not joint."""
    if not config.joint:
        raise BadChange(f"no joint configuration to leave: voters {_named(config.voters)}")
    learners = nodes((*config.learners, *config.learners_next))
    return replace(config, outgoing=(), learners=learners, learners_next=(), auto_leave=False)


def _changed(config: Configuration, steps: Sequence[MemberChange]) -> Configuration:
    """The members after the steps, not joint. Raises: BadChange, also when `config` is joint or has no voters."""
    if config.joint:
        raise BadChange(f"joint, with outgoing voters {_named(config.outgoing)}: end that first")
    if not config.voters:
        raise BadChange("a configuration without voters cannot be changed: no node could commit it")
    voters, learners = set(config.voters), set(config.learners)
    for step in _checked(steps):
        wanted = voters if step.act is Act.ADD_VOTER else learners
        if step.act is Act.REMOVE and step.node not in voters | learners:
            raise BadChange(f"node {step.node} is not a member")
        if step.act is not Act.REMOVE and step.node in wanted:
            raise BadChange(f"node {step.node} is a {'voter' if step.act is Act.ADD_VOTER else 'learner'} already")
        voters.discard(step.node)
        learners.discard(step.node)
        if step.act is not Act.REMOVE:
            wanted.add(step.node)
    if not voters:
        raise BadChange(f"no voter would be left without {_named(config.voters)}")
    if (count := len(voters | learners | set(config.voters))) > MEMBERS_MAX:
        raise BadChange(f"{count} members with {_named(step.node for step in steps)}, at most {MEMBERS_MAX}")
    return replace(config, voters=nodes(voters), learners=nodes(learners))


def _checked(steps: Sequence[MemberChange]) -> Sequence[MemberChange]:
    """Raises: BadChange for a node that no configuration can hold, or that two steps name."""
    seen: set[NodeId] = set()
    for step in steps:
        if not 0 < step.node <= NODE_ID_MAX:
            raise BadChange(f"node {step.node} is outside [1, {NODE_ID_MAX}]")
        if step.node in seen:
            raise BadChange(f"node {step.node} is named by two steps")
        seen.add(step.node)
    return steps


def _named(members: Iterable[NodeId]) -> str:
    return ", ".join(map(str, members))
