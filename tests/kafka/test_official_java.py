"""The official Java client with topics, transactions, rebalances and the admin API, as `java/KafkaCheck.java` does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import nadi
from bench.jars import BROKER, Missing, jars_of
from nadi.access.permissions import Permissions
from nadi.access.users import User, hash_password, write_users
from nadi.config import ServerSecurity
from tests.kafka.support import SCOPE, Door

ALWAYS = ("transactional", "cooperative")
CHECKS = (*ALWAYS, "idempotent", "range", "times", "topics", "records", "groups", "cluster")
pytestmark = [pytest.mark.compatibility, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        jars = os.pathsep.join(map(str, jars_of(BROKER)))
    except Missing as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("classes")
    source = Path(__file__).with_name("java") / "KafkaCheck.java"
    subprocess.run(["javac", "-nowarn", "-d", folder, "-cp", jars, source], check=True, timeout=120)
    return f"{folder}{os.pathsep}{jars}"


@pytest.mark.parametrize(
    "check", [pytest.param(check, marks=() if check in ALWAYS else pytest.mark.slow) for check in CHECKS]
)
def test_official_java_client(door: Door, classpath: str, check: str) -> None:
    run_check(classpath, door.address, check)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", pytest.param("SCRAM-SHA-512", marks=pytest.mark.slow)])
def test_official_java_client_logs_in_by_scram(
    tmp_path: Path, classpath: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = {"sha256": 4096, "sha512": 4096}  # Java's client takes seconds for the usual ones
    monkeypatch.setattr("nadi.access.users._ITERATIONS", cheap)
    grants = Permissions.parse(f"prn::/scope:{SCOPE}/*,READ_UPDATE;prn::/scope:{SCOPE},READ_UPDATE")
    write_users(tmp_path / "users", {"ann": User("ann", hash_password("secret"), grants)})
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required username=ann password=secret;"
    security = ("security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", mechanism, "sasl.jaas.config", login)
    with nadi.embedded(
        tmp_path / "data", security=ServerSecurity(users_file=tmp_path / "users"), kafka_port=0
    ) as server:
        run_check(classpath, server.kafka_address, "transactional", *security)


def run_check(classpath: str, address: str, check: str, *options: str) -> None:
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "KafkaCheck", address, check, *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
