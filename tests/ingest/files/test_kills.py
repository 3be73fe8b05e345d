"""kill -9 of the ingester, and of the server, while files rotate: each line once, and in order in each file.

NADI_INGEST_KILLS says how many times in the slow run, which prints its figures with `pytest -rP`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nadi
from nadi.testing import RestartableServer
from tests.ingest.files.logs import Logging, check_once_and_in_order
from tests.support.waiting import until

COMMAND = [sys.executable, "-c", "from nadi.cli.app import main; main()", "ingest", "in", "logs", "--quiet"]

MANY = int(os.environ.get("NADI_INGEST_KILLS", "50"))


@pytest.mark.crash
@pytest.mark.parametrize("kills", [5, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.timeout(600 + 20 * MANY)
def test_kills_while_files_rotate(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    logs, stopped = tmp_path / "logs", threading.Event()
    logs.mkdir()
    loggings = [Logging(logs, f"l{i}", random.Random(i), copies=i % 2 == 1) for i in range(4)]
    server_kills, start_s = 0, time.monotonic()

    def log() -> None:
        while not stopped.wait(0.005):
            for logging in loggings:
                logging.write(logging.chance.randrange(20))
                if logging.chance.random() < 0.004:
                    logging.rotate()

    def rotations() -> int:
        return sum(logging.rotations for logging in loggings)

    with RestartableServer(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("in")
        manager.create_stream("in", "logs", 2)
        env = {**os.environ, "NADI_CONTROLLER": server.controller_uri}
        keyed = ["--key-pattern", r"^\d*(\d) "]  # of a file's lines, so that they go to both segments

        def start(*more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([*COMMAND, *keyed, str(logs / "*.log*"), *more], env=env, stderr=subprocess.PIPE)

        thread = threading.Thread(target=log)
        thread.start()
        try:
            for number in range(kills):
                ingester = start()
                time.sleep(chance.uniform(0.5, 2.0))  # a kill at any moment of its work is what is tried
                if chance.random() < 0.3:
                    server.restart()
                    server_kills += 1
                    time.sleep(chance.uniform(0, 1.0))
                if number % 5 == 4:
                    current = [segment.segment_id for segment in manager.current_segments("in", "logs")]
                    manager.scale_stream("in", "logs", current, [(0, 0.3), (0.3, 1)])
                until(lambda least=number + 1: rotations() > least)  # type: ignore[misc]
                ingester.kill()
                _, errors = ingester.communicate()
                assert ingester.returncode == -9, errors.decode()
        finally:
            stopped.set()
            thread.join()
        for _ in range(2):
            done = start("--once")
            _, errors = done.communicate(timeout=120)
            assert done.returncode == 0, errors.decode()
        for logging in loggings:
            logging.close()
        written = {logging.name: logging.written for logging in loggings}
        check_once_and_in_order(manager, "logs", written, key=lambda number: number % 10)
    print(
        f"{sum(written.values()):,} lines in {rotations() + len(loggings)} files, {rotations()} rotations, kill -9 of "
        f"the ingester {kills} times, of the server {server_kills} times, {time.monotonic() - start_s:.0f} s"
    )
    assert rotations() > kills
