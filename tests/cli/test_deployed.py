"""The command lines of the guide to clusters and of deploy/cluster are ones that `nadi` takes, and they serve."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import nadi
from nadi.cli.app import app
from tests.access.support import Certificate, certificate

from .test_cluster import up

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/cluster"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "nadi.service").read_text()


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in KUBERNETES if one["kind"] == kind]


def pod() -> dict[str, Any]:
    (stateful,) = of_kind("StatefulSet")
    return stateful["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def commands() -> Iterator[list[str]]:
    """All commands of nadi, without the name of the program."""
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / "docs/cluster.md").read_text(), re.DOTALL):
        yield from (shlex.split(line)[1:] for line in block.splitlines() if line.startswith("nadi "))
    for name, service in COMPOSE["services"].items():
        if name.startswith("node-"):
            yield shlex.split(service["command"])[1:]
    (container,) = pod()["containers"]
    yield container["command"][1:]
    yield shlex.split(container["lifecycle"]["preStop"]["exec"]["command"][2])[1:]
    (line,) = re.findall(r"^ExecStart=/opt/nadi/bin/nadi (.*)$", UNIT, re.MULTILINE)
    yield shlex.split(line)


def parsed(arguments: list[str]) -> Any:
    """The context of the innermost command, as its options were understood; nothing is run."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("arguments", list(commands()), ids=lambda words: " ".join(words)[:60])
def test_each_command_is_one(arguments: list[str]) -> None:
    parsed(arguments)


def test_there_are_commands() -> None:
    assert len(list(commands())) >= 12
    with pytest.raises(Exception, match="No such option"):
        parsed(["up", "--stoer", "s3://b/p"])


def settings_of_up(arguments: list[str], folder: Path, tls: Certificate, users: Path) -> list[str]:
    """The command line with a folder for the bucket, loopback, and files that there are."""
    here = {
        "store": f"file://{folder}/store",
        "store_options": None,
        "host": "127.0.0.1",
        "advertised_host": "127.0.0.1",
        "cache": str(folder / "cache"),
        "tls_certificate": str(tls.certificate),
        "tls_key": str(tls.key),
        "tls_ca": str(tls.authority),
        "users_file": str(users),
    }
    made: list[str] = []
    context = parsed(arguments)
    for parameter in context.command.params:
        assert parameter.name is not None
        given = context.params[parameter.name]
        if given == parameter.get_default(context) or given in (None, (), []):
            continue
        value = here.get(parameter.name, given)
        if value is not None:
            made += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return made


@pytest.mark.parametrize("which", ["compose", "kubernetes", "systemd"])
def test_its_servers_serve(which: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = {
        "compose": shlex.split(COMPOSE["services"]["node-1"]["command"])[1:],
        "kubernetes": pod()["containers"][0]["command"][1:],
        "systemd": shlex.split(re.findall(r"^ExecStart=\S+ (.*)$", UNIT, re.MULTILINE)[0]),
    }
    from tests.access.support import GRANTS, user, users_file

    tls = certificate(tmp_path_factory.mktemp("tls"))
    users = users_file(tmp_path / "settings", GRANTS)
    arguments = settings_of_up(lines[which], tmp_path, tls, users)
    with up(*arguments) as server:
        credentials = None if which == "compose" else user("root")
        trusted = None if which == "compose" else tls.authority
        assert server.controller.startswith("tcp" if which == "compose" else "tls")
        with nadi.StreamManager(server.controller, credentials=credentials, trust_store=trusted) as manager:
            manager.create_scope("home")


def test_what_kubernetes_needs() -> None:
    (budget,) = of_kind("PodDisruptionBudget")
    (stateful,) = of_kind("StatefulSet")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    headless = next(one for one in of_kind("Service") if one["spec"].get("clusterIP") == "None")
    assert headless["metadata"]["name"] == stateful["spec"]["serviceName"]
    (container,) = pod()["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths["readinessProbe"] == "/v1/health/readiness"
    assert paths["livenessProbe"] == paths["startupProbe"] == "/v1/health/liveness"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"controller": 9090, "rest": 9091, "store": 12345}
    assert pod()["terminationGracePeriodSeconds"] > 120  # as long as draining may take
