"""`nadi up --store` and `nadi cluster` with real servers that share a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import nadi
from nadi.cli.admin.storing import store_options
from nadi.cli.app import app
from nadi.cluster.admin import cluster_view
from nadi.cluster.admin.metrics import MEANINGS
from nadi.cluster.membership_view import MembershipPace
from nadi.errors import InvalidArgumentError
from tests.cluster.servers import NOBODY_DIES
from tests.support.server_output import addresses_in, read_until_ready
from tests.support.waiting import until

READY_S = 60


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


class Up:
    """`nadi up` in a separate process. printed: its output until it was ready."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "nadi", "up", "--port", "0", *arguments]
        environment = {**os.environ, "NADI_LIMITS": f"{NOBODY_DIES},cluster_stable_s=600"}
        self.process = subprocess.Popen([*command, "-v"], stdout=subprocess.PIPE, text=True, env=environment)
        self.printed = read_until_ready(self.process)
        addresses = addresses_in(self.printed)
        self.id = addresses.get("server", "").partition(",")[0]
        self.controller, self.rest = addresses.get("controller", ""), addresses.get("REST", "")


@pytest.fixture(autouse=True)
def _patient_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nadi cluster status` waits longer for the heartbeat of a server on a busy machine."""
    monkeypatch.setattr(cluster_view, "MembershipPace", lambda: MembershipPace(dead_s=60.0))


@contextmanager
def up(*arguments: str) -> Iterator[Up]:
    server = Up(*arguments)
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(READY_S) == 0
        assert server.process.stdout is not None
        server.process.stdout.close()


def status(url: str) -> dict[str, object]:
    code, output = run("cluster", "status", "--store", url, "-o", "json")
    assert code == 0, output
    return json.loads(output)  # type: ignore[no-any-return]


def seen(server: Up) -> dict[str, str]:
    """Return the states of all servers as seen by this one."""
    with urlopen(f"{server.rest}/v1/cluster") as answer:
        return {each["id"]: each["state"] for each in json.load(answer)["servers"]}


def test_drain_of_one_of_two_servers_moves_its_containers(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "4", "--cache", str(tmp_path / "cache")) as one:
        assert one.printed[0] == f"nadi is serving {url}"
        assert "4 of 4 containers" in one.printed[1]
        with nadi.StreamManager(one.controller) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
        with up("--store", url) as two:
            with urlopen(f"{two.rest}/v1/cluster") as answer:  # not forwarded, though the controller is elsewhere
                assert json.load(answer)["reported_by"] == two.id
            report = status(url)
            assert report["controller"] == one.id
            assert {s["id"]: s["state"] for s in report["servers"]} == {one.id: "alive", two.id: "alive"}  # type: ignore[attr-defined]
            containers = report["containers"]
            assert [c["owner"] for c in containers] == [one.id] * 4  # type: ignore[attr-defined]
            assert all(c["state"] == "open" and c["epoch"] == 1 for c in containers)  # type: ignore[attr-defined]
            assert containers[0]["log_bytes"] >= 0  # type: ignore[index]
            # two would wait ten minutes for containers without an explicit rebalance
            code, output = run("cluster", "rebalance", "--rest", two.rest)
            assert code == 0, output
            assert one.id in output
            assert two.id in output
            code, output = run("cluster", "drain", one.id[:6], "--rest", two.rest, "--wait", "60")
            assert code == 0, output
            assert output.splitlines()[-1] == f"server {one.id} is drained"
            while not (report := status(url))["controller"]:  # it starts where the container is open
                time.sleep(0.1)
            assert report["controller"] == two.id
            assert {s["id"]: s["state"] for s in report["servers"]} == {one.id: "draining", two.id: "alive"}  # type: ignore[attr-defined]
            with nadi.StreamManager(one.controller) as manager:
                assert manager.list_streams("home") == ["meters"]
            while seen(two)[one.id] != "draining":  # it reads the others' records every five seconds
                time.sleep(0.1)
            assert run("cluster", "drain", two.id, "--rest", two.rest)[0] == 1, "no other server is alive"
            code, output = run("cluster", "drain", "unknown", "--rest", two.rest)
            assert code == 1
            assert "'unknown'" in output
    code, output = run("cluster", "status", "--store", url)
    assert code == 0, output
    assert "active controller: none" in output
    assert "No servers found." in output
    assert "released" in output


def test_rebalance_does_not_wait_for_stable_membership(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "8") as one, up("--store", url) as two:
        assert run("cluster", "rebalance", "--rest", one.rest)[0] == 0
        until(lambda: any(s["containers"] for s in status(url)["servers"] if s["id"] == two.id))  # type: ignore[attr-defined]


def test_drain_of_a_server_without_cluster_fails(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server:
        assert run("cluster", "drain", "--rest", server.rest_uri)[0] == 1
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"{server.rest_uri}/v1/cluster/drain", method="POST", data=b""))
        assert refused.value.code == 404
        refused.value.close()


def test_cluster_status_of_a_missing_cluster_creates_nothing(tmp_path: Path) -> None:
    assert run("cluster", "status", "--store", f"file://{tmp_path}/none")[0] == 1
    assert not (tmp_path / "none").exists()
    code, output = run("cluster", "status", "--store", f"file://{tmp_path}")
    assert code == 1
    assert "cluster.json" in output
    code, output = run("cluster", "drain", "--rest", "http://127.0.0.1:1")
    assert code == 1
    assert "http://127.0.0.1:1/" in output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--store", "file:///s", "--signing-key", "k"), "--signing-key"),
        (("--wal-profile", "cost"), "--wal-profile"),
        (("--tls-ca", "a"), "--tls-ca"),
        (("--store-option", "a=b"), "--store-option"),
        (("--store", "file:///s", "--workers", "2"), "--workers"),
        (("--workers", "2", "--store-option", "a=b"), "--store-option"),
        (("--workers", "2", "--signing-key", "k"), "--signing-key"),
        (("--log", "nats://h/S"), "--log"),
        (("--store", "file:///s", "--log-option", "replicas=3"), "--log-option"),
        (("--store", "file:///s", "--log", "nats://h/S", "--log-option", "replicas"), "--log-option"),
        (("--store", "file:///s", "--log", "nats://h/S", "--log-option", "password=x"), "NATS_PASSWORD"),
        (("--store", "file:///s", "--tls-ca", "a"), "--tls-cert"),
        (("--store", "ftp://s"), "file://"),
        (("--store", "s3://b/p", "--store-option", "aws_secret_access_key=x"), "AWS_SECRET_ACCESS_KEY"),
        (("--store", "s3://b/p", "--tier2", "s3://b/q"), "--tier2"),
        (("--workers", "2", "--tier2", "s3://b/q"), "--tier2"),
        (("--log-max", "1MiB"), "--log-max"),
        (("--tier2", "s3://b/q", "--tier2-option", "secret_access_key=x"), "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_up_with_conflicting_options_names_one_of_them(
    arguments: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("up", *arguments)
    assert code == 2
    assert named in output
    assert len(output.splitlines()) == 1


def test_store_options_with_secrets_or_repeated_keys_are_rejected() -> None:
    assert store_options("az://c/p", ["account_name=a", "Endpoint=http://x=y"]) == {
        "account_name": "a",
        "endpoint": "http://x=y",
    }
    assert store_options("s3://b", ["aws_sse_kms_key_id=1", "skip_signature=true"])
    for wrong in ("endpoint", "=a"):
        with pytest.raises(InvalidArgumentError):
            store_options("az://c/p", [wrong])
    for secret, variable in {
        "account_key=1": "AZURE_STORAGE_ACCOUNT_KEY",
        "azure_storage_sas_key=1": " AZURE_STORAGE_SAS_KEY ",
    }.items():
        with pytest.raises(InvalidArgumentError, match=variable):
            store_options("az://c/p", [secret])
    with pytest.raises(InvalidArgumentError):
        store_options("s3://b", ["region=a", "region=b"])


def test_up_with_a_foreign_folder_as_store_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, output = run("up", "--port", "0", "--store", f"file://{tmp_path}")
    assert code == 1
    assert "notes.txt" in output
    assert len(output.splitlines()) == 1


def test_metrics_of_each_server_are_its_own(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "2") as one, up("--store", url) as two:
        with nadi.StreamManager(one.controller) as manager:
            manager.create_scope("home")
        ones, twos = metrics_of(one.rest), metrics_of(two.rest)
        assert set(ones) >= {name + ("_total" if m.kind == "counter" else "") for name, m in MEANINGS.items()} - {
            "nadi_cluster_log_put_seconds"
        }
        assert ones["nadi_cluster_containers"] == 2
        assert twos["nadi_cluster_containers"] == 0
        assert (ones["nadi_cluster_all_containers"], twos["nadi_cluster_all_containers"]) == (2, 2)
        assert ones["nadi_cluster_controller"] == 1
        assert ones["nadi_cluster_log_put_seconds_count"] > 2  # two seals, and frames
        assert ones["nadi_cluster_log_put_bytes_total"] > 200
        assert "nadi_streams" in ones
        assert "nadi_streams" not in twos
        assert twos["nadi_cluster_lease_valid"] == 1
        request = Request(f"{one.rest}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urlopen(request) as answer:
            text = answer.read().decode()
        families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        assert {family.name for family in families} >= set(MEANINGS)


def metrics_of(rest: str) -> dict[str, float]:
    with urlopen(f"{rest}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}
