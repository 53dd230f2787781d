"""The start of one of several nodes: what it refuses before it writes, and that it adds nothing to the log."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cmdlog.cluster.cluster_file import BadClusterFile, ClusterFile
from cmdlog.member import member_start
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_start import (
    OtherProgram,
    doubt_of_url,
    ensure_member,
    make_genesis,
    member_boot,
    open_member,
)
from cmdlog.node.assembly import MACHINE
from cmdlog.node.boot import Boot, OtherApplication
from cmdlog.node.deploying.code_trial import CodeTrial
from cmdlog.node.node import Node
from cmdlog.node.settings import Settings
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.ids import CLUSTER_GROUP
from cmdlog.wal.log import Log
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle, environment
from procedures.samples.bank import db as bank
from replay.errors import NotSoleVoter
from tests.member.members import SECRET, SETTINGS, a_cluster
from tests.node.apps.faulty import db

FILES = MACHINE.files


def try_nothing(_bundle: Bundle, _settings: Settings) -> None:
    """The code of these tests runs."""


def make(directory: Path, cluster: ClusterFile, *, node: int = 1, app: Database = db) -> Bundle | None:
    """Makes a member's directory."""
    return ensure_member(FILES, str(directory), SETTINGS, app, target=None, cluster=cluster, node=node, try_code=try_nothing)


def boot(directory: Path, *, app: Database = db, bundle: Bundle | None = None) -> Boot:
    """What the log of the directory says."""
    log = Log.open(FILES, str(directory))
    try:
        groups = log.recovered.groups.by_partition
        return member_boot(groups, app, log.instance.identity, bundle or capture_bundle(app, None))
    finally:
        log.close()


@pytest.mark.parametrize(
    ("url", "tls", "remedy"),
    [
        ("http://h:8642", False, ""),
        ("https://h:8642", True, ""),
        ("HTTPS://h:8642", True, ""),
        ("https://h:8642", False, "serves http: set tls_cert_file"),
        ("http://h:8642", True, "serves https: give the cluster its https URL"),
    ],
)
def test_url_of_another_scheme_than_is_served_is_doubtful(tmp_path: Path, url: str, tls: bool, remedy: str) -> None:
    """A proxy may translate, so it is no error."""
    settings = dataclasses.replace(SETTINGS, tls_cert_file=tmp_path / "cert.pem" if tls else None)
    doubt = doubt_of_url(url, settings)
    assert remedy in doubt
    assert bool(doubt) == bool(remedy)


def test_start_warns_of_a_doubtful_url(tmp_path: Path) -> None:
    """Where nothing answers under it, the log of the node says why."""
    cluster = a_cluster(1)
    wrong = dataclasses.replace(cluster.members[0], client="https://127.0.0.1:8642")
    member = MemberGround(dataclasses.replace(cluster, members=(wrong,)), 1, SECRET)
    with capture_logs() as lines:
        trial = CodeTrial(inline=False)
        open_member(str(tmp_path), db, SETTINGS, member, trial, target=None, progress=None, outside=MACHINE).close()
    (warning,) = (line for line in lines if line["event"] == "client_url_doubtful")
    assert (warning["log_level"], warning["node"]) == ("warning", 1)


# -- making ----------------------------------------------------------------------------------------------------------------------


def test_nodes_made_one_by_one_begin_with_the_same_entries(tmp_path: Path) -> None:
    """Cluster, terms, members, code and tables: all but the node's own number and incarnation."""
    cluster = a_cluster(3)
    stated, identities = [], list[Identity]()
    for node in cluster.nodes:
        made = make(tmp_path / str(node), cluster, node=node)
        assert made is not None
        log = Log.open(FILES, str(tmp_path / str(node)))
        identities.append(log.instance.identity)
        stated.append({group: (of.term, of.commit, of.configuration, of.catalogs) for group, of in
                       log.recovered.groups.by_partition.items()})  # fmt: skip
        votes = log.recovered.groups.votes
        log.close()
        assert {vote for _, vote in votes.values()} == {None}, "nobody has voted"
    assert stated[0] == stated[1] == stated[2]
    assert set(stated[0]) == {CLUSTER_GROUP, 0, 1}
    assert [identity.node_id for identity in identities] == [1, 2, 3]
    assert {identity.cluster_id for identity in identities} == {cluster.cluster_id}
    assert len({identity.incarnation for identity in identities}) == 3, "each draws its own"


