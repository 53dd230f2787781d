"""Settings come from flag, environment, file or default, in this order, and nothing wrong is passed over."""

from pathlib import Path

import pytest

from cmdlog.cli.server.settings_sources import OTHER_VARIABLES, load_settings, service_links
from cmdlog.node.settings import BadSetting


def test_each_source_wins_over_the_ones_behind_it(tmp_path: Path) -> None:
    """A flag beats the environment, the environment beats cmdlog.toml, and the file beats the default."""
    (tmp_path / "cmdlog.toml").write_text("port = 1\nsegments = 5\nlog_threads = 2\n")
    environ = {"CMDLOG_PORT": "2", "CMDLOG_SEGMENTS": "6"}
    settings = load_settings({"port": 3, "host": None}, environ=environ, data_dir=tmp_path)
    assert (settings.port, settings.segments, settings.log_threads, settings.host) == (3, 6, 2, "127.0.0.1")


def test_file_of_the_data_directory_hides_the_one_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly one cmdlog.toml counts: the given one, else the data directory's, else the current directory's."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "cmdlog.toml").write_text("port = 1")
    assert load_settings(environ={}, data_dir=data).port == 1
    (data / "cmdlog.toml").write_text("segments = 5")
    assert load_settings(environ={}, data_dir=data).port == 8642
    other = tmp_path / "other.toml"
    other.write_text("port = 7")
    assert load_settings(environ={}, data_dir=data, config=other).port == 7


def test_variables_of_others_are_no_settings() -> None:
    """The command line reads some for itself, and so do the modules in C."""
    assert load_settings(environ=dict.fromkeys(OTHER_VARIABLES, "0")) == load_settings(environ={})
    assert "CMDLOG_NATIVE" in OTHER_VARIABLES


LINKS = {
    "CMDLOG_SERVICE_HOST": "10.0.0.1",
    "CMDLOG_SERVICE_PORT": "8642",
    "CMDLOG_SERVICE_PORT_HTTP": "8642",
    "CMDLOG_PORT": "tcp://10.0.0.1:8642",
    "CMDLOG_PORT_8642_TCP": "tcp://10.0.0.1:8642",
    "CMDLOG_PORT_8642_TCP_PROTO": "tcp",
    "CMDLOG_PORT_8642_TCP_PORT": "8642",
    "CMDLOG_PORT_8642_TCP_ADDR": "10.0.0.1",
    "CMDLOG_HEADLESS_SERVICE_HOST": "10.0.0.2",
    "CMDLOG_HEADLESS_PORT": "udp://10.0.0.2:53",
    "CMDLOG_HEADLESS_PORT_53_UDP_ADDR": "10.0.0.2",
}


def test_service_links_are_no_settings() -> None:
    """A platform sets them in every container of a namespace with a service of that name; settings beside them count."""
    assert load_settings(environ={**LINKS, "CMDLOG_SEGMENTS": "6"}) == load_settings(environ={"CMDLOG_SEGMENTS": "6"})
    assert service_links({**LINKS, "CMDLOG_SEGMENTS": "6", "PORT": "tcp://1:2"}) == sorted(LINKS)
    assert service_links({"CMDLOG_PORT": "8642"}) == []


