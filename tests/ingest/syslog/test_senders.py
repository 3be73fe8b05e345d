"""`nadi ingest-syslog` as people run it, and the senders that they have: logger, Python's own, rsyslog."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import RestartableServer
from tests.access.support import certificate
from tests.ingest.syslog.receiving import LINES, MESSAGES, stored
from tests.support.ports import free_port
from tests.support.waiting import until

GUIDE = Path(__file__).parents[3] / "docs" / "ingest.md"
COMMAND = [sys.executable, "-c", "from nadi.cli.app import main; main()", "ingest-syslog", "in"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def stream(server: EmbeddedServer, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W|_", "-", str(request.node.name)).strip("-")
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_stream("in", name, 2)
    return name


class Command:
    """The command at work."""

    def __init__(self, uri: str, stream: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, stream, *options],
            env={**os.environ, "NADI_CONTROLLER": uri},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # or a second line would be read with the first, and not be waited for
        )
        self.addresses: dict[str, tuple[str, int]] = {}
        assert self._process.stdout is not None
        for _ in range(sum(option in ("--udp", "--tcp", "--tls") for option in options)):
            assert select.select([self._process.stdout], [], [], 60)[0]
            found = re.search(r"over (\w+) at ([\d.]+):(\d+)", self._process.stdout.readline().decode())
            assert found is not None
            self.addresses[found[1]] = found[2], int(found[3])

    def line_of_errors(self) -> str:
        """The next one that it says there."""
        assert self._process.stderr is not None
        assert select.select([self._process.stderr], [], [], 60)[0]
        return self._process.stderr.readline().decode()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=60)

    def stop(self, code: int = 0) -> str:
        """What it says at the end."""
        if self._process.poll() is not None and self._process.stdout is not None and self._process.stdout.closed:
            return ""  # it is stopped already
        self._process.send_signal(signal.SIGTERM)
        _, errors = self._process.communicate(timeout=60)
        assert self._process.poll() == code, errors
        return str(errors.decode())


@contextmanager
def receiving(server: EmbeddedServer, stream: str, *options: str) -> Iterator[Command]:
    command = Command(server.controller_uri, stream, *options)
    try:
        yield command
    finally:
        command.stop()


def events(server: EmbeddedServer, stream: str, count: int) -> list[dict[str, Any]]:
    """Once there are so many."""
    until(lambda: len(stored(server.controller_uri, stream)) >= count)
    found = stored(server.controller_uri, stream)
    assert len(found) == count
    return [json.loads(event) for event in found]


def test_the_command(server: EmbeddedServer, stream: str) -> None:
    with receiving(server, stream, "--tcp", "127.0.0.1:0", "--format", "raw") as command:
        with socket.create_connection(command.addresses["TCP"]) as sender:
            sender.sendall(LINES)
            sender.shutdown(socket.SHUT_WR)
            assert sender.recv(1) == b""  # all of it is stored
        assert stored(server.controller_uri, stream) == MESSAGES
        assert command.stop().splitlines()[-1] == f"300 messages, {len(LINES) - 300:,} bytes, 0 connections"


def test_what_the_command_refuses(server: EmbeddedServer, stream: str, tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        done = subprocess.run(
            [*COMMAND, stream, *options],
            env={**os.environ, "NADI_CONTROLLER": server.controller_uri},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1, done
        return done.stderr

    assert "say where to listen" in refused()
    for address in ("5514", "127.0.0.1:99999", "::1:5514", "127.0.0.1:", "a b:1"):
        assert "is no address" in refused("--udp", address)
    assert "--tls-cert has no effect" in refused("--tcp", "127.0.0.1:0", "--tls-cert", "x")
    assert "--tls-clients has no effect" in refused("--tcp", "127.0.0.1:0", "--tls-clients", "x")
    assert "--tls needs a certificate" in refused("--tls", "127.0.0.1:0")
    ours = certificate(tmp_path)
    given = ("--tls", "127.0.0.1:0", "--tls-cert", str(ours.certificate), "--tls-key", str(ours.key))
    assert "can't be used" in refused(*given, "--tls-clients", str(tmp_path / "none"))
    assert "TLS can't be served" in refused(*given[:4], "--tls-key", str(ours.authority))
    assert "can't listen there" in refused("--tcp", "203.0.113.1:5514")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "can't listen there" in refused("--tcp", f"127.0.0.1:{taken.getsockname()[1]}")


def test_a_kill_loses_no_more_than_what_was_on_its_way(server: EmbeddedServer, stream: str) -> None:
    """A sender that connects again and goes on after the last message that it could send: what is stored is in order,
    and none is stored twice."""
    address = f"127.0.0.1:{free_port()}"
    command = Command(server.controller_uri, stream, "--tcp", address, "--format", "raw")
    sent = 0
    for _ in range(3):
        try:
            with socket.create_connection(command.addresses["TCP"]) as sender:
                for _ in range(2_000):
                    sender.sendall(b"<13>1 - h - - - - %06d\n" % sent)
                    sent += 1
                command.kill()
        finally:
            command.kill()
        command = Command(server.controller_uri, stream, "--tcp", address, "--format", "raw")
    with socket.create_connection(command.addresses["TCP"]) as sender:
        sender.sendall(b"<13>1 - h - - - - %06d\n" % sent)
        sender.shutdown(socket.SHUT_WR)
        assert sender.recv(1) == b""
    command.stop()
    numbers = [int(event[-6:]) for event in stored(server.controller_uri, stream)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == sent


def test_a_stop_while_the_server_is_away_says_what_may_be_lost(tmp_path: Path) -> None:
    with RestartableServer(tmp_path) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("in")
            manager.create_stream("in", "away")
        command = Command(server.controller_uri, "away", "--udp", "127.0.0.1:0")
        server.kill()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for message in MESSAGES[:7]:
                sender.sendto(message, command.addresses["UDP"])
        assert "7 messages that were read may not be stored" in command.stop(1)
        server.start()


# --- senders ---------------------------------------------------------------------------------------

logger = pytest.mark.skipif(shutil.which("logger") is None, reason="there is no logger of util-linux")
WAYS = {
    "udp-5424": ("UDP", ["--udp", "--rfc5424"]),
    "tcp-5424": ("TCP", ["--tcp", "--rfc5424"]),
    "tcp-counted": ("TCP", ["--tcp", "--rfc5424", "--octet-count"]),
    "udp-3164": ("UDP", ["--udp", "--rfc3164"]),
    "tcp-3164": ("TCP", ["--tcp", "--rfc3164"]),
}


@logger
@pytest.mark.parametrize("way", WAYS)
def test_logger(server: EmbeddedServer, stream: str, way: str) -> None:
    over, options = WAYS[way]
    with receiving(server, stream, "--udp", "127.0.0.1:0", "--tcp", "127.0.0.1:0") as command:
        host, port = command.addresses[over]
        for number in range(3):
            tagged = [*options, "--server", host, "--port", str(port), "--priority", "local3.warning", "--tag", "job"]
            if "--rfc5424" in options:
                tagged += ["--msgid", "M1", "--sd-id", "a@1", "--sd-param", 'b="c d"']
            subprocess.run(["logger", *tagged, "--id=77", f"höi {number}"], check=True, timeout=60)
        found = events(server, stream, 3)
    assert sorted(event["message"] for event in found) == ["höi 0", "höi 1", "höi 2"]
    for event in found:
        told = {"facility": "local3", "severity": "warning", "from": "127.0.0.1", "app": "job", "procid": "77"}
        assert event.items() >= told.items()
        assert event["host"] == socket.gethostname().partition(".")[0] or event["host"] == socket.gethostname()
        if "5424" in way:
            assert (event["msgid"], event["data"]["a@1"]) == ("M1", {"b": "c d"})
        at, received = (nadi_time(event[name]) for name in ("time", "received"))
        assert abs(at - received) < 60


def nadi_time(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize("over", ["UDP", "TCP"])
def test_pythons_own_handler(server: EmbeddedServer, stream: str, over: str) -> None:
    kind = socket.SOCK_DGRAM if over == "UDP" else socket.SOCK_STREAM
    with receiving(server, stream, f"--{over.lower()}", "127.0.0.1:0", "--key", "app") as command:
        handler = logging.handlers.SysLogHandler(command.addresses[over], socktype=kind)
        handler.ident = "shop: "
        log = logging.Logger("shop")
        log.addHandler(handler)
        for number in range(3):
            log.error("sold %d", number)
        handler.close()
        found = events(server, stream, 3)
    assert [event["message"] for event in found] == [f"shop: sold {number}" for number in range(3)]
    assert all((event["facility"], event["severity"]) == ("user", "err") for event in found)


# Each of these reads a program's messages from a socket, and sends them on by the lines under test.


def documented(language: str, address: tuple[str, int]) -> str:
    """The lines of the guide for that program, with this address in them."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert "5514" in text
    return str(text.replace("5514", str(address[1])))


