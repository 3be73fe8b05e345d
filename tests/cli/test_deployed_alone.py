"""The files of deploy/ for one server fit together, their servers start, and systemd is notified."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.defaults import DEFAULT_CONTROLLER_PORT, DEFAULT_REST_PORT, DEFAULT_STORE_PORT
from nadi.observe.systemd import notify_systemd
from tests.support.waiting import until

from .test_cluster import up
from .test_deployed import parsed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = [DEPLOY / "systemd/nadi.service", DEPLOY / "cluster/nadi.service"]
IMAGE = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
WAIT_S = 60
PORTS = {DEFAULT_CONTROLLER_PORT, DEFAULT_REST_PORT, DEFAULT_STORE_PORT}
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="units can't be verified without systemd-analyze"
)


# --- systemd ---------------------------------------------------------------------------------------------


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listen in place of systemd."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(address)
        listener.settimeout(WAIT_S)
        yield listener


def received(listener: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in listener.recv(4096).decode().splitlines())


@pytest.mark.parametrize(
    "options", ["--data={folder}/data", "--store=file://{folder}/store", "--workers=1 --data={folder}/w"]
)
def test_server_notifies_systemd_when_ready_and_stopping(options: str, tmp_path: Path) -> None:
    arguments = shlex.split(options.replace("{folder}", str(tmp_path)))
    with listening(f"{tmp_path}/notify") as systemd:
        process = subprocess.Popen(
            [sys.executable, "-m", "nadi.cli.app", "up", "--port", "0", *arguments],
            env={**os.environ, "NOTIFY_SOCKET": f"{tmp_path}/notify"},
            stdout=subprocess.DEVNULL,
        )
        try:
            notification = received(systemd)
            assert notification.pop("READY") == "1"
            uri = notification.pop("STATUS").removeprefix("serving at ")
            assert not notification
            with nadi.StreamManager(uri) as manager:
                assert manager.create_scope("home")
        finally:
            process.send_signal(signal.SIGTERM)
        assert received(systemd) == {"STOPPING": "1", "STATUS": "stopping"}
        assert process.wait(WAIT_S) == 0


def test_tell_systemd_with_a_missing_socket_only_warns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"nadi-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with listening(f"\0{name}") as systemd:
        notify_systemd("READY=1")
        assert received(systemd) == {"READY": "1"}
    assert not caplog.messages
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:1")
    notify_systemd("READY=1")
    for message, address in zip(caplog.messages, (f"@{name}", f"{tmp_path}/none", "vsock:2:1"), strict=True):
        assert address in message
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_systemd("READY=1")
    assert len(caplog.messages) == 3


def entries(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a unit."""
    settings: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    return settings


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=["alone", "cluster"])
def test_systemd_analyze_verifies_unit(unit: Path, tmp_path: Path) -> None:
    own = tmp_path / "nadi.service"
    own.write_text(unit.read_text().replace("/opt/nadi/bin/nadi", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(own)], capture_output=True, text=True, timeout=WAIT_S)
    problems = [line for line in (done.stdout + done.stderr).splitlines() if "nadi" in line]
    assert not problems
    assert done.returncode == 0, done.stderr


@needs_systemd
def test_unit_has_a_low_exposure_level(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNITS[0])],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    if "--offline" in done.stderr:
        pytest.skip("this systemd-analyze only rates loaded units")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=["alone", "cluster"])
def test_unit_waits_for_readiness_and_does_not_restart_on_invalid_settings(unit: Path) -> None:
    unit_settings = entries(unit)
    assert unit_settings["Type"] == ["notify"]
    assert unit_settings["RestartPreventExitStatus"] == ["2"]
    assert unit_settings["LimitNOFILE"] == ["65536"]


def test_unit_user_folder_and_settings_fit_together() -> None:
    unit_settings = entries(UNITS[0])
    settings = tomllib.loads((DEPLOY / "systemd/nadi.toml").read_text())
    (command,) = unit_settings["ExecStart"]
    arguments = command.replace("/etc/nadi", str(DEPLOY / "systemd"))
    assert str(parsed(shlex.split(arguments)[1:]).params["data"]) == settings["data"]
    assert unit_settings["StateDirectory"] == [Path(settings["data"]).name]
    assert settings["data"] == "/var/lib/nadi"
    kind, user, _, _, home = shlex.split((DEPLOY / "systemd/nadi.sysusers").read_text(), comments=True)
    assert (kind, [user], home) == ("u", unit_settings["User"], settings["data"])
    assert unit_settings["KillMode"] == ["mixed"]  # otherwise systemd stops workers, which are restarted


