"""The Helm chart of deploy/helm: Helm and Kubernetes' schemas accept it, and it agrees with deploy/cluster.

Helm: https://helm.sh, or `go install helm.sh/helm/v3/cmd/helm@latest`. Schemas: `pip install kubernetes-validate`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from .test_deployed import KUBERNETES, ROOT, parsed, pod

CHART = ROOT / "deploy/helm/nadi"
ALONE = ("store.url=", "replicas=1")
EVERYTHING = (
    "kafka.enabled=true",
    "tls.clients=true",
    "tls.crl=true",
    "tls.clientUser=dns",
    "tls.issuer.name=streams",
    "users.file=ann:*:",
    "settings.wal-profile=latency",
    "service.type=LoadBalancer",
    "service.annotations.a=b",
    "podAnnotations.a=b",
    "nodeSelector.a=b",
    "tolerations[0].operator=Exists",
    "imagePullSecrets[0].name=registry",
    "serviceAccountName=nadi",
    "store.secret=-",
    "networkPolicy.clients=null",
)
CASES = [
    (),
    ALONE,
    EVERYTHING,
    (*ALONE, "tokenKey.secret=key", "storage.className=fast", "settings.tier2-option={region=a,endpoint=b}"),
    ("podDisruptionBudget.enabled=false", "networkPolicy.enabled=false", "resources=null"),
]
IDS = ["default", "alone", "everything", "alone-more", "less"]
every_case = pytest.mark.parametrize("values", CASES, ids=IDS)

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, timeout=60, check=False)


@functools.cache
def rendered(*values: str) -> list[dict[str, Any]]:
    """Return the documents for a release `nadi` in the namespace `streams`."""
    given = [word for value in values for word in ("--set", value)]
    made = helm("template", "nadi", str(CHART), "--namespace", "streams", "--kube-version", "1.33.0", *given)
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def of(kind: str, values: tuple[str, ...]) -> dict[str, Any]:
    (document,) = [document for document in rendered(*values) if document["kind"] == kind]
    return document


def pod_of(values: tuple[str, ...] = ()) -> dict[str, Any]:
    return of("StatefulSet", values)["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container_of(values: tuple[str, ...] = ()) -> dict[str, Any]:
    (container,) = pod_of(values)["containers"]
    return container  # type: ignore[no-any-return]


def test_lint_passes() -> None:
    linted = helm("lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout + linted.stderr


@every_case
@pytest.mark.parametrize("version", ["1.25.0", "1.33.0"])
def test_manifests_fit_kubernetes_schemas(values: tuple[str, ...], version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in rendered(*values):
        if document["kind"] != "Certificate":  # of cert-manager
            validator.validate(document, version, strict=True)


@every_case
def test_commands_are_valid(values: tuple[str, ...]) -> None:
    container = container_of(values)
    parsed(container["command"][1:])
    if "lifecycle" in container:
        parsed(container["lifecycle"]["preStop"]["exec"]["command"][2].split()[1:])


def test_default_values_agree_with_plain_manifests() -> None:
    ours, (plain,) = container_of(), pod()["containers"]
    assert sorted(ours["command"]) == sorted(plain["command"])
    for part in ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "env", "envFrom"):
        assert ours[part] == plain[part], part
    for part in ("terminationGracePeriodSeconds", "securityContext"):
        assert pod_of()[part] == pod()[part], part
    mounted = {(mount["name"], mount["mountPath"]) for mount in ours["volumeMounts"]}
    assert mounted - {(mount["name"], mount["mountPath"]) for mount in plain["volumeMounts"]} == {("temporary", "/tmp")}
    for kind in ("StatefulSet", "PodDisruptionBudget"):
        (theirs,) = [document for document in KUBERNETES if document["kind"] == kind]
        for part in ("replicas", "serviceName", "podManagementPolicy", "maxUnavailable"):
            assert of(kind, ())["spec"].get(part) == theirs["spec"].get(part), (kind, part)


@every_case
def test_selectors_ports_and_volumes_fit_together(values: tuple[str, ...]) -> None:
    stateful, documents = of("StatefulSet", values), rendered(*values)
    labels = stateful["spec"]["template"]["metadata"]["labels"].items()
    ports = {port["name"] for port in container_of(values)["ports"]}
    assert stateful["spec"]["selector"]["matchLabels"].items() <= labels
    assert stateful["spec"]["serviceName"] in [
        each["metadata"]["name"] for each in documents if each["kind"] == "Service"
    ]
    for document in documents:
        spec = document.get("spec", {})
        match document["kind"]:
            case "Service":
                assert spec["selector"].items() <= labels
                assert {port["name"] for port in spec["ports"]} <= ports
            case "PodDisruptionBudget":
                assert spec["selector"]["matchLabels"].items() <= labels
            case "NetworkPolicy":
                (ingress,) = spec["ingress"]
                assert spec["podSelector"]["matchLabels"].items() <= labels
                assert {port["port"] for port in ingress["ports"]} == ports
                assert ingress["from"][0]["podSelector"]["matchLabels"].items() <= labels
    volumes = {volume["name"] for volume in pod_of(values)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["spec"].get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in container_of(values)["volumeMounts"]} == volumes


def test_files_of_options_are_mounted_secrets() -> None:
    container = container_of(EVERYTHING)
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    files = [word.partition("=")[2] for word in container["command"] if word.startswith(("--tls-", "--users-"))]
    for file in files:
        assert not file.startswith("/") or file.rpartition("/")[0] in mounts, file
    assert {"--tls-client-ca=/tls/ca.crt", "--tls-client-crl=/tls/ca.crl"} <= set(container["command"])
    issued = of("Certificate", EVERYTHING)["spec"]
    (tls,) = [volume["secret"] for volume in pod_of(EVERYTHING)["volumes"] if volume["name"] == "tls"]
    assert issued["secretName"] == tls["secretName"]
    assert {"server auth", "client auth"} <= set(issued["usages"])  # servers present it to each other
    assert "*.nadi-servers.streams.svc.cluster.local" in issued["dnsNames"]


@pytest.mark.parametrize(
    ("value", "text"), [("store.url=", "set replicas to 1"), ("tokenKey.secret=k", "remove tokenKey.secret")]
)
def test_contradicting_values_are_refused(value: str, text: str) -> None:
    refused = helm("template", "nadi", str(CHART), "--kube-version", "1.33.0", "--set", value)
    assert refused.returncode != 0
    assert text in refused.stderr
