"""Hadoop's own HDFS, a name node and data nodes in one Java process, from Maven, with faults on command."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tests.compatibility.java_ready import CLASSPATH, DOWNLOAD_TIMEOUT_S, NotCompiled, get_ready

FOLDER = Path(__file__).parent
DATA_NODES = 3
_START_S = 120.0  # 10 s on an idle machine


class Cluster:
    """A small HDFS. url: of its name node, which keeps its port over a restart."""

    def __init__(self, folder: Path, data_nodes: int = DATA_NODES) -> None:
        pytest.importorskip("hdfs_native", reason="HDFS tests need hdfs-native: pip install nadi[hdfs]")
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath()]
        command += [str(FOLDER / "Cluster.java"), str(folder / "hdfs"), str(data_nodes)]
        self._log = (folder / "hdfs.log").open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder
        )
        try:
            self.port = int(self._answer(_START_S).removeprefix("ready "))
        except BaseException:
            self.close()
            raise
        self.url = f"hdfs://127.0.0.1:{self.port}"

    def run_command(self, *words: object, limit_s: float = 60.0) -> str:
        """Send a command and return the reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._answer(limit_s)
        assert not answer.startswith("failed"), answer
        return answer

    def _answer(self, limit_s: float) -> str:
        assert self._process.stdout is not None
        timer = threading.Timer(limit_s, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"HDFS ended or was silent for {limit_s} s: {self._log.read()[-3_000:]}")
        return line.strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


@functools.cache
def classpath() -> str:
    """Return the class path of Hadoop's mini cluster. Skips the test if Java or Maven is missing or can't download
    it."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("HDFS tests need Java and Maven (`mvn`)")
    with tempfile.TemporaryDirectory(prefix="nadi-hdfs-") as folder:
        file = Path(folder) / "classpath"
        goals = (CLASSPATH, f"-Dmdep.outputFile={file}", "-Dmdep.includeScope=runtime")
        try:
            reason = get_ready(FOLDER, goals=goals)
        except (NotCompiled, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"Maven can't list the libraries of HDFS: {error}") from error
        if reason:
            pytest.skip(f"HDFS could not be downloaded within {DOWNLOAD_TIMEOUT_S} s: {reason}")
        return file.read_text().strip() + os.pathsep
