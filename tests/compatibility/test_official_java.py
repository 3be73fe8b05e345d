"""The official Java client against nadi: JUnit tests in `java`, each of which is a test of its own here.

All that are selected run together, once, in one Java process, when the first of them is due. What is
reported for each comes from Surefire's files; one that they don't name has failed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard
from xml.etree import ElementTree

import pytest
from _pytest.mark import ParameterSet

from tests.compatibility.conftest import OFFICIAL_JAVA
from tests.compatibility.recording_server import RecordingServer

PROJECT = Path(__file__).with_name("java")
SOURCES = sorted((PROJECT / "src/test/java").rglob("*Test.java"))
JAVA_TIMEOUT_S = 150
FIRST_DOWNLOAD_TIMEOUT_S = 400

# What Maven says where the local repository lacks something, and where Maven Central is out of reach.
NOT_CACHED = "offline mode"
OUT_OF_REACH = re.compile(r"Could not transfer artifact|Unknown host|Connection refused|Connection timed out")

# Java tests of what the server does not do yet, and what it lacks. They are not run, for they wait for it.
PENDING = {"EventTimeTest.aReaderLearnsTheTimesThatItsWriterNoted": "the controller makes no watermarks yet"}


def _java_tests() -> Iterator[ParameterSet]:
    """`Class.method` of each JUnit test in the sources."""
    method = re.compile(r"@Test\s+void (\w+)\(")
    for source in SOURCES:
        for found in method.findall(source.read_text()):
            name = f"{source.stem}.{found}"
            lacks = PENDING.get(name)
            yield pytest.param(name, marks=[pytest.mark.xfail(run=False, reason=lacks)] if lacks else [])


class JavaRun:
    """One run of Maven. `outcomes` has for each test that ran the text of its failure, or "" for none."""

    def __init__(self, names: Iterable[str], uris: Mapping[str, str], reports: Path) -> None:
        methods: dict[str, list[str]] = defaultdict(list)
        for name in names:
            test, method = name.split(".")
            methods[test].append(method)
        command = ["mvn", "--batch-mode", "--quiet", "test", f"-Dnadi.reports={reports}"]
        command.append("-Dtest=" + ",".join(f"{test}#{'+'.join(found)}" for test, found in methods.items()))
        command += [f"-Dnadi.uri.{test}={uri}" for test, uri in uris.items()]
        run = _maven([*command, "--offline"], JAVA_TIMEOUT_S)
        if NOT_CACHED in run.stdout:
            run = _maven(command, FIRST_DOWNLOAD_TIMEOUT_S)
            if OUT_OF_REACH.search(run.stdout):
                pytest.skip("the official Java client is not in Maven's local repository, and Maven Central is away")
        self.outcomes: dict[str, str] = {}
        for report in reports.glob("TEST-*.xml"):
            for case in ElementTree.parse(report).iter("testcase"):
                name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name'].removesuffix('()')}"
                problems = [found for found in case if found.tag in ("failure", "error", "skipped")]
                self.outcomes[name] = "\n".join(found.text or found.tag for found in problems)
        assert self.outcomes, f"no Java test ran; Maven said:\n{run.stdout[-4000:]}"


def _maven(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="module")
def java_run(
    request: pytest.FixtureRequest, recording_server: RecordingServer, tmp_path_factory: pytest.TempPathFactory
) -> JavaRun:
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("the official Java client is tested where a JDK and Maven (`mvn`) are installed")
    selected = {str(item.callspec.params["name"]) for item in request.session.items if _is_java_test(item)}
    names = sorted(selected - PENDING.keys())
    tests = {name.split(".")[0] for name in names}
    uris = {test: recording_server.open_door(OFFICIAL_JAVA, test).controller_uri for test in tests}
    try:
        return JavaRun(names, uris, tmp_path_factory.mktemp("surefire"))
    finally:
        for test in tests:
            recording_server.close_doors(test)


def _is_java_test(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and "java_run" in item.fixturenames


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_DOWNLOAD_TIMEOUT_S + JAVA_TIMEOUT_S)
@pytest.mark.parametrize("name", list(_java_tests()))
def test_java(name: str, java_run: JavaRun) -> None:
    assert name in java_run.outcomes, "no report names this test: it did not run"
    assert not java_run.outcomes[name], java_run.outcomes[name]
