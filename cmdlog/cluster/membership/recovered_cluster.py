"""The cluster file of a node that a recovery made: the first member of a new cluster, which others join.

One rule: it only reads. Who votes is in the directory's log already: this node alone. So the file lists no other node: the others
are added while this one runs, and come by copy. The file's `genesis` is no digest, so no empty directory begins by it.
"""

from __future__ import annotations

import orjson

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.operator_error import OperatorError
from cmdlog.raft import BadConfiguration, Configuration
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.log.source import fold_end, open_source
from replay.plan.sole_voter import check_alone


class NotRecovered(OperatorError):
    """The directory cannot become the first member of a cluster as it is."""

    exit_code = 2
    hint = "`cmdlog recover DIR --to OUT` makes such a directory from a node's, or from those of several members"


def recovered_cluster(files: Files, directory: str, member: MemberAddress) -> ClusterFile:
    """The file by which `member` serves the directory. Raises: NotRecovered, NotSoleVoter, WalError."""
    source = open_source(files, directory)
    identity, groups = source.instance.identity, fold_end(source)
    check_alone(files, directory, identity, groups)
    if member.node != identity.node_id:
        raise NotRecovered(
            f"{directory} is node {identity.node_id}, not node {member.node}",
            hint=f"--member {identity.node_id}=HOST:PEERPORT,URL; other nodes join once this one runs",
        )
    cluster = groups.state(CLUSTER_GROUP)
    _check_configurations(directory, groups)
    code = cluster.catalogs[max(cluster.catalogs)].value if cluster.catalogs else {}
    if cluster.shape is None or "database" not in code:
        raise NotRecovered(f"the log of {directory} does not state the shape of a cluster apart from who votes in it")
    genesis = f"recovered as incarnation {identity.incarnation.hex()}"
    return ClusterFile(identity.cluster_id, str(code["database"]), (member,), cluster.shape.value, genesis)


def _check_configurations(directory: str, groups: GroupStates) -> None:
    """Raises: NotRecovered where nodes could not agree on one of them."""
    for group, state in groups.by_partition.items():
        try:
            for stated in state.configurations:
                Configuration.from_bytes(orjson.dumps(stated.value))
        except BadConfiguration as error:
            raise NotRecovered(f"{directory} is of a node alone (group {group}: {error})") from None