def test_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """It says itself what it is, whatever the program would begin with now."""
    cluster = a_cluster()
    make(tmp_path, cluster)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert make(tmp_path, dataclasses.replace(cluster, genesis="other")) is None
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_other_program_is_refused_before_it_writes(tmp_path: Path) -> None:
    """Other code, and the digest of another environment."""
    cluster = a_cluster()
    for app, of in (
        (bank, dataclasses.replace(cluster, database=bank.name)),
        (db, dataclasses.replace(cluster, genesis="0" * 32)),
    ):
        with pytest.raises(OtherProgram, match=of.genesis) as refused:
            make(tmp_path / "n1", of, app=app)
        assert refused.value.exit_code == 13
        assert not (tmp_path / "n1").exists()


def test_other_environment_begins_another_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same code under another Python is not the same program."""
    cluster = a_cluster()
    here = environment()
    monkeypatch.setattr(member_start, "environment", lambda: {**here, "python": "3.99.0"})
    with pytest.raises(OtherProgram, match="environment"):
        make(tmp_path / "n1", cluster)


def test_node_that_is_not_listed_is_refused_before_it_writes(tmp_path: Path) -> None:
    """The members are fixed when the cluster is made; an existing directory does not make one either."""
    cluster = a_cluster(3)
    with pytest.raises(BadClusterFile, match="node 4 is not a member: the cluster file lists 1, 2, 3"):
        make(tmp_path / "n4", cluster, node=4)
    assert not (tmp_path / "n4").exists()
    make(tmp_path / "n1", cluster)
    with pytest.raises(BadClusterFile, match="node 4"):
        make(tmp_path / "n1", cluster, node=4)


def test_other_application_is_refused_by_name_before_it_writes(tmp_path: Path) -> None:
    """The digests would differ, too, and say less."""
    cluster = dataclasses.replace(a_cluster(3), database="ledger")
    with pytest.raises(OtherApplication, match="is for database 'ledger', not for 'faulty'") as refused:
        make(tmp_path / "n1", cluster)
    assert refused.value.exit_code == 11
    assert not (tmp_path / "n1").exists()


def test_what_a_cluster_begins_with_follows_from_program_shape_and_members() -> None:
    """Each of them changes the digest; made twice it is the same."""
    bundle = capture_bundle(db, None)
    first = make_genesis(db, bundle, SETTINGS, (1, 2, 3)).digest()
    assert make_genesis(db, bundle, SETTINGS, (1, 2, 3)).digest() == first
    others = [
        make_genesis(db, bundle, SETTINGS, (1, 2, 4)),
        make_genesis(db, bundle, Settings(partitions=3), (1, 2, 3)),
        make_genesis(db, bundle, dataclasses.replace(SETTINGS, key_forget_s=SETTINGS.key_forget_s + 1), (1, 2, 3)),
        make_genesis(bank, capture_bundle(bank, None), SETTINGS, (1, 2, 3)),
    ]
    assert len({first, *(other.digest() for other in others)}) == 5


# -- what the log says ---------------------------------------------------------------------------------------------------------


def test_start_adds_nothing_to_the_log(tmp_path: Path) -> None:
    """No term, no code, no tables: what is new is proposed by the leader."""
    cluster = a_cluster(3)
    make(tmp_path, cluster, node=2)
    said = boot(tmp_path)
    assert (said.terms, said.records, said.before, said.changes) == ([], [], {}, [])
    assert (said.term, said.catalog, said.node_id) == (1, 1, 2)
    assert set(said.code.by_version) == {1}
    assert set(said.configurations) == {CLUSTER_GROUP, 0, 1}


def test_code_of_another_database_is_refused_by_its_log(tmp_path: Path) -> None:
    """Other code of the same one is not: it is proposed when the node leads."""
    cluster = a_cluster()
    make(tmp_path, cluster)
    ours = capture_bundle(db, None)
    said = boot(tmp_path, bundle=capture_bundle(bank, None))
    assert (said.catalog, said.code.newest_hash) == (1, ours.hash)
    with pytest.raises(OtherApplication, match="belongs to database 'faulty', not to 'bank'"):
        boot(tmp_path, app=bank)


def test_plain_node_refuses_a_members_directory(tmp_path: Path) -> None:
    """One of three does not decide alone, and its log is as before."""
    make(tmp_path, a_cluster(3), node=2)
    before = [path.read_bytes() for path in sorted(tmp_path.glob("log/*"))]
    with pytest.raises(NotSoleVoter, match=r"cannot decide alone: .* lists the voters \{1, 2, 3\}"):
        Node.open(str(tmp_path), db, SETTINGS, inline=True)
    assert [path.read_bytes() for path in sorted(tmp_path.glob("log/*"))] == before