@contextmanager
def rsyslog(folder: Path, lines: str) -> Iterator[Path]:
    told = folder / "told"
    settings = folder / "rsyslog.conf"
    settings.write_text(
        f'global(workDirectory="{folder}")\nmodule(load="imuxsock" SysSock.Use="off")\n'
        f'input(type="imuxsock" Socket="{told}" CreatePath="on")\n{lines}\n'
    )
    yield from _running(["rsyslogd", "-n", "-f", str(settings), "-i", str(folder / "pid")], told)


@contextmanager
def syslog_ng(folder: Path, lines: str) -> Iterator[Path]:
    told = folder / "told"
    settings = folder / "syslog-ng.conf"
    settings.write_text(f'@version: current\nsource s_src {{ unix-dgram("{told}"); }};\n{lines}')
    places = [f"--{name}={folder / name}" for name in ("persist-file", "control", "pidfile")]
    command = ["syslog-ng", "--foreground", "--no-caps", f"--cfgfile={settings}", *places]
    yield from _running(command, told)


def _running(command: list[str], told: Path) -> Iterator[Path]:
    process = subprocess.Popen(command, cwd=told.parent)
    try:
        until(told.exists)
        yield told
    finally:
        process.terminate()
        process.wait(60)


def say(told: Path, *messages: str) -> None:
    """As the C library does for a program."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in messages:
            sender.sendto(f"<11>Oct 11 22:14:15 shop[7]: {message}".encode(), str(told))


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program} (Debian: {package})")


TOLD = ["sold 0", "  at main()", '{"level": "info"}', "höi"]


@needs("rsyslogd", "rsyslog")
@pytest.mark.parametrize("way", ["udp", "tcp", "documented"])
def test_rsyslog_by_each_format_sends_the_texts_that_programs_wrote(
    server: EmbeddedServer, stream: str, tmp_path: Path, way: str
) -> None:
    with receiving(server, stream, "--udp", "127.0.0.1:0", "--tcp", "127.0.0.1:0") as command:
        host, port = command.addresses["UDP" if way == "udp" else "TCP"]
        lines = f'*.* action(type="omfwd" target="{host}" port="{port}" protocol="{way}")'
        if way == "documented":
            lines = documented("rsyslog", (host, port))
        with rsyslog(tmp_path, lines) as told:
            say(told, *TOLD)
            _arrived(server, stream)


@needs("syslog-ng", "syslog-ng-core")
def test_syslog_ng_as_documented_sends_the_texts_that_programs_wrote(
    server: EmbeddedServer, stream: str, tmp_path: Path
) -> None:
    with (
        receiving(server, stream, "--tcp", "127.0.0.1:0") as command,
        syslog_ng(tmp_path, documented("syslog-ng", command.addresses["TCP"])) as told,
    ):
        say(told, *TOLD)
        _arrived(server, stream)


def _arrived(server: EmbeddedServer, stream: str) -> None:
    def ours() -> list[dict[str, Any]]:
        return [event for event in map(json.loads, stored(server.controller_uri, stream)) if event.get("app") == "shop"]

    until(lambda: len(ours()) == len(TOLD))
    assert [event["message"] for event in ours()] == TOLD
    assert all((event["procid"], event["severity"]) == ("7", "err") and event["host"] for event in ours())


PACKED = {
    "tcp-lines": ("tcp", 'ziplevel="9"'),
    "tcp-stream": ("tcp", 'ziplevel="9" compression.mode="stream:always"'),
    "udp": ("udp", 'ziplevel="9"'),
}


@needs("rsyslogd", "rsyslog")
@pytest.mark.parametrize("way", PACKED)
def test_rsyslog_that_compresses_is_refused_with_a_message(
    server: EmbeddedServer, stream: str, tmp_path: Path, way: str
) -> None:
    kind, options = PACKED[way]
    with receiving(server, stream, f"--{kind}", "127.0.0.1:0") as command:
        host, port = command.addresses[kind.upper()]
        action = f'action(type="omfwd" target="{host}" port="{port}" protocol="{kind}" {options})'
        lines = f'if $programname == "shop" then {action}'
        with rsyslog(tmp_path, lines) as told:
            say(told, "a text that is long enough to be packed, " * 5)
            line = command.line_of_errors()
        assert re.search(r"(connections ended|datagrams refused), the last from 127.0.0.1: it is compressed", line), (
            line
        )
        said = command.stop()
    assert re.search(r"[1-9]\d* (connections ended|datagrams refused) for what came", said), said
    assert stored(server.controller_uri, stream) == []
