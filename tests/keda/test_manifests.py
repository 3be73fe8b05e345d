"""The manifests of deploy/keda: a server answers the requests that KEDA would derive from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import nadi
from nadi.cli.app import app
from nadi.client import StreamDataRetention
from nadi.controller.external_scaler import authorization, trigger
from nadi.standalone import EmbeddedServer, ServerSecurity
from tests.access.support import PASSWORD, Certificate, certificate, password_hash, users_file

from .support import keda

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "keda"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
CREDENTIALS = "credentials.yaml"


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


def the(file: str, kind: str, name: str) -> dict[str, Any]:
    (document,) = [
        candidate
        for candidate in documents(file) + (documents(CREDENTIALS) if file != CREDENTIALS else [])
        if candidate["kind"] == kind and candidate["metadata"]["name"] == name
    ]
    return document


TRIGGERS = [
    (file, one["metadata"]["name"], asked)
    for file in FILES
    for one in documents(file)
    if one["kind"] == "ScaledObject"
    for asked in one["spec"]["triggers"]
]


def resolved(file: str, name: str, asked: dict[str, Any]) -> dict[str, str]:
    """Return what the scaler is sent: a `FromEnv` has the variable's value in the scaled container, or is missing."""
    target = the(file, "ScaledObject", name)["spec"]["scaleTargetRef"]
    pod = the(file, target.get("kind", "Deployment"), target["name"])["spec"]["template"]["spec"]
    environment = {one["name"]: _value(file, one) for one in pod["containers"][0].get("env", ())}
    sent: dict[str, str] = {}
    for key, value in asked["metadata"].items():
        assert isinstance(value, str), f"{key}: Kubernetes accepts only strings"
        if not key.endswith("FromEnv"):
            sent[key] = value
        elif environment.get(value):
            sent[key] = environment[value]
    return sent


def _value(file: str, variable: dict[str, Any]) -> str:
    if "value" in variable:
        return str(variable["value"])
    asked = variable["valueFrom"]["secretKeyRef"]
    return str(the(file, "Secret", asked["name"])["stringData"][asked["key"]])


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tls: Certificate) -> Iterator[EmbeddedServer]:
    folder = tmp_path_factory.mktemp("manifests")
    password_hash.cache_clear()
    with pytest.MonkeyPatch.context() as cheap:
        cheap.setattr("nadi.access.users._LOG_COST", 4)
        users = users_file(folder, {"root": "prn::*,READ_UPDATE", "bills": "prn::/scope:home/*,READ"})
    password_hash.cache_clear()
    security = ServerSecurity(users_file=str(users), tls_certificate=str(tls.certificate), tls_key=str(tls.key))
    with nadi.embedded(folder / "data", security=security) as server:
        root = nadi.Basic("root", PASSWORD)
        with nadi.StreamManager(server.controller_uri, credentials=root, trust_store=tls.authority) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters", 5)
            retention = StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT
            manager.reader_group_manager("home").create_reader_group("readers", "meters", retention=retention)
        yield server


def test_manifests_exist() -> None:
    assert len({file for file, _, _ in TRIGGERS}) == len(FILES) - 1 == 4
    listed = (ROOT / "deploy" / "README.md").read_text()
    assert all(f"| `{file}` |" in listed for file in FILES)


@pytest.mark.parametrize(("file", "name", "asked"), TRIGGERS, ids=[file for file, _, _ in TRIGGERS])
async def test_a_trigger_is_answered(
    server: EmbeddedServer, tls: Certificate, file: str, name: str, asked: dict[str, Any]
) -> None:
    metadata = resolved(file, name, asked)
    assert metadata["scalerAddress"] == "nadi.streams:9090"
    (authority,) = the(file, "TriggerAuthentication", asked["authenticationRef"]["name"])["spec"]["configMapTargetRef"]
    assert authority["parameter"] == "caCert"
    assert "BEGIN CERTIFICATE" in the(file, "ConfigMap", authority["name"])["data"][authority["key"]]
    assert metadata["usernameFromEnv"] == "bills"
    metadata["passwordFromEnv"] = PASSWORD  # replaces the placeholder
    async with keda(server.controller_uri, tls.authority) as asking:
        spec = await asking.spec(**metadata)
        assert spec.targetSizeFloat == float(asked["metadata"]["target"])
        assert await asking.value(**metadata) == (5 if metadata["metric"] == "segments" else 0)
        assert not await asking.is_active(**metadata)
        if asked["type"] == "external-push":
            assert (await anext(aiter(asking.watch(**metadata)))).result is False
        else:
            assert asked["type"] == "external"


@pytest.mark.parametrize("file", [file for file in FILES if file != CREDENTIALS])
def test_manifest_references_exist(file: str) -> None:
    for document in documents(file):
        if document["kind"] == "Deployment":
            spec = document["spec"]
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            assert "replicas" not in spec, "KEDA sets the number, and an apply would reset it"
            for volume in spec["template"]["spec"]["volumes"]:
                assert the(file, "ConfigMap", volume["configMap"]["name"])


@pytest.mark.parametrize("file", ["function.yaml", "knative.yaml"])
def test_the_commands_of_functions_are_nadis(file: str) -> None:
    (pod,) = [one["spec"]["template"]["spec"] for one in documents(file) if one["kind"] == "Deployment"]
    (container,) = pod["containers"]
    command: Any = get_command(app)
    nadis, *words = container["args"]
    assert nadis == "nadi"
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    options = command.make_context("run", list(words)).params
    assert options["controller"] == "tls://nadi.streams:9090"
    (trust,) = [one for one in command.params if one.name == "trust_store"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables[trust.envvar] == "/etc/nadi/authority.pem"
    names = ("pravega_client_auth_method", "pravega_client_auth_username", "pravega_client_auth_password")
    assert set(names) < set(variables)


def test_the_triggers_of_the_guide() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "keda.md").read_text(), re.DOTALL)
    examples = [yaml.safe_load(block) for block in blocks]
    triggers = [trigger for block in examples for trigger in block.get("spec", block)["triggers"]]
    assert [trigger(one["metadata"]).metric.value for one in triggers] == ["segments", "lag"]
    assert authorization(triggers[1]["metadata"]) is not None
