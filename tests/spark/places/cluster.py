"""A standalone cluster of Spark, a nadi server and a driver, each on its own node (`network.py`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark

import nadi

from .guide import ROOT, command
from .network import Network, Node

SPARK = Path(pyspark.__file__).parent
_WAIT_S = 240
_PORT = 9090


class Cluster:
    """A master, `workers` with one core each, and a server whose manager is `manager`.

    python, path: the workers' PYSPARK_PYTHON and PYTHONPATH. drivers: a folder that only the driver sees.
    """

    def __init__(self, network: Network, folder: Path, *, python: str, path: str = "", workers: int = 2) -> None:
        self._folder = folder
        self.drivers = folder / "driver"
        self.drivers.mkdir(exist_ok=True)
        self._spark = {"SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m", "SPARK_CONF_DIR": str(folder)}
        self._tasks = {"PYSPARK_PYTHON": python, "PYTHONPATH": path}
        self._server, self._master, self._driver = network.node(), network.node(), network.node()
        self.workers = [network.node() for _ in range(workers)]
        self.controller = f"tcp://{self._server.address}:{_PORT}"
        self.master = f"spark://{self._master.address}:7077"
        self._start_server()
        self._start_spark()
        wait_for("the server", lambda: answers(self._server.address, _PORT), self.said)
        self.manager = nadi.StreamManager(self.controller)

    def _start_server(self) -> None:
        # on every address of its node, and clients are given the one at which they reach it
        main = f"'{sys.executable}' -c 'from nadi.cli.app import main; main()'"
        folder = f"--data '{self._folder / 'data'}' --insecure-public"
        up = command(
            "nadi up",
            {"nadi up": f"exec {main} up", "nadi.example": self._server.address, "--users-file users": folder},
        )
        self._start(self._server, "server", ["bash", "-ec", up], {"PYTHONPATH": source_path()})

    def _start_spark(self) -> None:
        spark_class = [str(SPARK / "bin" / "spark-class")]
        deploy = "org.apache.spark.deploy"
        web = ["--port", "7077", "--webui-port", "8080"]
        master = [*spark_class, f"{deploy}.master.Master", "--host", self._master.address, *web]
        self._start(self._master, "master", master, self._spark | {"SPARK_LOCAL_IP": self._master.address})
        for number, node in enumerate(self.workers):
            room = ["--cores", "1", "--memory", "600m", "--work-dir", str(self._folder / f"work{number}")]
            worker = [*spark_class, f"{deploy}.worker.Worker", "--host", node.address, *room, self.master]
            own = self._spark | self._tasks | {"SPARK_LOCAL_IP": node.address}
            self._start(node, f"worker{number}", worker, own, without=self.drivers)
        wait_for("the workers", lambda: self.state()["aliveworkers"] == len(self.workers), self.said)

    def run(self, command: str) -> subprocess.Popen[bytes]:
        """Run a shell command on the driver's node, in its folder, with `spark-submit` on the PATH and MASTER set."""
        address, conf = self._driver.address, self.drivers / "conf"
        conf.mkdir()
        settings = {"driver.host": address, "executor.cores": "1", "executor.memory": "512m", "ui.enabled": "false"}
        (conf / "spark-defaults.conf").write_text("".join(f"spark.{key} {value}\n" for key, value in settings.items()))
        own = {
            **self._spark,
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": address,
            "PYTHONPATH": "",
            "PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}",
            "MASTER": self.master,
        }
        shell = ["bash", "-ec", f"cd '{self.drivers}'\n{command}"]
        return self._start(self._driver, "driver", shell, own)

    def state(self) -> dict[str, Any]:
        """Return the master's report of its workers and programs; empty while it doesn't respond."""
        try:
            with urllib.request.urlopen(f"http://{self._master.address}:8080/json/", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError):  # a starting master answers with a page
            return {"aliveworkers": 0, "activeapps": []}

    def runs_executor(self, node: Node) -> bool:
        return any("CoarseGrainedExecutorBackend" in " ".join(_command(process)) for process in node.processes())

    def said(self) -> str:
        """Return the last lines of all logs."""
        logs = sorted(self._folder.glob("*.log")) + sorted(self._folder.glob("work*/*/*/stderr"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def close(self) -> None:
        self.manager.close()

    def _start(
        self, node: Node, name: str, command: Sequence[str], environment: Mapping[str, str], without: Path | None = None
    ) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as said:
            return node.start(command, environment, said, without)


def source_path() -> str:
    """Return the PYTHONPATH that makes this very nadi importable, even if another is installed."""
    return os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])


def wait_for(what: str, is_so: Callable[[], bool], said: Callable[[], str] = str, limit_s: float = _WAIT_S) -> None:
    give_up = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up, f"{what}: not within {limit_s} s\n{said()}"
        time.sleep(0.1)


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
