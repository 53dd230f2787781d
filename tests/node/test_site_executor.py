"""The executor of a site while tables change."""

from __future__ import annotations

from pathlib import Path

from cmdlog.node.sites.site_executor import Site, SitePlan
from cmdlog.wal.format.record import RecordKind, decode_record, encode_json
from procedures import Database
from procedures.idempotency.known_outcome import KeyPolicy
from replay.engine import Catalogs

FILL = """
    INSERT INTO numbers WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 200000)
    SELECT n FROM counted
"""


def test_site_moves_while_a_logged_change_writes_rows(tmp_path: Path) -> None:
    """The watch ends a site that stands still, and a change cannot be left out: of many rows it would never come to its end."""
    catalogs, ticks = Catalogs(), list[bool]()
    catalogs.add_live(1, Database("empty"))
    site = Site(SitePlan(catalogs, 1, {0: str(tmp_path / "state")}, KeyPolicy(), digest_rows=True, wal_bytes_max=1 << 28))

    def tick() -> bool:
        ticks.append(True)
        return False

    statements = ["CREATE TABLE numbers (n INTEGER PRIMARY KEY)", FILL]
    for index, change in enumerate((statements, ["CREATE TABLE more (n INTEGER PRIMARY KEY)"]), 1):
        value = {"txn_id": index, "statements": change}
        assert site.apply(decode_record(encode_json(RecordKind.SCHEMA, value, partition=0, term=1, index=index)), tick) is None
    assert len(ticks) > 1
    assert site.positions == {0: 2}
    site.close()
