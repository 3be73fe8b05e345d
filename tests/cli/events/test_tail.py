"""`nadi tail`, and output options of `nadi tail` and `nadi read`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import nadi
from nadi.cli.events.printer import Printer, print_events
from nadi.errors import TruncatedError, UnavailableError
from nadi.model.event import EventBlock, whole_events
from nadi.model.framing import event_header
from tests.cli.test_streams import Shell


def test_tail_prints_the_last_events(shell: Shell, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "last", 2)
    assert shell.run("tail", "home", "last", "--no-follow").stdout == ""
    shell.run("write", "home", "last", "--key", "a", stdin=b"".join(b"a%d\n" % number for number in range(30)))
    assert shell.run("tail", "home", "last", "--no-follow").stdout.split() == [f"a{n}" for n in range(20, 30)]
    assert shell.run("tail", "home", "last", "--no-follow", "-n", "2").stdout == "a28\na29\n"
    assert shell.run("tail", "home", "last", "-n", "30", "--limit", "2").stdout == "a0\na1\n"
    assert shell.run("tail", "home", "last", "--no-follow", "-n", "100", "--grep", "^a.?7$").stdout == "a7\na17\na27\n"
    assert "home/none" in shell.run("tail", "home", "none", code=1).stderr


def test_tail_prints_new_events(server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "news", 1)
    command = [
        sys.executable,
        "-m",
        "nadi.cli.app",
        "tail",
        "home",
        "news",
        "-n1",
        "--controller",
        server.controller_uri,
    ]
    with manager.create_writer("home", "news") as writer:
        writer.write_batch([b"old", b"newest"])
        writer.flush()
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"COLUMNS": "120"}) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"newest\n"
            for event in (b"first", b"second"):
                writer.write_event(event).result(60)
                assert program.stdout.readline() == event + b"\n"
            program.send_signal(signal.SIGINT)
            assert program.wait(60) == 0


@pytest.mark.parametrize("words", ["tail home quiet", "read home quiet --follow"])
def test_following_command_ends_when_its_pipe_is_closed(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, shell: Shell, words: str
) -> None:
    shell.run("write", "home", "quiet", "--create", "1", "--quiet", stdin=b"a\nb\n")
    line = f"set -o pipefail; {sys.executable} -m nadi.cli.app {words} --controller {server.controller_uri} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\n", b"")


def test_idle_option_ends_a_following_command(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "idle", "--create", "1", "--quiet", stdin=b"a\nb\n")
    assert shell.run("tail", "home", "idle", "--idle", "2").output == "a\nb\n"
    assert shell.run("read", "home", "idle", "--follow", "--idle", "2").output == "a\nb\n"
    assert shell.run("tail", "home", "idle", "-c", "1").output == "a\n"
    for words in (("tail", "home", "idle", "--no-follow"), ("read", "home", "idle")):
        assert "--idle" in shell.run(*words, "--idle", "1", code=2).stderr


def test_position_may_be_an_age(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "ages", "--create", "1", "--quiet", stdin=b"a\n")
    for age in ("-1h", "-999999d", "-999999999999d"):
        assert shell.run("read", "home", "ages", "--from", age).output == "a\n", age
        assert shell.run("read", "home", "ages", "--to", age).output == "", age
    assert "'5'" in shell.run("read", "home", "ages", "--from", "-5", code=2).stderr
    assert "'5MB'" in shell.run("read", "home", "ages", "--from", "-5MB", code=2).stderr
    shell.run("group", "create", "home", "recent", "ages", "--from", "ages=-1h", "--to", "tail")
    shell.run("slice", "create", "home", "ages", "recent", "--from", "-1h")
    assert shell.run("read", "home", "recent", "--slice").output == "a\n"


def test_tail_of_a_sealed_stream_ends(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "over", "--create", "1", stdin=b"1\n2\n")
    manager.seal_stream("home", "over")
    assert shell.run("tail", "home", "over").stdout == "1\n2\n"


def test_read_output_options(shell: Shell, manager: nadi.StreamManager) -> None:
    started = datetime.now(UTC)
    shell.run("write", "home", "layouts", "--create", "1", stdin=b'{"m": "oven", "wh": 1}\n\xff\n{"wh": 2}\n')
    ended = datetime.now(UTC)

    def printed(form: str, *more: str) -> bytes:
        return shell.run("read", "home", "layouts", "--format", form, *more).stdout_bytes

    assert printed(r"%o=%s%%\t%S\n").split(b"\n")[1:3] == [b"30=\xff%\t0.#epoch.0", b'39={"wh": 2}%\t0.#epoch.0']
    assert printed("x") == b"xxx"
    assert printed("[%k]", "--key-field", "m") == b"[oven][][]"
    for text in printed(r"%t\n").decode().split():
        assert started - timedelta(milliseconds=1) <= datetime.fromisoformat(text) <= ended + timedelta(seconds=10)
    objects = shell.run("read", "home", "layouts", "--json", "--key-field", "m").stdout.splitlines()
    assert msgspec.json.decode(objects[0]) == {
        "segment_id": 0,
        "offset": 0,
        "key": "oven",
        "text": '{"m": "oven", "wh": 1}',
    }
    assert "key" not in objects[1]
    for wrong, named in (
        (["--format", "%q"], "%q"),
        (["--format", "100%"], "'100%'"),
        (["--format", r"\q"], r"\q"),
        (["--format", "%k"], "--key-field"),
        (["--format", "%s", "--key-field", "m"], "--key-field"),
        (["--format", "%s", "--json"], "--json"),
        (["--grep", "("], "--grep"),
        (["--follow", "--to", "tail"], "--to"),
        (["--slice", "--from", "head"], "--from"),
    ):
        assert named in shell.run("read", "home", "layouts", *wrong, code=2).stderr.replace("\n", " "), wrong


def test_read_into_a_closed_pipe_ends_silently(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, shell: Shell
) -> None:
    shell.run("write", "home", "long", "--create", "1", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 100_000)
    line = f"{sys.executable} -m nadi.cli.app read home long --controller {server.controller_uri} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert done.stdout == b"x" * 99 + b"\n"
    assert done.stderr == b""


class _Failing:
    """A reader with given blocks and errors."""

    def __init__(self, *results: tuple[int, EventBlock] | Exception | None) -> None:
        self._results = list(results)

    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        result = self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_print_events_continues_after_recoverable_errors(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    block, _ = whole_events(memoryview(event_header(1) + b"a"))
    reader: Any = _Failing(
        UnavailableError("the server is away"), (0, block), TruncatedError("home/x/0", 0, 9), (0, block), None
    )
    print_events(reader, Printer(lambda _, offsets: []), follow=True)
    printed = capfdbinary.readouterr()
    assert printed.out == b"a\na\n"
    retry, skipped = printed.err.decode().splitlines()
    assert "the server is away" in retry
    assert "offset 0 " in skipped