def test_wrong_value_that_a_flag_overrides_is_not_looked_at(tmp_path: Path) -> None:
    """Neither of the environment nor of the file; one that nothing overrides is refused."""
    (tmp_path / "cmdlog.toml").write_text("port = 'none'")
    assert load_settings({"port": 3}, environ={"CMDLOG_PORT": "many"}, data_dir=tmp_path).port == 3
    assert load_settings(environ={"CMDLOG_PORT": "4"}, data_dir=tmp_path).port == 4
    with pytest.raises(BadSetting, match="CMDLOG_PORT"):
        load_settings(environ={"CMDLOG_PORT": "many"}, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"CMDLOG_PARTITION": "3"}, ["CMDLOG_PARTITION:", "CMDLOG_PARTITIONS"]),
        ({"CMDLOG_PORT": "tcp"}, ["CMDLOG_PORT", "whole number"]),
        ({"CMDLOG_PORT": "http://10.0.0.1:80"}, ["CMDLOG_PORT", "whole number"]),
        ({"CMDLOG_PORT": ""}, ["CMDLOG_PORT", "is empty"]),
        ({"CMDLOG_TOKEN_FILE": " "}, ["CMDLOG_TOKEN_FILE", "is empty"]),
        ({"CMDLOG_HOST": ""}, ["CMDLOG_HOST", "is empty"]),
        ({"CMDLOG_PORT_80_TPC": "tcp://10.0.0.1:80"}, ["CMDLOG_PORT_80_TPC", "no such setting"]),
        ({"CMDLOG_PORT": "65536"}, ["CMDLOG_PORT", "65535"]),
        ({"CMDLOG_DURABILITY": "asynch"}, ["CMDLOG_DURABILITY", "sync, async"]),
        ({"CMDLOG_DIGEST_ROWS": "maybe"}, ["CMDLOG_DIGEST_ROWS", "true"]),
        ({"CMDLOG_QUERY_TIMEOUT_S": "nan"}, ["CMDLOG_QUERY_TIMEOUT_S", "minimum"]),
        ({"CMDLOG_SEGMENT_BYTES": "16 MB"}, ["CMDLOG_SEGMENT_BYTES", "MiB"]),
        ({"CMDLOG_SEGMENT_BYTES": "1048577"}, ["segment_bytes", "multiple of 4096"]),
        ({"CMDLOG_SITES": "9"}, ["sites", "partitions (4)", "lower it to 4 or raise partitions"]),
        (
            {"CMDLOG_SEGMENT_BYTES": "1MiB", "CMDLOG_LOG_RESERVE_BYTES": "1MiB", "CMDLOG_CALL_BYTES_MAX": "1MiB"},
            ["log_reserve_bytes: 1048576", "lower it to 524288", "call_bytes_max: 1048576"],
        ),
        ({"CMDLOG_HOST": "0.0.0.0"}, ["host", "token_file"]),  # noqa: S104 - refused is the point
        ({"CMDLOG_QQQQQQQQ": "1"}, ["CMDLOG_QQQQQQQQ", "no such setting"]),
    ],
)
def test_bad_variable_is_refused_by_name(environ: dict[str, str], says: list[str]) -> None:
    """A typo or an impossible value names the key as the operator wrote it, and what would do instead."""
    with pytest.raises(BadSetting) as refused:
        load_settings(environ=environ)
    assert all(part in str(refused.value) for part in says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("partion = 3", ["partion in", "partitions"]),
        ("token_file = ''", ["token_file in", "is empty"]),
        ("port = '80'", []),
        ("port = true", ["port in", "not of type int"]),
        ("port = 80.5", ["port in", "not of type int"]),
        ("[http]\nport = 80", ["http in", "no such setting"]),
        ("port = ", ["is not TOML"]),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path: Path, text: str, says: list[str]) -> None:
    """What cmdlog.toml holds is held to the same rules, and the message names the file."""
    (tmp_path / "cmdlog.toml").write_text(text)
    if not says:
        assert load_settings(environ={}, data_dir=tmp_path).port == 80
        return
    with pytest.raises(BadSetting) as refused:
        load_settings(environ={}, data_dir=tmp_path)
    assert all(part in str(refused.value) for part in [*says, "cmdlog.toml"])


def test_missing_named_file_is_refused(tmp_path: Path) -> None:
    """A configuration file that was asked for and is not there is an error, not a default."""
    with pytest.raises(BadSetting, match=r"none\.toml"):
        load_settings(environ={}, config=tmp_path / "none.toml")


def test_sizes_may_carry_binary_units() -> None:
    """Bytes may be written as people say them."""
    assert load_settings(environ={"CMDLOG_SEGMENT_BYTES": "32 MiB"}).segment_bytes == 32 << 20
