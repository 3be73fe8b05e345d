"""syslog-ng with the configurations in deploy/log-shippers: kills lose nothing, but may duplicate messages."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "ingest.md").read_text()
SYSLOG, FILES = (
    (ROOT / "deploy" / "log-shippers" / f"syslog-ng-{kind}.conf").read_text() for kind in ("network", "files")
)
PROGRAM = shutil.which("syslog-ng", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _has_http() -> bool:
    if PROGRAM is None:
        return False
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=60)
    return re.search(r"Available-Modules:.*\bhttp\b", done.stdout) is not None


pytestmark = [
    pytest.mark.skipif(not _has_http(), reason="no syslog-ng: apt-get install syslog-ng-core syslog-ng-mod-http"),
    pytest.mark.timeout(600),
]


class Server:
    """A server at the same ports after each start, with a stream that may be missing at first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port, self.rest_port = folder, free_port(), free_port()
        self._running: EmbeddedServer | None = None
        self.start()

    def start(self) -> None:
        self._running = nadi.embedded(self._folder, port=self._port, rest_port=self.rest_port)

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()

    @contextmanager
    def manager(self) -> Iterator[nadi.StreamManager]:
        with nadi.StreamManager(f"tcp://127.0.0.1:{self._port}") as manager:
            yield manager

    def create_stream(self, stream: str) -> None:
        with self.manager() as manager:
            manager.create_scope("home")
            manager.create_stream("home", stream, 2)

    def events(self, stream: str) -> list[dict[str, Any]]:
        with self.manager() as manager:
            tail = manager.stream_info("home", stream).tail
            return [json.loads(event.data) for event in manager.read_events("home", stream, end=tail)]


class SyslogNg:
    """syslog-ng with a configuration and a folder."""

    def __init__(self, configuration: str, server: Server, folder: Path, **replaced: str) -> None:
        self._folder = folder
        folder.mkdir()
        replaced = {"127.0.0.1:9091": f"127.0.0.1:{server.rest_port}", "/var/lib/syslog-ng": str(folder), **replaced}
        for documented, here in replaced.items():
            assert documented in configuration
            configuration = configuration.replace(documented, here)
        (folder / "syslog-ng.conf").write_text(configuration)
        self.start()

    def start(self) -> None:
        at = self._folder
        files = ["-f", at / "syslog-ng.conf", "-R", at / "persist", "-c", at / "ctl", "-p", at / "pid"]
        with (at / "log").open("ab") as log:
            command = [str(PROGRAM), "-F", "--no-caps", *map(str, files)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=at)
        until(lambda: self._statistics())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(60) == 0

    def taken(self) -> int:
        """Count the messages in its disk buffer, or forwarded, since its start."""
        found = re.search(r"^dst\.http;[^\n]*;processed;(\d+)$", self._statistics(), re.M)
        return 0 if found is None else int(found[1])

    def _statistics(self) -> str:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        command = ["syslog-ng-ctl", "stats", "-c", str(self._folder / "ctl")]
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    try:
        yield server
    finally:
        server.kill()


def _send(port: int, texts: list[str], *, udp: bool = False) -> None:
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    with socket.socket(type=kind) as sender:
        sender.connect(("127.0.0.1", port))
        for text in texts:
            sender.sendall(_message(text) if udp else _message(text) + b"\n")


def _message(text: str) -> bytes:
    return f'<34>1 2026-10-11T22:14:15.003Z kitchen su 77 ID47 [origin ip="10.0.0.7"] {text}'.encode()


def _all_there(server: Server, stream: str, expected: Callable[[], set[str]]) -> Counter[str]:
    """Count how often each message is stored, once none of the expected ones is missing."""

    def found() -> Counter[str]:
        return Counter(event["message"] for event in server.events(stream))

    until(lambda: expected() <= found().keys(), limit_s=120)
    counts = found()
    assert counts.keys() == expected()
    return counts


