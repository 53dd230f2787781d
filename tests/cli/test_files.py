"""The files that a server is run with: they parse, and name only what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from cmdlog.cli.app import make_program
from cmdlog.cli.files import FILES, FOLDER, read_deploy_file
from cmdlog.cli.server.settings_sources import load_settings
from cmdlog.node.reporting.prometheus import TABLE as METRICS
from cmdlog.node.settings import TABLE, Settings
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PARTS = re.compile(r"_(bucket|sum|count)$")
OF_CLIENT_LIBRARY = {"process_resident_memory_bytes"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`cmdlog files` as a process."""
    return subprocess.run(
        [sys.executable, "-m", "cmdlog", "files", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def metrics_in(text: str) -> set[str]:
    """Names of metrics in expressions of Prometheus, histograms by the name of the whole."""
    found = set()
    for name in re.findall(r"\b(?:cmdlog|process)_[a-z_]+", text):
        found.add(name if name in METRICS else PARTS.sub("", name))
    return found


def test_every_file_of_the_package_is_listed() -> None:
    """The folder and the list are the same, beside what is made from code."""
    held = {path.name for path in (ROOT / "cmdlog" / FOLDER).iterdir()}
    assert held == FILES.keys() - {"cmdlog.toml"}


@pytest.mark.slow
def test_files_are_listed_and_printed() -> None:
    """As a user asks for them; an unknown one is refused with the names that exist."""
    assert all(name in run().stdout for name in FILES)
    assert run("alerts.yml").stdout == read_deploy_file("alerts.yml")
    refused = run("nothing.txt")
    assert (refused.returncode, "cmdlog.service" in refused.stderr) == (2, True)


def test_the_example_of_settings_is_read_back(tmp_path: Path) -> None:
    """As it is it changes nothing; with every line in force it gives the defaults again, and no setting is missing."""
    text, path = read_deploy_file("cmdlog.toml"), tmp_path / "cmdlog.toml"
    path.write_text(text)
    assert load_settings(environ={}, config=path) == Settings()
    in_force = re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert tomllib.loads(in_force).keys() == TABLE.keys()
    optional = [name for name, setting in TABLE.items() if setting.default is None]
    path.write_text("\n".join(line for line in in_force.splitlines() if line.partition(" ")[0] not in optional))
    assert load_settings(environ={}, config=path) == Settings()


def test_alerts_and_dashboard_name_metrics_that_exist() -> None:
    """A metric that is renamed is renamed there, too."""
    for name in ("alerts.yml", "grafana.json"):
        named = metrics_in(" ".join(_expressions(name)))
        assert named
        assert named - METRICS.keys() - OF_CLIENT_LIBRARY == set(), name


def _expressions(name: str) -> list[str]:
    text = read_deploy_file(name)
    if name == "alerts.yml":
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
        return [rule["expr"] for rule in rules]
    return [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]


def test_labels_in_expressions_are_those_of_the_metric() -> None:
    """`sum by (outcome)` of a metric without outcomes would be one empty line."""
    added = {"instance", "le"}
    for name in ("alerts.yml", "grafana.json"):
        for expression in _expressions(name):
            (metric,) = metrics_in(expression) or {""}
            by = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
            assert by - added <= set(METRICS[metric].labels if metric in METRICS else ()), expression


CONFINED = {
    "UMask": ["0077"],
    "CapabilityBoundingSet": [""],
    "NoNewPrivileges": ["yes"],
    "SystemCallFilter": ["@system-service", "~@privileged"],
    "RestrictAddressFamilies": ["AF_INET AF_INET6 AF_UNIX"],
    "PrivateDevices": ["yes"],
    "LockPersonality": ["yes"],
    "ProtectKernelLogs": ["yes"],
    "ProtectKernelModules": ["yes"],
    "ProtectKernelTunables": ["yes"],
}


def test_the_unit_gives_a_server_only_what_it_needs() -> None:
    """No capability, no device, no system call of administrators, no file that another user may read."""
    given: dict[str, list[str]] = {}
    for line in read_deploy_file("cmdlog.service").splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            given.setdefault(name, []).append(value)
    assert {name: given.get(name) for name in CONFINED} == CONFINED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("judged", [("verify",), ("security", "--offline=true", "--threshold=20")], ids=lambda judged: judged[0])
def test_the_unit_is_one_of_systemd(tmp_path: Path, judged: tuple[str, ...]) -> None:
    """`systemd-analyze` knows every key and value, and finds an exposure of at most 2.0 of 10."""
    unit, user = tmp_path / "cmdlog.service", "root" if judged[0] == "verify" else "cmdlog"  # `verify` wants one that exists
    unit.write_text(read_deploy_file("cmdlog.service").replace("User=cmdlog\n", f"User={user}\n"))
    done = subprocess.run(
        ["systemd-analyze", *judged, str(unit)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    said = [line for line in done.stderr.splitlines() if "cmdlog.service" in line]
    assert (done.returncode, said) == (0, []), done.stdout


@pytest.mark.parametrize("name", ["cmdlog.service", "Dockerfile"])
def test_commands_in_the_files_exist(name: str) -> None:
    """Each option of a `cmdlog serve` there is one that the program has."""
    import typer

    commands = typer.main.get_command(make_program()).commands  # type: ignore[attr-defined]
    known = {option for parameter in commands["serve"].params for option in parameter.opts}
    lines = [line for line in read_deploy_file(name).splitlines() if line.startswith(("ExecStart=", 'CMD ["serve"'))]
    assert lines
    assert set(re.findall(r"--[a-z-]+", " ".join(lines))) <= known
