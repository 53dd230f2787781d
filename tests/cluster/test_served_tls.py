"""A cluster of real processes in which clients and nodes need certificates: who is refused and why, forwarding, joining."""

from __future__ import annotations

import datetime
import signal
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from cmdlog.cli.demo.nodes import free_ports
from tests.cluster.served import ServedCluster
from tests.waiting import ask_for

pytestmark = pytest.mark.slow


class GuardedCluster(ServedCluster):
    """Its API takes only clients of one authority, its peers' ports only nodes of another one."""

    def __init__(self, folder: Path) -> None:
        self.of_clients, self.of_nodes = trustme.CA(), trustme.CA()
        self.of_clients.cert_pem.write_to_path(str(folder / "clients.pem"))
        self.of_nodes.cert_pem.write_to_path(str(folder / "nodes.pem"))
        self.of_clients.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "api.pem"))
        self.of_clients.issue_cert("operator@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(folder / "client.pem")
        )
        for node in range(1, 5):
            self.certify(folder, node, self.of_nodes)
        super().__init__(folder, partitions=1, tls=self.context(folder))

    def certify(self, folder: Path, node: int, authority: trustme.CA, **validity: Any) -> None:
        """The node's next start has this certificate; the name in it is of no host."""
        leaf = authority.issue_cert("node.of.the.cluster", **validity)
        leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / f"node{node}.pem"))

    def context(self, folder: Path, *, shows: bool = True) -> ssl.SSLContext:
        """Of a client, with or without a certificate."""
        made = ssl.create_default_context(cafile=str(folder / "clients.pem"))
        if shows:
            made.load_cert_chain(folder / "client.pem")
        return made

    def environment(self) -> dict[str, str]:
        certificates = {"CMDLOG_CA_FILE": str(self.folder / "clients.pem"), "CMDLOG_CERT_FILE": str(self.folder / "client.pem")}
        return {**super().environment(), **certificates}

    def join_options(self, node: int) -> list[str]:
        peers = [f"--peer-cert-file=node{node}.pem", "--peer-ca-file=nodes.pem"]
        api = ["--tls-cert-file=api.pem", "--tls-ca-file=clients.pem"]
        return ["--join", "cluster.json" if node < 4 else "cluster-4.json", *peers, *api]

    def reports(self, node: int, text: str) -> None:
        """Waits until its status says so of some peer."""
        ask_for(lambda: text in str(self.status(node).get("cluster", {}).get("peers")), why=self.logs)


def test_cluster_in_which_all_show_certificates(tmp_path: Path) -> None:
    """Peers of another authority, or too late, are refused by name; every node forwards calls, and another one joins by copy."""
    cluster = GuardedCluster(tmp_path)
    try:
        cluster.certify(tmp_path, 3, trustme.CA())
        cluster.start()
        cluster.reports(1, "certificate verify failed: unable to get local issuer certificate")
        cluster.reports(3, "our certificate, which may have expired or be of another authority")
        cluster.kill(3)
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        cluster.certify(tmp_path, 3, cluster.of_nodes, not_before=now - 2 * day, not_after=now - day)
        cluster.start(3)
        cluster.reports(1, "certificate verify failed: certificate has expired")
        assert all(cluster.status(node)["cluster"]["leader"] is None for node in (1, 2)), "not all nodes have met"
        cluster.kill(3)
        cluster.certify(tmp_path, 3, cluster.of_nodes)
        cluster.start(3)
        cluster.leader()
        account = {"branch": 1, "customer": 7}
        assert cluster.call("open_account", {**account, "savings": 0, "checking": 0}, "open")["status"] == 200
        for node in cluster.nodes:
            answer = cluster.call("deposit_checking", {**account, "amount": 1}, f"at{node}", only=[node])
            assert answer["status"] == 200, answer
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{cluster.urls[node]}/healthz", verify=cluster.context(tmp_path, shows=False))
        assert "healthy" in cluster.run("cluster", "status", "--cluster", "cluster.json")
        bare = {name: value for name, value in cluster.environment().items() if name != "CMDLOG_CERT_FILE"}
        refused = subprocess.run(cluster.command("status", "--url", cluster.urls[1]), env=bare, capture_output=True, check=False)
        assert refused.returncode == 1
        assert b"CMDLOG_CERT_FILE" in refused.stderr
        peer, port = free_ports(2)
        cluster.urls[4] = f"https://127.0.0.1:{port}"
        place = [f"--peer=127.0.0.1:{peer}", f"--client={cluster.urls[4]}"]
        cluster.run("cluster", "join", "4", "--cluster", "cluster.json", *place)
        cluster.start(4)
        ask_for(lambda: cluster.call("balance", account, "", only=[4]).get("result") == 3, why=cluster.logs)
        cluster.certify(tmp_path, 1, cluster.of_nodes)
        cluster.kill(1, signal.SIGTERM)
        cluster.start(1)
        ask_for(lambda: cluster.status(1).get("cluster", {}).get("leader"), why=cluster.logs)
    finally:
        cluster.close()
