"""The official Java client with topics, transactions, rebalances and the admin API, as `java/KafkaCheck.java` does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.jars import BROKER, Missing, jars_of
from tests.kafka.support import Door

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
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "KafkaCheck", door.address, check]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
