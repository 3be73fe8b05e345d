"""Command lines in docs/cluster.md and deploy/cluster are valid, and their servers start."""

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
    return [document for document in KUBERNETES if document["kind"] == kind]


def pod() -> dict[str, Any]:
    (stateful,) = of_kind("StatefulSet")
    return stateful["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def commands() -> Iterator[list[str]]:
    """Yield the arguments of all nadi commands."""
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
    """Parse a command line without running it; return the context of the innermost command."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    return command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("arguments", list(commands()), ids=lambda words: " ".join(words)[:60])
def test_documented_command_is_valid(arguments: list[str]) -> None:
    parsed(arguments)


def test_commands_finds_documented_commands() -> None:
    assert len(list(commands())) >= 12
    with pytest.raises(Exception, match="--stoer"):
        parsed(["up", "--stoer", "s3://b/p"])


def settings_of_up(arguments: list[str], folder: Path, tls: Certificate, users: Path) -> list[str]:
    """Replace store, addresses and files in a command line by local ones."""
    replacements = {
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
    words: list[str] = []
    context = parsed(arguments)
    for parameter in context.command.params:
        assert parameter.name is not None
        given = context.params[parameter.name]
        if given == parameter.get_default(context) or given in (None, (), []):
            continue
        value = replacements.get(parameter.name, given)
        if value is not None:
            words += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return words


@pytest.mark.parametrize("kind", ["compose", "kubernetes", "systemd"])
def test_deployed_server_starts(kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = {
        "compose": shlex.split(COMPOSE["services"]["node-1"]["command"])[1:],
        "kubernetes": pod()["containers"][0]["command"][1:],
        "systemd": shlex.split(re.findall(r"^ExecStart=\S+ (.*)$", UNIT, re.MULTILINE)[0]),
    }
    from tests.access.support import GRANTS, user, users_file

    tls = certificate(tmp_path_factory.mktemp("tls"))
    users = users_file(tmp_path / "settings", GRANTS)
    arguments = settings_of_up(lines[kind], tmp_path, tls, users)
    with up(*arguments) as server:
        credentials = None if kind == "compose" else user("root")
        trusted = None if kind == "compose" else tls.authority
        assert server.controller.startswith("tcp" if kind == "compose" else "tls")
        with nadi.StreamManager(server.controller, credentials=credentials, trust_store=trusted) as manager:
            manager.create_scope("home")


def test_kubernetes_manifests_fit_together() -> None:
    (budget,) = of_kind("PodDisruptionBudget")
    (stateful,) = of_kind("StatefulSet")
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert stateful["spec"]["selector"]["matchLabels"] == labels
    headless = next(service for service in of_kind("Service") if service["spec"].get("clusterIP") == "None")
    assert headless["metadata"]["name"] == stateful["spec"]["serviceName"]
    (container,) = pod()["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths["readinessProbe"] == "/v1/health/readiness"
    assert paths["livenessProbe"] == paths["startupProbe"] == "/v1/health/liveness"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"controller": 9090, "rest": 9091, "store": 12345}
    assert pod()["terminationGracePeriodSeconds"] > 120  # longer than a drain
