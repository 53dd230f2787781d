"""Every setting is described, and has a default that fits the others."""

import pytest

from cmdlog.cli.server.settings_table import describe
from cmdlog.node.settings import TABLE, BadSetting, Settings, fitted


def test_defaults_pass_their_own_checks() -> None:
    """A directory with no configuration at all gets settings that fit together."""
    assert Settings(**fitted({})) == Settings()


def test_defaults_shrink_to_fit_what_was_given() -> None:
    """One size alone is enough: the limits that depend on it follow, and those that are given stay, to be refused if they do not
    fit."""
    for segment_bytes in (32 << 10, 1 << 20):
        small = Settings(**fitted({"segment_bytes": segment_bytes}))
        assert (small.log_reserve_bytes, small.call_bytes_max) == (segment_bytes // 2, segment_bytes // 2)
    assert Settings(**fitted({"batch_bytes_max": 2048})).call_bytes_max == 2048
    assert Settings(**fitted({"segment_bytes": 1 << 20, "call_bytes_max": 100})).call_bytes_max == 100
    large = Settings(**fitted({"segment_bytes": 64 << 20}))
    assert (large.log_reserve_bytes, large.call_bytes_max) == (1 << 20, 1 << 20)
    with pytest.raises(BadSetting, match=r"^call_bytes_max: 1048576 is more than half of segment_bytes \(524288\)"):
        Settings(**fitted({"segment_bytes": 1 << 20, "call_bytes_max": 1 << 20}))


def test_every_setting_says_its_unit_in_its_name_and_has_a_reason() -> None:
    """Help texts never need a second place to look: the unit is in the name, the reason in the table."""
    suffixes = {"ms": "_ms", "s": "_s", "bytes": "_bytes", "calls": "calls", "rows": "rows", "keys": "keys"}
    for setting in TABLE.values():
        assert len(setting.reason) > 20
        assert suffixes.get(setting.unit, "") in setting.name
        assert setting.reason in describe(setting)
