"""`nadi up --log-format` and `--log-level`, and the same of a server in a child process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.errors import InvalidArgumentError
from nadi.observe import logs
from tests.access.support import certificate
from tests.support.doors import doors, said_until_ready

WAIT_S = 60


@contextmanager
def served(*arguments: str, log: Path) -> Iterator[dict[str, str]]:
    """`nadi up` with its messages in a file, until it stops cleanly; what it said of its doors."""
    command = [sys.executable, "-m", "nadi.cli.app", "up", "--port", "0", *arguments]
    with log.open("w") as messages:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env={**os.environ})
    try:
        yield doors(said_until_ready(process))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stdout is not None
        process.stdout.close()


def lines(log: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.read_text().splitlines()]
    for line in found:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    return found


def test_json_has_an_object_a_line_with_what_it_is_about(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "--containers", "2", "--log-format", "json", "-v", log=log):
        pass
    opened = [line for line in lines(log) if line["message"].startswith("container") and "recovered" in line["message"]]
    assert [line["container"] for line in opened] == [0, 1]
    assert {(line["level"], line["logger"]) for line in opened} == {
        ("INFO", "nadi.segmentstore.container.container"),
    }


def test_a_server_of_a_cluster_says_which_it_is(tmp_path: Path) -> None:
    log, store = tmp_path / "log", f"file://{tmp_path}/store"
    with served("--store", store, "--containers", "2", "--log-format", "json", "--log-level", "info", log=log) as said:
        server = said["server"].partition(",")[0]
    found = lines(log)
    assert {line["server"] for line in found if line["message"].startswith("container")} == {server}
    assert {line["container"] for line in found if "opened in epoch" in line["message"]} == {0, 1}


def test_workers_log_in_the_same_way(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served(
        "--data", str(tmp_path / "data"), "--workers", "2", "--log-format", "json", "--log-level", "INFO", log=log
    ):
        pass
    assert len({line["server"] for line in lines(log) if "server" in line}) == 2


def test_text_is_as_it_was(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "-v", log=log):
        pass
    assert re.search(r"^INFO container 0: recovered to frame \d+ in", log.read_text(), re.MULTILINE)


def test_a_level_leaves_out_what_is_below(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "--log-level", "error", log=log):
        pass
    assert log.read_text() == ""


def test_an_embedded_server_by_its_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {"NADI_LOG": "INFO", "NADI_LOG_FORMAT": "json"}
    with nadi.embedded(tmp_path / "data", environment=environment):
        pass
    messages = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["container"] for line in messages if "recovered" in line["message"]] == [0]
    with pytest.raises(InvalidArgumentError, match=r"NADI_LOG_FORMAT .*'xml'"):
        nadi.embedded(tmp_path / "other", environment={"NADI_LOG_FORMAT": "xml"})


def test_why_a_server_cannot_start_is_a_message_like_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("no folder")
    command = [sys.executable, "-m", "nadi.cli.app", "up", "--port", "0", "--data", str(data), "--log-format", "json"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=WAIT_S)
    assert done.returncode == 1
    (found,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert found["level"] == "CRITICAL"
    assert str(data) in found["message"]


def record(message: str, *args: object, **more: Any) -> logging.LogRecord:
    exc_info = more.pop("exc_info", None)
    made = logging.getLogger("nadi.test").makeRecord("nadi.test", logging.ERROR, "", 0, message, args, exc_info, **more)
    made.created = 1_790_000_000.25
    return made


def test_an_exception_is_a_field_and_no_more_lines() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        line = logs.JsonLines().format(record("it\nfailed: %s", "x", exc_info=sys.exc_info()))
    assert "\n" not in line
    found = json.loads(line)
    assert found["time"] == "2026-09-21T14:13:20.250Z"
    assert (found["message"], found["exception_type"]) == ("it\nfailed: x", "ValueError")
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: a\nb")


def test_fields_are_those_of_the_message_and_of_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_of_process", {})  # a server in this process may have said what it is
    with logs.about(container=3):
        assert json.loads(logs.JsonLines().format(record("m", extra={"segment": "s/1", "other": 1}))) == {
            "time": "2026-09-21T14:13:20.250Z",
            "level": "ERROR",
            "logger": "nadi.test",
            "message": "m",
            "container": 3,
            "segment": "s/1",
        }
    assert "container" not in json.loads(logs.JsonLines().format(record("m")))


def test_odd_text_breaks_no_line() -> None:
    odd = "snow \u2028 \ud800 \x00"
    line = logs.JsonLines().format(record("%s", odd))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == odd


def test_a_message_that_cannot_be_put_together_is_a_line_all_the_same() -> None:
    found = json.loads(logs.JsonLines().format(record("%d of %s", "many")))
    assert found["message"] == "'%d of %s' with ('many',) (TypeError: %d format: a real number is required, not str)"


def test_peers_that_fail_at_tls_cannot_fill_the_log(tmp_path: Path) -> None:
    log, made = tmp_path / "log", certificate(tmp_path / "tls")
    tls = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    with served("--data", str(tmp_path / "data"), *tls, "--log-format", "json", log=log) as said:
        host, _, port = said["controller"].strip().rpartition("/")[2].rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=WAIT_S) as one:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    while one.recv(1000):
                        pass
    assert len(lines(log)) <= 2


def test_who_does_not_take_the_messages_stops_nobody() -> None:
    script = (
        "import logging\nfrom nadi.observe import logs\nlogs.set_up('INFO', 'json')\n"
        "for number in range(30_000):\n  logging.info('message %d', number)\n"
        "print('done', flush=True)\ninput()\n"
        "logging.info('the last')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert select.select([process.stdout], [], [], WAIT_S)[0], "it waits for who reads its messages"
        assert process.stdout.readline() == "done\n"
        reading = threading.Thread(target=lambda: found.extend(process.stderr or ()))
        found: list[str] = []
        reading.start()
        while not any("were dropped" in line for line in found):
            assert process.poll() is None
            time.sleep(0.01)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
        reading.join()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    messages = [json.loads(line)["message"] for line in found]
    (dropped,) = [int(one.split()[0]) for one in messages if "were dropped" in one]
    assert dropped + sum(one.startswith("message ") for one in messages) == 30_000
    assert messages[-1] == "the last"


def test_what_nothing_catches_is_logged_too() -> None:
    script = (
        "import threading, warnings\nfrom nadi.observe import logs\nlogs.set_up('WARNING', 'json')\n"
        "class Odd:\n  def __del__(self): raise OSError('in\\na finalizer')\nOdd()\n"
        "warnings.warn('old')\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\n"
        "raise KeyError('lost')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=WAIT_S)
    found = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in found] == ["nadi", "py.warnings", "nadi", "nadi"]
    assert [line.get("exception_type") for line in found] == ["OSError", None, "ZeroDivisionError", "KeyError"]
