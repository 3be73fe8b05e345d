"""`nadi tail`, and the forms in which it and `nadi read` print events."""

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


def test_the_last_events(shell: Shell, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "last", 2)
    assert shell.run("tail", "home", "last", "--no-follow").stdout == ""
    shell.run("write", "home", "last", "--key", "a", stdin=b"".join(b"a%d\n" % number for number in range(30)))
    assert shell.run("tail", "home", "last", "--no-follow").stdout.split() == [f"a{n}" for n in range(20, 30)]
    assert shell.run("tail", "home", "last", "--no-follow", "-n", "2").stdout == "a28\na29\n"
    assert shell.run("tail", "home", "last", "-n", "30", "--limit", "2").stdout == "a0\na1\n"
    assert shell.run("tail", "home", "last", "--no-follow", "-n", "100", "--grep", "^a.?7$").stdout == "a7\na17\na27\n"
    assert "stream home/none" in shell.run("tail", "home", "none", code=1).stderr


def test_what_comes_follows(server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager) -> None:
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
def test_who_follows_ends_with_the_pipe(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, shell: Shell, words: str
) -> None:
    shell.run("write", "home", "quiet", "--create", "1", "--quiet", stdin=b"a\nb\n")
    line = f"set -o pipefail; {sys.executable} -m nadi.cli.app {words} --controller {server.controller_uri} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\n", b"")


def test_who_follows_ends_when_nothing_comes(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "idle", "--create", "1", "--quiet", stdin=b"a\nb\n")
    assert shell.run("tail", "home", "idle", "--idle", "2").output == "a\nb\n"
    assert shell.run("read", "home", "idle", "--follow", "--idle", "2").output == "a\nb\n"
    assert shell.run("tail", "home", "idle", "-c", "1").output == "a\n"
    for words in (("tail", "home", "idle", "--no-follow"), ("read", "home", "idle")):
        assert "--idle has no effect" in shell.run(*words, "--idle", "1", code=1).stderr


def test_a_place_is_an_age(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "ages", "--create", "1", "--quiet", stdin=b"a\n")
    for age in ("-1h", "-999999d", "-999999999999d"):
        assert shell.run("read", "home", "ages", "--from", age).output == "a\n", age
        assert shell.run("read", "home", "ages", "--to", age).output == "", age
    assert "neither an age" in shell.run("read", "home", "ages", "--from", "-5", code=1).stderr
    assert "is a size" in shell.run("read", "home", "ages", "--from", "-5MB", code=1).stderr
    shell.run("group", "create", "home", "recent", "ages", "--from", "ages=-1h", "--to", "tail")
    shell.run("slice", "create", "home", "ages", "recent", "--from", "-1h")
    assert shell.run("read", "home", "recent", "--slice").output == "a\n"


def test_a_followed_stream_that_is_sealed_ends(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "over", "--create", "1", stdin=b"1\n2\n")
    manager.seal_stream("home", "over")
    assert shell.run("tail", "home", "over").stdout == "1\n2\n"


def test_forms(shell: Shell, manager: nadi.StreamManager) -> None:
    began = datetime.now(UTC)
    shell.run("write", "home", "layouts", "--create", "1", stdin=b'{"m": "oven", "wh": 1}\n\xff\n{"wh": 2}\n')
    ended = datetime.now(UTC)

    def printed(form: str, *more: str) -> bytes:
        return shell.run("read", "home", "layouts", "--format", form, *more).stdout_bytes

    assert printed(r"%o=%s%%\t%S\n").split(b"\n")[1:3] == [b"30=\xff%\t0.#epoch.0", b'39={"wh": 2}%\t0.#epoch.0']
    assert printed("x") == b"xxx"
    assert printed("[%k]", "--key-field", "m") == b"[oven][][]"
    for text in printed(r"%t\n").decode().split():
        assert began - timedelta(milliseconds=1) <= datetime.fromisoformat(text) <= ended + timedelta(seconds=10)
    objects = shell.run("read", "home", "layouts", "--json", "--key-field", "m").stdout.splitlines()
    assert msgspec.json.decode(objects[0]) == {
        "segment_id": 0,
        "offset": 0,
        "key": "oven",
        "text": '{"m": "oven", "wh": 1}',
    }
    assert "key" not in objects[1]
    for wrong, says in (
        (["--format", "%q"], "no such field as %q"),
        (["--format", "100%"], "no such field as %"),
        (["--format", r"\q"], "a backslash before 'q'"),
        (["--format", "%k"], "%k needs --key-field"),
        (["--format", "%s", "--key-field", "m"], "--key-field has no effect"),
        (["--format", "%s", "--json"], "exclude each other"),
        (["--grep", "("], "not a regular expression"),
        (["--follow", "--to", "tail"], "--to has no effect"),
        (["--slice", "--from", "head"], "--from has no effect"),
    ):
        assert says in shell.run("read", "home", "layouts", *wrong, code=1).stderr.replace("\n", " "), wrong


def test_a_reader_that_goes_away_is_no_trouble(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, shell: Shell
) -> None:
    shell.run("write", "home", "long", "--create", "1", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 100_000)
    line = f"{sys.executable} -m nadi.cli.app read home long --controller {server.controller_uri} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert done.stdout == b"x" * 99 + b"\n"
    assert done.stderr == b""


class _Failing:
    """A reader whose blocks and errors are given."""

    def __init__(self, *given: tuple[int, EventBlock] | Exception | None) -> None:
        self._given = list(given)

    def next_block(self, timeout: float | None = None) -> tuple[int, EventBlock] | None:
        found = self._given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def __enter__(self) -> _Failing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_reader_that_follows_goes_on_where_it_can(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    block, _ = whole_events(memoryview(event_header(1) + b"a"))
    reader: Any = _Failing(
        UnavailableError("the server is away"), (0, block), TruncatedError("home/x/0", 0, 9), (0, block), None
    )
    print_events(reader, Printer(lambda _, offsets: []), follow=True)
    found = capfdbinary.readouterr()
    assert found.out == b"a\na\n"
    trying, missed = found.err.decode().splitlines()
    assert trying == "trying again: the server is away"
    assert missed.startswith("missed, and continuing after it: offset 0 ")
