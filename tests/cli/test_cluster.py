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
from nadi.cluster.admin import cluster_view as looking
from nadi.cluster.admin.metrics import MEANINGS
from nadi.cluster.membership_view import MembershipPace
from nadi.errors import InvalidArgumentError
from tests.cluster.servers import NOBODY_DIES
from tests.support.doors import doors, said_until_ready
from tests.support.waiting import until

READY_S = 60


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


class Up:
    """`nadi up` in a process of its own. said: what it printed until it was ready."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "nadi", "up", "--port", "0", *arguments]
        environment = {**os.environ, "NADI_LIMITS": f"{NOBODY_DIES},cluster_stable_s=600"}
        self.process = subprocess.Popen([*command, "-v"], stdout=subprocess.PIPE, text=True, env=environment)
        self.said = said_until_ready(self.process)
        told = doors(self.said)
        self.id = told.get("server", "").partition(",")[0]
        self.controller, self.rest = told.get("controller", ""), told.get("REST", "")


@pytest.fixture(autouse=True)
def _patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at a store waits longer for the beat of a server that stands still for a while."""
    monkeypatch.setattr(looking, "MembershipPace", lambda: MembershipPace(dead_s=60.0))


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
    """The states of all servers, as that one sees them."""
    with urlopen(f"{server.rest}/v1/cluster") as answer:
        return {one["id"]: one["state"] for one in json.load(answer)["servers"]}


def test_two_servers_and_one_that_drains(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "4", "--cache", str(tmp_path / "cache")) as one:
        assert one.said[0] == f"nadi is serving {url}"
        assert "4 of 4 containers" in one.said[1]
        with nadi.StreamManager(one.controller) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters")
        with up("--store", url) as two:
            with urlopen(f"{two.rest}/v1/cluster") as answer:  # by itself, though the controller is elsewhere
                assert json.load(answer)["seen_by"] == two.id
            report = status(url)
            assert report["controller"] == one.id
            assert {s["id"]: s["state"] for s in report["servers"]} == {one.id: "alive", two.id: "alive"}  # type: ignore[attr-defined]
            containers = report["containers"]
            assert [c["owner"] for c in containers] == [one.id] * 4  # type: ignore[attr-defined]
            assert all(c["state"] == "open" and c["epoch"] == 1 for c in containers)  # type: ignore[attr-defined]
            assert containers[0]["log_bytes"] >= 0  # type: ignore[index]
            # two has none yet, and it would take ten minutes until it got some: an operator is quicker
            code, output = run("cluster", "rebalance", "--rest", two.rest)
            assert code == 0, output
            assert one.id in output
            assert two.id in output
            code, output = run("cluster", "drain", one.id[:6], "--rest", two.rest, "--wait", "60")
            assert code == 0, output
            assert output.splitlines()[-1] == f"server {one.id} has no containers any more"
            while not (report := status(url))["controller"]:  # it begins where the container is open
                time.sleep(0.1)
            assert report["controller"] == two.id
            assert {s["id"]: s["state"] for s in report["servers"]} == {one.id: "draining", two.id: "alive"}  # type: ignore[attr-defined]
            with nadi.StreamManager(one.controller) as manager:
                assert manager.list_streams("home") == ["meters"]
            while seen(two)[one.id] != "draining":  # it reads what others say of themselves every five seconds
                time.sleep(0.1)
            code, output = run("cluster", "drain", two.id, "--rest", two.rest)
            assert code == 1
            assert "no other server" in output
            code, output = run("cluster", "drain", "nobody", "--rest", two.rest)
            assert code == 1
            assert "there is no server 'nobody'" in output
    code, output = run("cluster", "status", "--store", url)
    assert code == 0, output
    assert "active controller: none now" in output
    assert "No server is there." in output
    assert "released" in output


def test_a_rebalance_does_not_wait(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "8") as one, up("--store", url) as two:
        assert run("cluster", "rebalance", "--rest", one.rest)[0] == 0
        until(lambda: any(s["containers"] for s in status(url)["servers"] if s["id"] == two.id))  # type: ignore[attr-defined]


