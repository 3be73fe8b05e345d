"""Help and completion are fast because they load neither client nor server, nor their libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import StreamManager
from nadi.testing import RestartableServer

CLIENT = {"nadi.client", "grpc", "google.protobuf", "pyarrow", "numpy", "asyncio", "uvloop", "msgspec", "mmh3", "jwt"}
SERVER = {"nadi.segmentstore", "nadi.controller", "nadi.standalone.server", "starlette", "uvicorn", "lmdb", "obstore"}


def modules_after(script: str) -> set[str]:
    """Run a script in a separate process; return the modules loaded at its end, even after SystemExit."""
    end = "import atexit, sys\natexit.register(lambda: print('\\nLOADED', *sys.modules))\n"
    result = subprocess.run([sys.executable, "-c", end + script], text=True, capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED")[2].split())


def command(*arguments: str) -> str:
    return f"import sys\nsys.argv = {['nadi', *arguments]!r}\nfrom nadi.cli.app import main\nmain()\n"


@pytest.mark.parametrize("words", [(), ("up",), ("read",), ("passwd",), ("repair",), ("stream", "create")])
def test_help_loads_neither_client_nor_server(words: tuple[str, ...]) -> None:
    loaded = modules_after(command(*words, "--help"))
    assert "nadi.cli.app" in loaded
    assert loaded.isdisjoint(CLIENT | SERVER)


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_neither_commands_nor_rich(option: str) -> None:
    loaded = modules_after(command(option))
    assert {name for name in loaded if name.startswith("nadi.cli")} == {"nadi.cli", "nadi.cli.app", "nadi.cli.printing"}
    assert loaded.isdisjoint(CLIENT | SERVER | {"rich"})


def test_help_lists_all_commands() -> None:
    assert CliRunner().invoke(app, "--version").output == f"nadi {nadi.__version__}\n"
    listed = CliRunner().invoke(app, "--help", env={"COLUMNS": "120"}).output.partition("Commands:")[2].splitlines()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert [line.split()[0] for line in listed if line] == list(commands)
    for name in commands:
        assert commands[name].get_short_help_str(), name


def test_completion_loads_neither_client_nor_server() -> None:
    environment = {"_NADI_COMPLETE": "complete_bash", "COMP_WORDS": "nadi stream ", "COMP_CWORD": "2"}
    loaded = modules_after(f"import os\nos.environ.update({environment})\n{command()}")
    assert "nadi.cli.streams" in loaded
    assert loaded.isdisjoint(CLIENT | SERVER | {"rich"})


def test_package_import_loads_no_other_modules() -> None:
    loaded = modules_after("import nadi")
    assert {name for name in loaded if name.startswith("nadi")} == {"nadi"}
    assert loaded.isdisjoint(CLIENT | SERVER | {"rich", "typer", "logging"})


def test_client_and_parent_of_a_server_load_no_server_modules() -> None:
    assert modules_after("import nadi\nnadi.StreamManager").isdisjoint(SERVER | {"typer", "rich", "pyspark", "pandas"})
    assert modules_after("import nadi\nnadi.embedded\nnadi.ServerSecurity").isdisjoint(CLIENT - {"msgspec"} | SERVER)


def test_client_command_loads_no_server_modules(nadi_server: RestartableServer) -> None:
    loaded = modules_after(command("scope", "list", "--json", "--controller", nadi_server.controller_uri))
    assert "nadi.client" in loaded
    assert loaded.isdisjoint(SERVER | {"rich"})


@pytest.mark.parametrize(
    ("words", "never"),
    [
        (("stream", "list", "busy"), {"numpy", "pyarrow", "duckdb", "pandas", "nadi.cli.events.read", "nadi.cli.lake"}),
        (("read", "busy", "st"), {"pyarrow", "duckdb", "pandas", "rich", "nadi.cli.streams"}),
        (("write", "busy", "st"), {"duckdb", "pandas", "nadi.cli.streams"}),
        (("sql", "select event, append_time from busy.st"), {"pandas", "nadi.cli.streams"}),
    ],
    ids=["stream list", "read", "write", "sql"],
)
def test_client_command_loads_only_modules_it_uses(
    nadi_server: RestartableServer, words: tuple[str, ...], never: set[str]
) -> None:
    """Each excluded module would add tens of milliseconds to every command."""
    if words[0] == "sql":
        pytest.importorskip("duckdb")
    with StreamManager(nadi_server.controller_uri) as manager:
        manager.create_scope("busy")
        manager.create_stream("busy", "st")
        with manager.create_writer("busy", "st") as writer:
            writer.write_event(b"12 Wh")
    loaded = modules_after(command(*words, "--controller", nadi_server.controller_uri))
    assert "nadi.client" in loaded
    assert not loaded & never


def test_server_loads_neither_client_nor_arrow() -> None:
    loaded = modules_after("import nadi.standalone.server")
    assert "nadi.segmentstore" in loaded
    assert loaded.isdisjoint({"nadi.client", "pyarrow", "pandas", "typer", "rich"})


def test_spark_schema_is_determined_without_a_client() -> None:
    """Spark starts a separate process for it before the first row of each session."""
    loaded = modules_after(
        "import pyspark_nadi\n"
        "source = pyspark_nadi.DefaultSource({'columns': 'offset'})\n"
        "assert source.schema() == 'offset long'"
    )
    assert loaded.isdisjoint(CLIENT - {"asyncio"} | SERVER)


def test_server_is_ready_before_it_loads_numpy_and_its_rest_port(tmp_path: Path) -> None:
    loaded = modules_after(
        "import asyncio\n"
        "from nadi.config import ServerConfig\n"
        "from nadi.standalone.assembly import serve\n"
        "from nadi.standalone.server import Server\n"
        "stop = asyncio.Event()\n"
        f"config = ServerConfig(data={str(tmp_path / 'data')!r}, port=0, store_port=0, rest_port=0)\n"
        "asyncio.run(serve(Server(config), lambda server: stop.set(), stop))\n"
    )
    assert "nadi.standalone.server" in loaded
    assert loaded.isdisjoint({"numpy", "starlette", "uvicorn", "nadi.web", "nadi.client"})
