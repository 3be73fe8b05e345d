"""`nadi lake` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from nadi.cli.app import app
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .world import Meters, catalog_in


def nadi_command(uri: str, *words: str, given: str = "") -> Result:
    return CliRunner().invoke(app, words, env={"NADI_CONTROLLER": uri}, input=given)


def command(uri: str, *words: str) -> Result:
    return nadi_command(uri, "lake", *words)


def test_lake_commands_manage_a_lake(nadi_server: RestartableServer, meters: Meters) -> None:
    uri = nadi_server.controller_uri
    meters.write(1, 21, wrong=10)
    properties = [word for key, value in catalog_in(meters.folder).items() for word in ("--catalog", f"{key}={value}")]
    options = ["--table", "home.meters", "--format", "json", "--schema", "wh long", "--dead-letter", "dead"]
    done = command(uri, "run", meters.scope, "meters", *options, *properties, "--every", "0.1", "--once")
    assert (done.exit_code, "18 rows, 2 " in done.stdout) == (0, True), done.stderr
    again = subprocess.Popen(
        [sys.executable, "-m", "nadi.cli.app", "lake", "run", meters.scope, "meters"],
        env={**os.environ, "NADI_CONTROLLER": uri},
    )
    try:
        until(lambda: [writer.state for writer in meters.status().writers] == ["level"])
        meters.write(21, 26)
        until(lambda: meters.status().rows == 23)
        refused = command(uri, "delete", meters.scope, "meters-lake", "--yes")
        assert (refused.exit_code, str(again.pid) in refused.stderr) == (1, True)
        assert command(uri, "stop", meters.scope, "meters-lake").exit_code == 0
        assert again.wait(60) == 0
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait()
    assert "stopped" in command(uri, "status", meters.scope, "meters-lake").stdout
    (row,) = json.loads(command(uri, "list", meters.scope, "--json").stdout)
    assert (row["lake"], row["stopped"], row["writers"]) == ("meters-lake", True, 0)
    assert command(uri, "delete", meters.scope, "meters-lake", "--yes").exit_code == 0
    assert json.loads(command(uri, "list", meters.scope, "--json").stdout) == []


@pytest.mark.parametrize(
    "words",
    [
        ["run", "home", "meters", "--catalog", "a=1", "--catalog", "a=2"],
        ["run", "home", "meters", "--once", "--define-only"],
    ],
)
def test_lake_command_with_invalid_options_fails(nadi_server: RestartableServer, words: list[str]) -> None:
    done = command(nadi_server.controller_uri, *words)
    assert (done.exit_code, "Traceback" in done.output) == (2, False), done.output


def test_queries_read_table_and_stream_and_deleting_the_stream_names_its_lake(
    nadi_server: RestartableServer, meters: Meters
) -> None:
    uri = nadi_server.controller_uri
    lake = meters.filled(1, 11)
    meters.manager.bookmarks(meters.scope).create("monday", meters.tail)
    meters.write(11, 21)
    total = "select sum(wh)::long as wh from"
    for tables, expected in {
        f"{meters.scope}.meters for lake": 210,
        f"{meters.scope}.meters for lake as of 'monday' where wh > 1": 54,
        f"{meters.scope}.meters for lake m join {meters.scope}.meters for lake as of 'monday' o using (wh)": 55,
    }.items():
        done = nadi_command(uri, "sql", f"{total} {tables}", "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, [{"wh": expected}]), done.output
    meters.manager.seal_stream(meters.scope, "meters")
    asked = nadi_command(uri, "stream", "delete", meters.scope, "meters", given="n\n")
    assert (asked.exit_code, lake.table in asked.output) == (1, True)
    assert "nadi lake rebuild" in nadi_command(uri, "stream", "delete", meters.scope, "meters", "--yes").output