def test_a_server_of_no_cluster_says_so(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server:
        code, output = run("cluster", "drain", "--rest", server.rest_uri)
        assert code == 1
        assert "is of no cluster" in output
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"{server.rest_uri}/v1/cluster/drain", method="POST", data=b""))
        assert refused.value.code == 404
        refused.value.close()


def test_no_cluster_is_made_by_looking(tmp_path: Path) -> None:
    code, output = run("cluster", "status", "--store", f"file://{tmp_path}/none")
    assert code == 1
    assert "there is no folder" in output
    assert not (tmp_path / "none").exists()
    code, output = run("cluster", "status", "--store", f"file://{tmp_path}")
    assert code == 1
    assert "no cluster.json" in output
    code, output = run("cluster", "drain", "--rest", "http://127.0.0.1:1")
    assert code == 1
    assert "gives no answer" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--store", "file:///s", "--signing-key", "k"), "--signing-key applies to"),
        (("--wal-profile", "cost"), "--wal-profile applies to"),
        (("--tls-ca", "a"), "--tls-ca applies to"),
        (("--store-option", "a=b"), "--store-option applies to"),
        (("--store", "file:///s", "--workers", "2"), "--workers applies to"),
        (("--workers", "2", "--store-option", "a=b"), "--store-option applies to"),
        (("--workers", "2", "--signing-key", "k"), "--signing-key applies to"),
        (("--log", "nats://h/S"), "--log applies to"),
        (
            ("--store", "file:///s", "--log-option", "replicas=3"),
            "--log-option has no effect without --log",
        ),
        (("--store", "file:///s", "--log", "nats://h/S", "--log-option", "replicas"), "--log-option is key=value"),
        (("--store", "file:///s", "--log", "nats://h/S", "--log-option", "password=x"), "set in NATS_PASSWORD"),
        (("--store", "file:///s", "--tls-ca", "a"), "--tls-ca has no effect without --tls-cert"),
        (("--store", "ftp://s"), "a store is file://"),
        (("--store", "s3://b/p", "--store-option", "aws_secret_access_key=x"), "AWS_SECRET_ACCESS_KEY"),
        (("--store", "s3://b/p", "--tier2", "s3://b/q"), "--tier2 applies to"),
        (("--workers", "2", "--tier2", "s3://b/q"), "--tier2 applies to"),
        (("--log-max", "1MiB"), "--log-max can't be 1,048,576: "),
        (("--tier2", "s3://b/q", "--tier2-option", "secret_access_key=x"), "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_options_that_do_not_fit_together(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("up", *arguments)
    assert code == 2
    assert says in output
    assert len(output.splitlines()) == 1


def test_store_options() -> None:
    assert store_options("az://c/p", ["account_name=a", "Endpoint=http://x=y"]) == {
        "account_name": "a",
        "endpoint": "http://x=y",
    }
    assert store_options("s3://b", ["aws_sse_kms_key_id=1", "skip_signature=true"])
    for wrong, says in {
        "endpoint": "key=value",
        "=a": "key=value",
        "account_key=1": "AZURE_STORAGE_ACCOUNT_KEY",
        "azure_storage_sas_key=1": " AZURE_STORAGE_SAS_KEY ",
    }.items():
        with pytest.raises(InvalidArgumentError, match=says):
            store_options("az://c/p", [wrong])
    with pytest.raises(InvalidArgumentError, match="twice"):
        store_options("s3://b", ["region=a", "region=b"])


def test_a_store_that_holds_something_else_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, output = run("up", "--port", "0", "--store", f"file://{tmp_path}")
    assert code == 1
    assert "it isn't a cluster's" in output
    assert len(output.splitlines()) == 1


def test_each_server_tells_its_own_figures(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with up("--store", url, "--containers", "2") as one, up("--store", url) as two:
        with nadi.StreamManager(one.controller) as manager:
            manager.create_scope("home")
        ones, twos = figures(one.rest), figures(two.rest)
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


def figures(rest: str) -> dict[str, float]:
    with urlopen(f"{rest}/metrics") as answer:
        found = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in found for sample in family.samples}
