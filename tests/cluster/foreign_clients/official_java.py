"""Pravega's official Java client as a verifier: a writer, transactions and the readers of a group, in one program; see
`java`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.foreign_clients.verifier import MissingError, Transcript
from tests.cluster.processes.client import Client, Promised
from tests.cluster.processes.cluster import Cluster
from tests.compatibility.java_ready import ClientMissingError, classpath
from tests.crash.load import SCOPE, STREAM, Ledger

NUMBER = 100  # its keys begin with w100 and t100
_SOURCES = Path(__file__).with_name("java")
_COMPILED_S = 120.0
_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


class OfficialJava:
    """Verifier that connects to all servers."""

    name = "java"

    def __init__(self, cluster: Cluster, pause_s: float) -> None:
        folder = cluster.folder / self.name
        folder.mkdir()
        uri = "tcp://" + ",".join(f"{server.host}:{server.port}" for server in cluster.servers)
        program = [*_compiled(folder), uri, SCOPE, STREAM, str(NUMBER), str(folder), str(round(pause_s * 1000))]
        self._client = Client("the official Java client", program, folder)
        self._transcript = Transcript(folder / "read", self._client.name)

    def check(self) -> None:
        self._client.check()
        self._transcript.take()

    def progress(self) -> dict[str, float]:
        return self._client.progress()

    def settle(self) -> None:
        self._client.signal()
        self._client.await_file("settled", 240.0)

    def verify(self, ledger: Ledger) -> list[Promised]:
        self._transcript.await_all(ledger)
        return [self._client.promised()]

    def close(self) -> None:
        self._client.close()


def _compiled(folder: Path) -> list[str]:
    """Compile the program; return its command without arguments. MissingError: Java or the client isn't available."""
    try:
        libraries = classpath(folder)
    except ClientMissingError as error:
        raise MissingError(str(error)) from error
    classes = folder / "classes"
    sources = map(str, sorted(_SOURCES.glob("*.java")))
    command = ["javac", "-d", str(classes), "-cp", libraries, *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILED_S)
    assert done.returncode == 0, f"the Java program doesn't compile:\n{done.stderr}"
    return ["java", *_OPTIONS, "-cp", f"{classes}:{libraries}", "Main"]
