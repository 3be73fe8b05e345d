"""`nadi up --log-format` and `--log-level`, and logs of embedded servers."""

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
from tests.support.server_output import addresses_in, read_until_ready

WAIT_S = 60


@contextmanager
def served(*arguments: str, log: Path, forked: bool = True) -> Iterator[dict[str, str]]:
    """Run `nadi up` with its log in a file; yield its addresses, and stop it cleanly."""
    command = [sys.executable, *([] if forked else ["-u"]), "-m", "nadi.cli.app", "up", "--port", "0", *arguments]
    with log.open("w") as messages:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True, env={**os.environ})
    try:
        yield addresses_in(read_until_ready(process))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stdout is not None
        process.stdout.close()


def lines(log: Path) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in log.read_text().splitlines()]
    for line in parsed:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    return parsed


def test_json_log_has_one_object_per_line_with_its_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "--containers", "2", "--log-format", "json", "-v", log=log):
        pass
    opened = [line for line in lines(log) if "container" in line and line["message"].startswith("container")]
    assert {line["container"] for line in opened} == {0, 1}
    assert ("INFO", "nadi.segmentstore.container.container") in {(line["level"], line["logger"]) for line in opened}


def test_log_of_a_cluster_server_contains_its_id(tmp_path: Path) -> None:
    log, store = tmp_path / "log", f"file://{tmp_path}/store"
    with served(
        "--store", store, "--containers", "2", "--log-format", "json", "--log-level", "info", log=log
    ) as addresses:
        server = addresses["server"].partition(",")[0]
    logged = [line for line in lines(log) if "container" in line]
    assert {line["server"] for line in logged} == {server}
    assert {line["container"] for line in logged} == {0, 1}


def test_workers_use_the_same_log_format(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served(
        "--data", str(tmp_path / "data"), "--workers", "2", "--log-format", "json", "--log-level", "INFO", log=log
    ):
        pass
    assert len({line["server"] for line in lines(log) if "server" in line}) == 2


def test_text_log_has_level_and_message(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "-v", log=log):
        pass
    assert re.search(r"^INFO container 0: ", log.read_text(), re.MULTILINE)


def test_log_level_omits_lower_levels(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served("--data", str(tmp_path / "data"), "--log-level", "error", log=log):
        pass
    assert log.read_text() == ""


def test_embedded_server_takes_log_settings_from_its_environment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {"NADI_LOG": "INFO", "NADI_LOG_FORMAT": "json"}
    with nadi.embedded(tmp_path / "data", environment=environment):
        pass
    messages = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {line["container"] for line in messages if "container" in line} == {0}
    with pytest.raises(InvalidArgumentError, match="NADI_LOG_FORMAT"):
        nadi.embedded(tmp_path / "other", environment={"NADI_LOG_FORMAT": "xml"})


def test_failed_start_is_logged_in_the_log_format(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("no folder")
    command = [sys.executable, "-m", "nadi.cli.app", "up", "--port", "0", "--data", str(data), "--log-format", "json"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=WAIT_S)
    assert done.returncode == 2
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert line["level"] == "CRITICAL"
    assert str(data) in line["message"]


def record(message: str, *args: object, **more: Any) -> logging.LogRecord:
    exc_info = more.pop("exc_info", None)
    made = logging.getLogger("nadi.test").makeRecord("nadi.test", logging.ERROR, "", 0, message, args, exc_info, **more)
    made.created = 1_790_000_000.25
    return made


def test_json_log_of_an_exception_is_one_line() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        line = logs.JsonLines().format(record("it\nfailed: %s", "x", exc_info=sys.exc_info()))
    assert "\n" not in line
    parsed = json.loads(line)
    assert parsed["time"] == "2026-09-21T14:13:20.250Z"
    assert (parsed["message"], parsed["exception_type"]) == ("it\nfailed: x", "ValueError")
    assert parsed["exception"].startswith("Traceback")
    assert parsed["exception"].endswith("ValueError: a\nb")


def test_json_log_has_fields_of_message_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_of_process", {})  # a server in this process may have set its own
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


def test_json_log_escapes_unusual_characters() -> None:
    odd = "snow \u2028 \ud800 \x00"
    line = logs.JsonLines().format(record("%s", odd))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == odd


def test_json_log_of_an_unformattable_message_is_one_line() -> None:
    parsed = json.loads(logs.JsonLines().format(record("%d of %s", "many")))
    assert "%d of %s" in parsed["message"]
    assert "many" in parsed["message"]


def test_failed_tls_handshakes_do_not_fill_the_log(tmp_path: Path) -> None:
    log, made = tmp_path / "log", certificate(tmp_path / "tls")
    tls = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    options = ("--data", str(tmp_path / "data"), *tls, "--log-format", "json")
    with served(*options, log=log, forked=False) as addresses:  # gRPC reads its settings when it is imported
        host, _, port = addresses["controller"].strip().rpartition("/")[2].rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    while connection.recv(1000):
                        pass
    assert len(lines(log)) <= 2


def test_blocked_reader_of_the_log_does_not_block_the_program() -> None:
    script = (
        "import logging\nfrom nadi.observe import logs\nlogs.configure('INFO', 'json')\n"
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
        assert select.select([process.stdout], [], [], WAIT_S)[0], "logging must not wait for the reader"
        assert process.stdout.readline() == "done\n"
        reading = threading.Thread(target=lambda: received.extend(process.stderr or ()))
        received: list[str] = []
        reading.start()
        while not any("dropped" in line for line in received):
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
    messages = [json.loads(line)["message"] for line in received]
    (dropped,) = [int(text) for line in messages if "dropped" in line for text in re.findall(r"\d+", line)[:1]]
    assert dropped + sum(line.startswith("message ") for line in messages) == 30_000
    assert messages[-1] == "the last"


def test_uncaught_exceptions_and_warnings_are_logged() -> None:
    script = (
        "import threading, warnings\nfrom nadi.observe import logs\nlogs.configure('WARNING', 'json')\n"
        "class Odd:\n  def __del__(self): raise OSError('in\\na finalizer')\nOdd()\n"
        "warnings.warn('old')\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\n"
        "raise KeyError('lost')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=WAIT_S)
    parsed = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["logger"] for line in parsed] == ["nadi", "py.warnings", "nadi", "nadi"]
    assert [line.get("exception_type") for line in parsed] == ["OSError", None, "ZeroDivisionError", "KeyError"]
