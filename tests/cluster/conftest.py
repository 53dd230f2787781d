"""One cluster of real processes for all tests that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.served import ServedCluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes, for one test after the other."""
    made = ServedCluster(tmp_path_factory.mktemp("shared"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CMDLOG_DRAIN_TIMEOUT_S", "2")
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def cluster(shared_cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> ServedCluster:
    """All nodes run, one of them leads, and the others follow. A test has customers of its own (`new_account`)."""
    if ended := [node for node in shared_cluster.nodes if not shared_cluster.is_running(node)]:
        shared_cluster.start(*ended)
    shared_cluster.leader()
    for node in shared_cluster.nodes:
        shared_cluster.wait_follows(node)
    return shared_cluster
