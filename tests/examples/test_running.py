"""The start and end of an example, and the killing of its programs."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

import nadi
from examples.programs import ROOT, Program, wait_for
from examples.running import INTERRUPTED, ExampleError, ended, place

QUIET = Console(file=StringIO())


def test_exit_codes() -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    def failed() -> bool:
        raise ExampleError("[no] markup")

    said = Console(file=StringIO())
    assert [ended(body, said) for body in (lambda: True, lambda: False, interrupted, failed)] == [0, 1, INTERRUPTED, 1]
    assert isinstance(said.file, StringIO)
    assert said.file.getvalue() == "interrupted\nerror: [no] markup\n"


def test_each_run_has_its_own_scope_on_a_given_server(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path / "server") as server:
        scopes = []
        for _ in range(3):
            options = argparse.Namespace(controller=server.controller_uri, data=None, page=None)
            with place(options, "logs", QUIET) as here:
                scopes.append(here.scope)
                folder = here.folder
            assert not folder.exists(), "the temporary folder is removed"
        assert scopes == ["logs", "logs-2", "logs-3"]
        options = argparse.Namespace(controller=server.controller_uri, data=tmp_path, page=None)
        with pytest.raises(ExampleError, match="--data"), place(options, "logs", QUIET):
            pass


def test_failed_program_raises_error_with_its_output(tmp_path: Path) -> None:
    with Program(tmp_path, "examples.log_patterns.producer", "--scope", "s") as program:
        with pytest.raises(ExampleError, match=r"(?s)producer.* 2.*--controller"):
            wait_for("nothing", lambda: False, [program])
        with pytest.raises(ExampleError, match=r"producer.* 2"):
            program.finish()
    with pytest.raises(ExampleError, match="no condition"):
        wait_for("no condition", lambda: False, [], limit_s=0)


@pytest.mark.parametrize("example", ["log_patterns", "returns", "sensor_slices"])
def test_example_has_help(example: str) -> None:
    command = [sys.executable, "-m", f"examples.{example}", "--help"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True, timeout=60)
    assert f"usage: python -m examples.{example}" in done.stdout
    assert "--controller" in done.stdout


def is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_example_and_its_programs(sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.log_patterns", "--data", str(tmp_path / "data")]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    below: list[psutil.Process] = []
    give_up = time.monotonic() + 120
    while not any(map(is_java, below)):  # until the job's Spark is there, too
        assert time.monotonic() < give_up
        time.sleep(0.1)
        below = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(sent)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == INTERRUPTED
    assert said.rstrip().endswith("interrupted")
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