def test_syslog_killed_with_nadi_down_loses_nothing(server: Server, tmp_path: Path) -> None:
    port = str(free_port())
    shipper = SyslogNg(SYSLOG, server, tmp_path / "syslog-ng", **{"5514": port})
    sent: list[str] = []

    def send(udp: int, tcp: int) -> None:
        for kind, count in (("udp", udp), ("tcp", tcp)):
            texts = [f"{kind} {len(sent) + number}" for number in range(count)]
            _send(int(port), texts, udp=kind == "udp")
            sent.extend(texts)

    try:
        send(udp=50, tcp=50)
        time.sleep(2)  # requests are answered by 404 meanwhile
        server.create_stream("syslog")
        for end in (shipper.kill, shipper.stop):
            _all_there(server, "syslog", lambda: set(sent))  # so nothing is on its way as `taken` is asked
            server.kill()
            before = shipper.taken()
            send(udp=50, tcp=2_000)
            # it has the only copy, on its disk
            until(lambda before=before: shipper.taken() == before + 2_050)  # type: ignore[misc]
            end()
            shipper.start()
            server.start()
            send(udp=50, tcp=2_000)
        counts = _all_there(server, "syslog", lambda: set(sent))
    finally:
        shipper.kill()
    print(f"{len(sent):,} messages, {sum(counts.values()) - len(sent):,} of them twice")


def test_syslog_of_each_kind_is_an_event(server: Server, tmp_path: Path) -> None:
    port = free_port()
    server.create_stream("syslog")
    shipper = SyslogNg(SYSLOG, server, tmp_path / "syslog-ng", **{"5514": str(port)})
    documented = json.loads(re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)[0])
    try:
        odd = b'<13>1 - hall app - - - \xff\x01"\\', b"<13>1 - hall app - - - " + b"x" * 100_000
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.sendall(b"\n".join((_message("no"), b"<13>Oct 11 22:14:15 hall app[7]: old", *odd, b"")))
        until(lambda: len(server.events("syslog")) >= 4)
    finally:
        shipper.stop()
    by_message = {event["message"]: event for event in server.events("syslog")}
    assert by_message["no"] | {"received": documented["received"]} == documented
    old = {"severity": "notice", "facility": "user", "host": "hall", "app": "app", "procid": "7"}
    assert by_message["old"].items() >= old.items()
    assert '\\xff\x01"\\' in by_message  # what isn't UTF-8 as text that stands for it
    assert "x" * 65_000 in {message[:65_000] for message in by_message}


def test_files_killed_at_any_moment_lose_nothing(server: Server, tmp_path: Path) -> None:
    chance, stopped, logs = random.Random(4), threading.Event(), tmp_path / "logs"
    logs.mkdir()
    server.create_stream("app")
    written: dict[str, list[str]] = {f"{name}.log": [] for name in "ab"}

    def log() -> None:
        while not stopped.wait(0.01):
            for name, lines in list(written.items()):
                with (logs / name).open("a") as file:
                    for _ in range(chance.randrange(20)):
                        lines.append(f"{name} {len(lines)}")
                        file.write(lines[-1] + "\n")

    def expected() -> set[str]:
        return {line for lines in written.values() for line in lines}

    thread = threading.Thread(target=log)
    thread.start()
    shipper = SyslogNg(FILES, server, tmp_path / "syslog-ng", **{"/var/log/app": str(logs)})
    try:
        for number in range(6):
            time.sleep(chance.uniform(0.2, 1.5))  # kill at any moment
            if number % 2:
                server.kill()
            shipper.kill()
            shipper.start()
            if number % 2:
                server.start()
        written["c.log"] = []  # as where the day is in a file's name
        time.sleep(1)
        stopped.set()
        thread.join()
        counts = _all_there(server, "app", expected)
    finally:
        stopped.set()
        thread.join()
        shipper.kill()
    events = server.events("app")
    for name, lines in written.items():  # in order, as far as they came for the first time
        assert list(dict.fromkeys(event["message"] for event in events if event["file"] == str(logs / name))) == lines
    print(f"{len(expected()):,} lines, {sum(counts.values()) - len(expected()):,} of them twice")
