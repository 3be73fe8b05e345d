"""One run of the JUnit tests in `java`, by Maven in a separate process."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.compatibility.java_ready import DOWNLOAD_TIMEOUT_S, PROJECT, lacking, maven

SOURCES = sorted((PROJECT / "src/test/java").rglob("*Test.java"))
JAVA_TIMEOUT_S = 660  # some more than Surefire's own, which is in pom.xml
# What a test may take that is the first to need Java: two processes of pytest may each download in turn.
FIRST_JAVA_TIMEOUT_S = 2 * DOWNLOAD_TIMEOUT_S + JAVA_TIMEOUT_S


def java_tests() -> list[str]:
    """Return `Class.method` of each JUnit test in the sources."""
    method = re.compile(r"@Test\s+(?:@\S.*\s+)*void (\w+)\(")
    return [f"{source.stem}.{name}" for source in SOURCES for name in method.findall(source.read_text())]


class JavaRun:
    """Run of JUnit tests. `outcomes` has for each test that ran the text of its failure, or "".

    properties: of `Scope.java`, without their prefix. Skips if Java or the client isn't available.
    """

    def __init__(self, names: Iterable[str], properties: Mapping[str, str], reports: Path) -> None:
        if shutil.which("mvn") is None or shutil.which("javac") is None:
            pytest.skip("the official Java client is tested where a JDK and Maven (`mvn`) are installed")
        methods: dict[str, list[str]] = defaultdict(list)
        for name in names:
            test, method = name.split(".")
            methods[test].append(method)
        if reason := lacking():
            pytest.skip(reason)
        command = ["surefire:test", "--offline", f"-Dnadi.reports={reports}"]
        command.append("-Dtest=" + ",".join(f"{test}#{'+'.join(names)}" for test, names in methods.items()))
        command += [f"-Dnadi.{name}={value}" for name, value in properties.items()]
        run = maven(command, PROJECT, JAVA_TIMEOUT_S)
        self.outcomes: dict[str, str] = {}
        for report in reports.glob("TEST-*.xml"):
            for case in ElementTree.parse(report).iter("testcase"):
                name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name'].removesuffix('()')}"
                problems = [element for element in case if element.tag in ("failure", "error", "skipped")]
                self.outcomes[name] = "\n".join(element.text or element.tag for element in problems)
        assert self.outcomes, f"no Java test ran; Maven said:\n{run.stdout[-4000:]}"

    def check(self, name: str) -> None:
        """Fail if the Java test failed."""
        assert name in self.outcomes, "the test didn't run: no report names it"
        assert not self.outcomes[name], self.outcomes[name]
