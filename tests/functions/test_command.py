"""`nadi function`, as people and service managers use it: real processes, signals, options."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nadi.cli.app import app
from nadi.client.aio import StreamManager
from nadi.errors import InvalidArgumentError, NadiError, StreamSealedError
from nadi.functions import Function, FunctionError, HandlerEvent, Reject, TargetAddress, function, serve
from nadi.functions.definition import function_of
from nadi.functions.progress import Counters, FunctionProgressRecord, FunctionRecord
from nadi.testing import RestartableServer

from .command import nadi_command
from .support import HANDLERS, a_function, read, read_all, running, streams, until_workers, write

NADI = [sys.executable, "-m", "nadi.cli.app"]
SLOW = """
import time
from nadi.functions import Event, function

@function("{scope}", "in", output="out", name="slow", batch_events=50)
def slow(event: Event) -> bytes:
    time.sleep(0.05)
    return event.data
"""


def takes_too_much(event: HandlerEvent, one: int, two: int, three: int) -> None: ...


@contextmanager
def running_command(
    server: RestartableServer, *arguments: str, folder: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*NADI, "function", "run", *arguments],
        env={**os.environ, "NADI_CONTROLLER": server.controller_uri},
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_ctrl_c_finishes_and_records_what_is_in_hand(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str, tmp_path: Path
) -> None:
    await streams(manager, nadi_scope, 1)
    await write(manager, nadi_scope, 0, 400)
    (tmp_path / "slowly.py").write_text(SLOW.format(scope=nadi_scope))
    with running_command(nadi_server, "slowly:slow", folder=tmp_path) as process:
        await read(manager, nadi_scope, "out", 5)
        process.send_signal(signal.SIGINT)
        _, logs = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, logs
    assert "nadi.functions.slow: worker w1 started" in logs
    done = await read_all(manager, nadi_scope, "out")
    assert len(done) < 300
    group = await manager.reader_group_manager(nadi_scope).get_reader_group("slow")
    assert await group.online_readers() == []
    with running_command(nadi_server, "slowly:slow", "--timeout", "60", "--max", "2", folder=tmp_path):
        await read(manager, nadi_scope, "out", len(done) + 20)
    rest = await read_all(manager, nadi_scope, "out")
    assert rest[: len(done) + 20] == [f"k{i % 16} {i}".encode() for i in range(len(done) + 20)]  # nothing twice


async def test_others_see_what_it_does_and_a_stopped_one_can_be_deleted(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 50, poison=(7,))
    handler = f"{HANDLERS}:raise_at_poison"
    options = ["--scope", nadi_scope, "--stream", "in", "--name", "checked", "--retries", "1", "--min", "1"]
    with running_command(nadi_server, handler, *options, "--output", "out", "--dead-letter", "dead") as process:
        await read(manager, nadi_scope, "out", 49)
        await read(manager, nadi_scope, "dead", 1)
        await until_workers(manager, Function(scope=nadi_scope, stream="in", handler=handler, name="checked"), 1, 2)
        listed = ""
        async with asyncio.timeout(60):
            while " 49 " not in listed:  # the last report takes a second
                listed = await nadi_command(nadi_server, "function", "list", nadi_scope)
        assert f"{nadi_scope}/in" in listed
        shown = await nadi_command(nadi_server, "function", "status", nadi_scope, "checked")
        assert "ValueError: no such meter" in shown
        assert "1 to 16" in shown
        delete = ("function", "delete", nadi_scope, "checked", "--yes")
        refused = await nadi_command(nadi_server, *delete, code=1)
        assert f"`nadi function stop {nadi_scope} checked`" in refused
        refused = await nadi_command(nadi_server, "function", "settle", nadi_scope, "checked", code=1)
        assert "stop it first" in refused
        assert "stopped function" in await nadi_command(nadi_server, "function", "stop", nadi_scope, "checked")
        await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0
    shown = json.loads(await nadi_command(nadi_server, "function", "show", nadi_scope, "checked", "--json"))
    assert (shown[0]["output"], shown[0]["stopped"]) == (f"{nadi_scope}/out", True)
    assert "0 outputs" in await nadi_command(nadi_server, "function", "settle", nadi_scope, "checked")
    assert "deleted function" in await nadi_command(nadi_server, *delete)
    assert "No functions" in await nadi_command(nadi_server, "function", "list", nadi_scope)


def test_what_has_no_effect_or_is_missing_is_an_error() -> None:
    here = ["--scope", "s", "--stream", "t"]
    for arguments, why in (
        ([], "--target"),
        ([f"{HANDLERS}:echo"], "say what triggers it"),
        ([f"{HANDLERS}:echo", *here, "--mode", "batched"], "--target"),
        ([f"{HANDLERS}:echo", *here, "--exactly-once"], "name one"),
        ([f"{HANDLERS}:echo", *here, "--exactly-once", "--delivery", "at-most-once"], "--delivery"),
        ([f"{HANDLERS}:nothing", *here], "has no 'nothing'"),
        (["no_such_module:echo", *here], "there is no module"),
        (["--target", "http://127.0.0.1:1", *here, "--memory-mib", "100"], "a target has none"),
        (["--target", "http://127.0.0.1:1", *here, "--header", "nonsense"], "Name: value"),
    ):
        result = CliRunner().invoke(app, ["function", "run", *arguments])
        assert result.exit_code == 1
        assert why in " ".join(result.output.split()), arguments


def test_options_of_the_command_replace_those_of_the_decorator(tmp_path: Path) -> None:
    path = tmp_path / "decorated.py"
    path.write_text(SLOW.format(scope="home"))
    found = function_of(f"{path}:slow", None, "other", {"retries": 9})
    assert (found.scope, found.stream, found.retries, found.batch_events, found.output) == (
        "home",
        "other",
        9,
        50,
        "out",
    )
    assert found.changed(name="twin").name == "twin"


def test_functions_that_make_no_sense_are_refused() -> None:
    def local(event: HandlerEvent) -> None: ...

    good = {"scope": "s", "stream": "t", "handler": "m:f"}
    for wrong, why in (
        ({"handler": None}, "a handler or a target"),
        ({"target": TargetAddress("http://x")}, "a handler or a target"),
        ({"handler": local}, "at the top of a module"),
        ({"handler": lambda event: None}, "at the top of a module"),
        ({"min_workers": 5, "max_workers": 4}, "max_workers is from 5"),
        ({"batch_events": 0}, "batch_events is from 1"),
        ({"batch_events": 1, "batch_ms": 5}, "allows no more"),
        ({"retry_first_s": 5, "retry_longest_s": 1}, "retry_longest_s is from 5"),
        ({"output": "t"}, "would never end"),
        ({"dead_letters": "s/t"}, "would never end"),
        ({"output": "a/b/c"}, "not a scope name"),
        ({"start": "middle"}, "at the head or at the tail"),
        ({"handler": None, "target": TargetAddress("http://x"), "by_batch": True}, "about a handler"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            Function(**{**good, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="can't be called with"):
        function("s", "t")(takes_too_much)
    with pytest.raises(InvalidArgumentError, match="it can't be called"):
        Function(scope="s", stream="t", target=TargetAddress("http://x"))(None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", None), ("name", 5), ("start", 5), ("min_workers", "1"), ("max_workers", None),
        ("idle_s", "x"), ("batch_events", 1.5), ("batch_ms", None), ("by_batch", "x"), ("timeout_s", None),
        ("memory_mib", "x"), ("retries", True), ("retry_first_s", "1"), ("dead_letters", 5), ("output", 5),
        ("delivery", "x"), ("key_field", 5), ("skip_damage", "x"),
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_refused_by_its_name(option: str, value: Any) -> None:
    good: dict[str, Any] = {"scope": "home", "stream": "meters", "handler": "m:f"}
    with pytest.raises(InvalidArgumentError, match="starts at the head" if option == "start" else option):
        Function(**good | {option: value})
    assert Function(**good).changed(retries=2).retries == 2


@pytest.mark.parametrize("path", ["", "a..b", r"a\.b", "$.a", "a['b']"])
def test_key_field_that_is_not_a_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^key_field .* is not a field: "):
        Function(scope="home", stream="meters", handler="m:f", key_field=path)


async def test_a_target_without_its_packages_says_what_to_install(
    manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(manager, nadi_scope)
    monkeypatch.delitem(sys.modules, "nadi.functions.handlers.target", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(FunctionError, match=r"pip install 'nadi\[functions\]'"):
        await serve(Function(scope=nadi_scope, stream="in", target=TargetAddress("http://127.0.0.1:1")), manager)


def test_handlers_know_nothing_of_the_client() -> None:
    """So that a process starts in a tenth of a second."""
    program = """
        import sys
        import nadi.functions.handlers.process
        from nadi.functions import Context, Event, Reject, function
        print(any(name.startswith(("nadi.client", "grpc", "pyarrow", "numpy")) for name in sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
    assert issubclass(Reject, Exception)
    assert not issubclass(Reject, NadiError)


def test_counters_of_instances_that_end_or_die_are_kept() -> None:
    one, two = Counters(), Counters()
    one.handled(5, 0, 0)
    two.handled(7, 0, 0)
    one.last_error, one.last_error_ms, two.last_error, two.last_error_ms = "one", 10, "two", 5
    record = FunctionRecord("f", "s/t", "m:f").with_counters("one", one, ["one"])
    record = record.with_counters("two", two, ["one", "two"])
    assert (record.counts.events, record.last_error, len(record.by_instance)) == (12, "one", 2)
    two.handled(2, 0, 0)
    two.last_error, two.last_error_ms = "last words", 11
    record = record.with_counters("two", two, ["two"])
    assert (record.counts.events, record.ended.events, record.last_error) == (14, 5, "last words")
    record = record.with_counters("three", Counters(), ["three"])
    assert (record.counts.events, record.ended.events, list(record.by_instance)) == (14, 14, ["three"])


async def test_what_was_done_last_and_why_it_ended_is_seen_after_its_end(
    manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 50)
    function = a_function(nadi_scope, "echo", output="out")
    progress = FunctionProgressRecord(manager, nadi_scope, function.name)
    async with running(function, manager):
        await read(manager, nadi_scope, "out", 50)
    ended = await progress.record.find()
    assert ended is not None
    assert (ended.counts.events, await progress.running()) == (50, [])
    await manager.seal_stream(nadi_scope, "out")
    await write(manager, nadi_scope, 50, 51)
    with pytest.raises(StreamSealedError):
        async with running(function, manager) as task:
            await asyncio.wait([task], timeout=60)
    ended = await progress.record.find()
    assert ended is not None
    assert "is sealed" in ended.last_error


async def test_one_function_of_a_deleted_stream_hides_no_other(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 50)
    function = a_function(nadi_scope, "echo", output="out")
    async with running(function, manager):
        await read(manager, nadi_scope, "out", 50)
    await manager.seal_stream(nadi_scope, "in")
    await manager.delete_stream(nadi_scope, "in")
    [row] = json.loads(await nadi_command(nadi_server, "function", "list", nadi_scope, "--json"))
    assert (row["events"], row["unread bytes"]) == (50, None)
    await manager.create_stream(nadi_scope, "in", 1)
    assert "echo" in await nadi_command(nadi_server, "function", "list", nadi_scope)
    assert "echo" in await nadi_command(nadi_server, "function", "status", nadi_scope, function.name)