def test_example_settings_are_valid_even_if_commented_out(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/nadi.toml").read_text()
    all_of_it = re.sub(r"^# (?=[a-z0-9-]+ = )", "", text, flags=re.M)
    assert all_of_it.count(" = ") >= 7
    for number, settings in enumerate((text, all_of_it)):
        file = tmp_path / f"{number}.toml"
        file.write_text(settings)
        done = CliRunner().invoke(app, ["up", "--config", str(file), "--print-config"])
        missing = "TLS can't use /etc/nadi/server.pem"  # files are checked last
        assert done.exit_code == 0 or (number == 1 and missing in done.output), done.output


# --- the image -------------------------------------------------------------------------------------------


def copied() -> list[str]:
    """Return the files of the repository that the image copies."""
    words = [shlex.split(text) for text in re.findall(r"^COPY (?!--from)(.*)$", IMAGE, re.M)]
    return [name for line in words for name in line[:-1]]


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    included = {
        line[1:] for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert set(copied()) == included
    assert all((ROOT / name).exists() for name in included)


def test_image_has_its_own_user_and_volume() -> None:
    (user,) = re.findall(r"^USER (.*)$", IMAGE, re.M)
    assert user == "nadi"
    assert re.findall(r"^VOLUME (.*)$", IMAGE, re.M) == ["/var/lib/nadi"]
    assert {int(port) for port in re.findall(r"^EXPOSE (.*)$", IMAGE, re.M)[0].split()} == PORTS
    command = yaml.safe_load(re.findall(r"^CMD (.*)$", IMAGE, re.M)[0])
    assert command == ["nadi", "up", "--config", "/etc/nadi/nadi.toml"]
    assert re.findall(r"^COPY deploy/systemd/nadi.toml (.*)$", IMAGE, re.M) == [command[-1]]


def test_health_check_of_the_image_detects_a_stopped_server(tmp_path: Path) -> None:
    check = yaml.safe_load(re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", IMAGE, re.M)[0])
    assert check[0] == "python"

    def is_healthy(rest: str) -> bool:
        command = [sys.executable, *check[1:]]
        return (
            subprocess.run(command, env={"NADI_REST": rest}, stderr=subprocess.DEVNULL, timeout=WAIT_S).returncode == 0
        )

    with up("--data", str(tmp_path / "data")) as server:
        until(lambda: is_healthy(server.rest))
        rest = server.rest
    assert not is_healthy(rest)


# --- compose ---------------------------------------------------------------------------------------------


def mounts(service: str) -> dict[str, Path]:
    """Return the repository's files that a service mounts, by mount point."""
    split = [text.split(":") for text in COMPOSE["services"][service].get("volumes", [])]
    return {where: (DEPLOY / "compose" / name).resolve() for name, where, *_ in split if name.startswith(".")}


def test_files_mounted_by_compose_exist() -> None:
    mounted = mounts("prometheus") | mounts("grafana")
    assert all(path.is_file() for path in mounted.values())
    used = set(mounted.values()) | {(DEPLOY / "compose/compose.yaml").resolve()}
    assert used >= {path.resolve() for path in (DEPLOY / "compose").iterdir()}
    build = COMPOSE["services"]["nadi"]["build"]
    assert (DEPLOY / "compose" / build["context"]).resolve() == ROOT.resolve()
    assert (ROOT / build["dockerfile"]).is_file()


def test_compose_publishes_ports_only_locally() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert {int(port.rpartition(":")[2]) for port in COMPOSE["services"]["nadi"]["ports"]} == PORTS


def test_prometheus_scrapes_nadi_and_has_its_alerts() -> None:
    mounted = mounts("prometheus")
    settings = yaml.safe_load(mounted["/etc/prometheus/prometheus.yml"].read_text())
    assert [mounted[file] for file in settings["rule_files"]] == [(DEPLOY / "prometheus/alerts.yml").resolve()]
    (job,) = settings["scrape_configs"]
    assert job["job_name"].startswith("nadi")  # the alerts select this name
    assert job["static_configs"] == [{"targets": [f"nadi:{DEFAULT_REST_PORT}"]}]
    assert job["metrics_path"] == "/metrics"


def test_grafana_is_provisioned_with_source_and_dashboard() -> None:
    mounted = mounts("grafana")
    provisioning = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(mounted[f"{provisioning}/datasources/nadi.yaml"].read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    (provider,) = yaml.safe_load(mounted[f"{provisioning}/dashboards/nadi.yaml"].read_text())["providers"]
    (dashboard,) = [path for where, path in mounted.items() if where.startswith(provider["options"]["path"])]
    assert dashboard == (DEPLOY / "grafana/nadi.json").resolve()


def test_server_of_compose_starts(tmp_path: Path) -> None:
    arguments = shlex.split(COMPOSE["services"]["nadi"]["command"])[1:]
    parameters: dict[str, Any] = parsed(arguments).params
    assert str(parameters["data"]) == COMPOSE["services"]["nadi"]["volumes"][0].split(":")[1]
    local = {"/var/lib/nadi": str(tmp_path / "data"), "0.0.0.0": "127.0.0.1"}
    with (
        up(*(local.get(word, word) for word in arguments[1:])) as server,
        nadi.StreamManager(server.controller) as manager,
    ):
        assert manager.create_scope("home")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus")
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "compose/prometheus.yml").read_text()
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/etc/prometheus/alerts.yml", str(DEPLOY / "prometheus/alerts.yml")))
    done = subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="needs docker compose")
@pytest.mark.parametrize("folder", ["compose", "cluster"])
def test_docker_compose_accepts_the_file(folder: str) -> None:
    command = ["docker", "compose", "-f", str(DEPLOY / folder / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
