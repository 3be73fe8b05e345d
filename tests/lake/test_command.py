"""`nadi lake`: started, looked at, stopped and forgotten from the shell."""

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


def test_a_lake_from_its_start_to_its_end(nadi_server: RestartableServer, meters: Meters) -> None:
    uri = nadi_server.controller_uri
    meters.write(1, 21, wrong=10)
    properties = [word for key, value in catalog_in(meters.folder).items() for word in ("--catalog", f"{key}={value}")]
    options = ["--table", "home.meters", "--format", "json", "--schema", "wh long", "--dead-letter", "dead"]
    done = command(uri, "run", meters.scope, "meters", *options, *properties, "--every", "0.1", "--once")
    assert (done.exit_code, "18 rows, 2 dead letters" in done.stdout) == (0, True), done.stderr
    again = subprocess.Popen(
        [sys.executable, "-m", "nadi.cli.app", "lake", "run", meters.scope, "meters"],
        env={**os.environ, "NADI_CONTROLLER": uri},
    )
    try:
        until(lambda: [one.state for one in meters.status().writers] == ["level"])
        meters.write(21, 26)
        until(lambda: meters.status().rows == 23)
        refused = command(uri, "delete", meters.scope, "meters-lake", "--yes")
        assert (refused.exit_code, "stop it first" in refused.stderr) == (1, True)
        assert command(uri, "stop", meters.scope, "meters-lake").exit_code == 0
        assert again.wait(60) == 0
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait()
    assert "stopped" in command(uri, "status", meters.scope, "meters-lake").stdout
    (row,) = json.loads(command(uri, "list", meters.scope, "--json").stdout)
    assert (row["lake"], row["wanted"], row["writers"]) == ("meters-lake", "no", 0)
    assert command(uri, "delete", meters.scope, "meters-lake", "--yes").exit_code == 0
    assert json.loads(command(uri, "list", meters.scope, "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "home", "meters", "--catalog", "a=1", "--catalog", "a=2"], "twice"),
        (["run", "home", "meters", "--once", "--define-only"], "--define-only"),
        (["status", "home", "none"], "no lake"),
    ],
)
def test_what_cannot_be_meant_is_said(nadi_server: RestartableServer, words: list[str], said: str) -> None:
    done = command(nadi_server.controller_uri, *words)
    assert (done.exit_code, said in done.stderr.replace("\n", " ")) == (1, True), done.stderr


def test_queries_read_table_and_stream_and_deleting_the_stream_names_its_lake(
    nadi_server: RestartableServer, meters: Meters
) -> None:
    uri = nadi_server.controller_uri
    lake = meters.filled(1, 11)
    meters.manager.bookmarks(meters.scope).create("monday", meters.tail)
    meters.write(11, 21)
    total = "select sum(wh)::long as wh from"
    for stretch, expected in {
        f"{meters.scope}.meters for lake": 210,
        f"{meters.scope}.meters for lake as of 'monday' where wh > 1": 54,
        f"{meters.scope}.meters for lake m join {meters.scope}.meters for lake as of 'monday' o using (wh)": 55,
    }.items():
        done = nadi_command(uri, "sql", f"{total} {stretch}", "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, [{"wh": expected}]), done.output
    meters.manager.seal_stream(meters.scope, "meters")
    asked = nadi_command(uri, "stream", "delete", meters.scope, "meters", given="n\n")
    assert (asked.exit_code, f"table {lake.table} of lake meters-lake" in asked.output) == (1, True)
    assert "nadi lake rebuild" in nadi_command(uri, "stream", "delete", meters.scope, "meters", "--yes").output
