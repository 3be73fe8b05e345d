"""How the Java tests come by what they need, from a Maven registry on this machine that can refuse and be away.

The registry serves the files of this user's own local repository, where these hold what the Java tests need.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.compatibility.java_ready import PROJECT, get_ready, lacking
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S

LOCAL_REPOSITORY = Path.home() / ".m2/repository"
LIST = "io/grpc/grpc-bom/1.47.0/grpc-bom-1.47.0.pom"
POM_OF_A_FILE = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>nadi</groupId> <artifactId>one-file</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>io.grpc</groupId> <artifactId>grpc-bom</artifactId> <version>1.47.0</version>
        <type>pom</type> <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
</project>
"""

pytestmark = [
    pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S),  # another process may be getting ready
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven (`mvn`) is not installed"),
]


class Registry:
    """`asked` has the paths in the order of their requests; those in `refusing` are refused once."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.refusing: set[str] = set()
        registry = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                if self.path in registry.refusing:
                    registry.refusing.discard(self.path)
                    self.send_error(HTTPStatus.FORBIDDEN)
                else:
                    super().do_GET()

            def log_message(self, *arguments: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    if reason := lacking():
        pytest.skip(reason)
    if not (LOCAL_REPOSITORY / LIST).is_file():
        pytest.skip("Maven's local repository is in another folder")
    registry = Registry(LOCAL_REPOSITORY)
    yield registry
    registry.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The tests' pom.xml alone: there is nothing to compile."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(PROJECT / "pom.xml", folder)
    return folder


def settings(home: Path, registry_url: str) -> dict[str, str]:
    """A Maven that has nothing yet and knows this registry only."""
    folder = home / ".m2"
    folder.mkdir(parents=True)
    mirror = f"<mirror><id>here</id><mirrorOf>*</mirrorOf><url>{registry_url}</url></mirror>"
    (folder / "settings.xml").write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    return {"user.home": str(home)}


@pytest.mark.compatibility
def test_a_registry_that_refuses_for_a_moment_is_asked_again(
    project: Path, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.compatibility.java_ready.PAUSES_S", (0.0, 0.0))
    (project / "pom.xml").write_text(POM_OF_A_FILE)
    registry.refusing |= {f"/{LIST}"}
    assert get_ready(project, settings(tmp_path / "home", registry.url)) == ""
    assert registry.asked.count(f"/{LIST}") == 2


@pytest.mark.slow
@pytest.mark.compatibility
def test_the_java_tests_leave_no_version_to_the_registry(project: Path, tmp_path: Path, registry: Registry) -> None:
    assert get_ready(project, settings(tmp_path / "home", registry.url)) == ""
    assert not [path for path in registry.asked if "maven-metadata" in path]
    asked = len(registry.asked)
    assert get_ready(project, {"user.home": str(tmp_path / "home")}) == ""
    assert len(registry.asked) == asked


@pytest.mark.compatibility
def test_a_registry_that_refuses_for_good_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.compatibility.java_ready.PAUSES_S", (0.0,))
    registry = Registry(tmp_path)  # which has nothing
    try:
        reason = get_ready(project, settings(tmp_path / "home", registry.url))
    finally:
        registry.close()
    assert "can't download what the Java tests need" in reason
    assert registry.url in reason
    assert len(registry.asked) == 2, "Maven must not go by what it was told before"


@pytest.mark.compatibility
def test_a_registry_that_is_away_is_not_waited_for(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.compatibility.java_ready.PAUSES_S", (1000.0,))
    reason = get_ready(project, settings(tmp_path / "home", "http://127.0.0.1:9"))
    assert "can't download what the Java tests need" in reason
    assert "http://127.0.0.1:9" in reason
