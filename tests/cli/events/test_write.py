"""`nadi write`: inputs, routing keys and the report of stored events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.cli.events.lines import Splitter
from nadi.model.keyspace import key_position
from nadi.standalone import ServerSecurity
from tests.access.support import GRANTS, PASSWORD, user, users_file
from tests.cli.test_streams import Shell


def events(manager: nadi.StreamManager, stream: str) -> list[bytes]:
    end = manager.cuts("home", stream).tail()
    with manager.create_reader("home", stream, end=end) as reader:
        return [event for _, block in reader for event in block]


def test_write_stores_each_line_as_an_event(shell: Shell, manager: nadi.StreamManager) -> None:
    done = shell.run("write", "home", "lines", "--create", "1", stdin=b"one\n\n\xfftwo\r\nthree")
    assert done.stderr == "wrote 4 events, 13 bytes\n"
    assert done.stdout == ""
    assert events(manager, "lines") == [b"one", b"", b"\xfftwo\r", b"three"]
    assert shell.run("write", "home", "lines", "--quiet", stdin=b"four\n").output == ""
    assert shell.run("write", "home", "lines", stdin=b"").stderr == "wrote 0 events, 0 bytes\n"
    assert events(manager, "lines")[4:] == [b"four"]


def test_write_reads_files_in_order(shell: Shell, manager: nadi.StreamManager, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\n2")
    second.write_bytes(b"3\n")
    shell.run("write", "home", "files", str(first), "-", str(second), "--create", "1", stdin=b"between\n")
    assert events(manager, "files") == [b"1", b"2", b"between", b"3"]
    missing = shell.run("write", "home", "files", str(first), str(tmp_path / "none"), code=2)
    assert str(tmp_path / "none") in missing.stderr.replace("\n", "")
    assert len(events(manager, "files")) == 4, "nothing is written if a file is missing"
    shell.run("write", "home", "files", "--whole", str(first), str(second))
    assert events(manager, "files")[4:] == [b"1\n2", b"3\n"]


def test_write_with_custom_delimiters(shell: Shell, manager: nadi.StreamManager) -> None:
    shell.run("write", "home", "cut", "--create", "1", "--delimiter", r"\0", stdin=b"a\nb\0c\0")
    shell.run("write", "home", "cut", "--delimiter", r"\x1e--", stdin=b"d\x1e--e")
    assert events(manager, "cut") == [b"a\nb", b"c", b"d", b"e"]
    for wrong, named in (
        (["--delimiter", r"\q"], r"\q"),
        (["--delimiter", ";", "--whole"], "--whole"),
        (["--key-separator", ";", "--whole"], "--whole"),
        (["--key", "a", "--key-field", "b"], "--key-field"),
    ):
        assert named in shell.run("write", "home", "cut", *wrong, code=2, stdin=b"f\n").stderr.replace("\n", " ")
    assert len(events(manager, "cut")) == 4


@pytest.mark.parametrize("delimiter", [b"\n", b"ab", b"aab"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_splitter_returns_complete_lines_for_any_chunking(delimiter: bytes, size: int) -> None:
    data = delimiter.join([b"x", b"", b"aa", b"a" * 20, b"ba", b"\n" if delimiter != b"\n" else b"", b"last"])
    splitter = Splitter(delimiter)
    lines = []
    for start in range(0, len(data), size):
        lines += splitter.feed(data[start : start + size])
    assert lines + splitter.end() == data.split(delimiter)


def test_write_takes_keys_from_options_fields_and_separators(shell: Shell, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "keys", 4)
    segments = manager.current_segments("home", "keys")

    def segment_of(key: str) -> int:
        return next(piece.segment_id for piece in segments if piece.low <= key_position(key) < piece.high)

    keys = [f"meter-{number}" for number in range(40)]
    shell.run("write", "home", "keys", "--key-separator", r"\t", stdin="".join(f"{k}\ta\t{k}\n" for k in keys).encode())
    lines = [f'{{"wh": [1, {{"m": 2}}], "m": "{k}"}}\n' for k in keys]
    shell.run("write", "home", "keys", "--key-field", "m", "--json", stdin="".join(lines).encode())
    shell.run("write", "home", "keys", "--key-field", "m", stdin=b'{"m": 17}\n')
    shell.run("write", "home", "keys", "--key", "all", stdin=b"x\n" * 40)
    segment_by_event: dict[bytes, int] = {}
    with manager.create_reader("home", "keys", end=manager.cuts("home", "keys").tail()) as reader:
        for segment, block in reader:
            for event in block:
                segment_by_event.setdefault(event, segment)
    for key, line in zip(keys, lines, strict=True):
        by_separator, by_field = segment_by_event[f"a\t{key}".encode()], segment_by_event[line.rstrip("\n").encode()]
        assert by_separator == by_field == segment_of(key), key
    assert segment_by_event[b'{"m": 17}'] == segment_of("17")
    assert segment_by_event[b"x"] == segment_of("all")


def test_write_stores_events_before_an_invalid_line(shell: Shell, manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "bad", 1)
    for options, lines, named in (
        (["--json"], b'1\n{"a": 2}\n{"a"\n3\n', "JSON"),
        (["--json"], b'1\n{"a": 2}\n{"a": "\xff"}\n3\n', "UTF-8"),
        (["--key-separator", ":"], b"a:1\nb:2\nc\nd:4\n", "':'"),
        (["--key-separator", ":"], b"a:1\nb:2\n\xff:3\nd:4\n", "UTF-8"),
        (["--key-separator", ":", "--json"], b"a:1\nb:2\nc:x\nd:4\n", "JSON"),
        (["--key-field", "m"], b'{"m": 1}\n{"m": 2}\n{"m": true}\n{"m": 4}\n', "'m'"),
        (["--key-field", "m"], b'{"m": 1}\n{"m": 2}\n[3\n{"m": 4}\n', ""),
    ):
        before = len(events(manager, "bad"))
        done = shell.run("write", "home", "bad", *options, code=2, stdin=lines)
        assert done.stderr.startswith("wrote 2 events, "), options
        assert "line 3 of standard input is not an event: " in done.stderr
        assert named in done.stderr, options
        assert len(events(manager, "bad")) == before + 2, options
        done = shell.run("write", "home", "bad", "--transaction", *options, code=2, stdin=lines)
        assert done.stderr.startswith("nothing was written"), options
        assert len(events(manager, "bad")) == before + 2, options


def test_write_in_a_transaction_reports_committed_events(shell: Shell, manager: nadi.StreamManager) -> None:
    done = shell.run("write", "home", "txn", "--create", "2", "--transaction", stdin=b"a\nb\nc\n")
    assert done.stderr == "wrote 3 events, 3 bytes\n"
    assert sorted(events(manager, "txn")) == [b"a", b"b", b"c"]


def test_write_to_a_sealed_or_missing_stream_fails(shell: Shell, manager: nadi.StreamManager) -> None:
    assert "home/none" in shell.run("write", "home", "none", code=1, stdin=b"a\n").stderr
    shell.run("write", "other", "made", "--create", "3", stdin=b"a\n")
    assert len(manager.current_segments("other", "made")) == 3
    manager.seal_stream("other", "made")
    assert "other/made" in shell.run("write", "other", "made", code=1, stdin=b"a\n").stderr


def test_write_sends_events_of_a_slow_pipe_at_once(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager
) -> None:
    manager.create_stream("home", "slow", 1)
    command = [sys.executable, "-m", "nadi.cli.app", "write", "home", "slow", "--controller", server.controller_uri]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"COLUMNS": "120"}
    ) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        with manager.create_reader("home", "slow") as reader:
            for event in (b"first", b"second"):
                program.stdin.write(event + b"\nand a par")
                program.stdin.flush()
                block = reader.next_block(60)
                assert block is not None
                assert block[1].events()[0].endswith(event)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
        assert program.stderr.read() == b"wrote 2 events, 20 bytes\n"


def test_refused_write_reports_that_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    security = ServerSecurity(users_file=str(users_file(tmp_path / "settings", GRANTS)))
    with nadi.embedded(tmp_path / "data", security=security) as server:
        with nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "clicks")
        for name, value in (("method", "Basic"), ("username", "reader"), ("password", PASSWORD)):
            monkeypatch.setenv(f"pravega_client_auth_{name}", value)
        done = Shell(server.controller_uri).run("write", "home", "clicks", stdin=b"one\ntwo\n", code=1)
    assert done.stderr.startswith("wrote 0 events, 0 bytes\n")
