"""`nadi function` as used by people and service managers: real processes, signals, options."""

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
from .support import HANDLERS, quick_function, read, read_all, running, streams, until_workers, write

NADI = [sys.executable, "-m", "nadi.cli.app"]
SLOW = """
import time
from nadi.functions import HandlerEvent, function

@function("{scope}", "in", output="out", name="slow", batch_events=50)
def slow(event: HandlerEvent) -> bytes:
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


async def test_ctrl_c_finishes_and_records_the_current_batch(
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
    assert rest[: len(done) + 20] == [f"k{i % 16} {i}".encode() for i in range(len(done) + 20)]  # no repeats


async def test_function_commands_show_stop_and_delete(
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
            while " 49 " not in listed:  # reports are up to a second late
                listed = await nadi_command(nadi_server, "function", "list", nadi_scope)
        assert f"{nadi_scope}/in" in listed
        shown = await nadi_command(nadi_server, "function", "status", nadi_scope, "checked")
        assert "ValueError: no such meter" in shown
        assert "1 to 16" in shown
        delete = ("function", "delete", nadi_scope, "checked", "--yes")
        refused = await nadi_command(nadi_server, *delete, code=1)
        assert f"`nadi function stop {nadi_scope} checked`" in refused
        await nadi_command(nadi_server, "function", "settle", nadi_scope, "checked", code=1)
        await nadi_command(nadi_server, "function", "stop", nadi_scope, "checked")
        await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0
    shown = json.loads(await nadi_command(nadi_server, "function", "show", nadi_scope, "checked", "--json"))
    assert (shown[0]["output"], shown[0]["stopped"]) == (f"{nadi_scope}/out", True)
    assert " 0 " in await nadi_command(nadi_server, "function", "settle", nadi_scope, "checked")
    await nadi_command(nadi_server, *delete)
    assert "checked" not in await nadi_command(nadi_server, "function", "list", nadi_scope)


def test_run_command_with_invalid_options_fails() -> None:
    here = ["--scope", "s", "--stream", "t"]
    for named, arguments in (
        ("--target", []),
        ("--scope", [f"{HANDLERS}:echo"]),
        ("--mode", [f"{HANDLERS}:echo", *here, "--mode", "batched"]),
        ("output", [f"{HANDLERS}:echo", *here, "--exactly-once"]),
        ("--delivery", [f"{HANDLERS}:echo", *here, "--exactly-once", "--delivery", "at-most-once"]),
        ("'nothing'", [f"{HANDLERS}:nothing", *here]),
        ("'no_such_module'", ["no_such_module:echo", *here]),
        ("memory_mib", ["--target", "http://127.0.0.1:1", *here, "--memory-mib", "100"]),
        ("--header", ["--target", "http://127.0.0.1:1", *here, "--header", "nonsense"]),
    ):
        result = CliRunner().invoke(app, ["function", "run", *arguments])
        assert (result.exit_code, "Traceback" in result.output) == (2, False), arguments
        assert named in result.output, arguments


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


def test_function_invalid_options_fail() -> None:
    def local(event: HandlerEvent) -> None: ...

    good = {"scope": "s", "stream": "t", "handler": "m:f"}
    for named, wrong in (
        ("handler", {"handler": None}),
        ("target", {"target": TargetAddress("http://x")}),
        ("local", {"handler": local}),
        ("lambda", {"handler": lambda event: None}),
        ("max_workers", {"min_workers": 5, "max_workers": 4}),
        ("batch_events", {"batch_events": 0}),
        ("batch_ms", {"batch_events": 1, "batch_ms": 5}),
        ("retry_longest_s", {"retry_first_s": 5, "retry_longest_s": 1}),
        ("output", {"output": "t"}),
        ("dead-letter", {"dead_letters": "s/t"}),
        ("a/b", {"output": "a/b/c"}),
        ("start", {"start": "middle"}),
        ("by_batch", {"handler": None, "target": TargetAddress("http://x"), "by_batch": True}),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            Function(**{**good, **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="takes_too_much"):
        function("s", "t")(takes_too_much)
    with pytest.raises(InvalidArgumentError):
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
def test_function_option_of_wrong_type_names_it(option: str, value: Any) -> None:
    good: dict[str, Any] = {"scope": "home", "stream": "meters", "handler": "m:f"}
    with pytest.raises(InvalidArgumentError, match=option):
        Function(**good | {option: value})
    assert Function(**good).changed(retries=2).retries == 2


@pytest.mark.parametrize("path", ["", "a..b", r"a\.b", "$.a", "a['b']"])
def test_function_invalid_key_field_fails(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="key_field"):
        Function(scope="home", stream="meters", handler="m:f", key_field=path)


async def test_target_without_packages_names_the_extra(
    manager: StreamManager, nadi_scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(manager, nadi_scope)
    monkeypatch.delitem(sys.modules, "nadi.functions.handlers.target", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(FunctionError, match=r"nadi\[functions\]"):
        await serve(Function(scope=nadi_scope, stream="in", target=TargetAddress("http://127.0.0.1:1")), manager)


def test_handlers_do_not_import_the_client() -> None:
    """The handler's process must start in a tenth of a second."""
    program = """
        import sys
        import nadi.functions.handlers.process
        from nadi.functions import Context, HandlerEvent, Reject, function
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


async def test_record_has_final_counts_and_error(manager: StreamManager, nadi_scope: str) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 50)
    function = quick_function(nadi_scope, "echo", output="out")
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


async def test_function_of_a_deleted_stream_is_listed_with_others(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    await streams(manager, nadi_scope)
    await write(manager, nadi_scope, 0, 50)
    function = quick_function(nadi_scope, "echo", output="out")
    async with running(function, manager):
        await read(manager, nadi_scope, "out", 50)
    await manager.seal_stream(nadi_scope, "in")
    await manager.delete_stream(nadi_scope, "in")
    [row] = json.loads(await nadi_command(nadi_server, "function", "list", nadi_scope, "--json"))
    assert (row["events"], row["unread_bytes"]) == (50, None)
    await manager.create_stream(nadi_scope, "in", 1)
    assert "echo" in await nadi_command(nadi_server, "function", "list", nadi_scope)
    assert "echo" in await nadi_command(nadi_server, "function", "status", nadi_scope, function.name)
