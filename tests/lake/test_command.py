"""`nadi lake`: started, looked at, stopped and forgotten from the shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import nadi
import nadi.lake
from nadi.cli.app import app
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .world import a_lake, catalog_in, catch_up, streams, write


def nadi_command(uri: str, *words: str, given: str = "") -> Result:
    return CliRunner().invoke(app, words, env={"NADI_CONTROLLER": uri}, input=given)


def command(uri: str, *words: str) -> Result:
    return nadi_command(uri, "lake", *words)


def test_a_lake_from_its_start_to_its_end(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    uri = nadi_server.controller_uri
    streams(manager, scope)
    write(manager, scope, 1, 21, wrong=10)
    properties = [word for key, value in catalog_in(tmp_path).items() for word in ("--catalog", f"{key}={value}")]
    options = ["--table", "home.meters", "--format", "json", "--schema", "wh long", "--dead-letter", "dead"]
    done = command(uri, "run", scope, "meters", *options, *properties, "--every", "0.1", "--once")
    assert (done.exit_code, "18 rows, 2 dead letters" in done.stdout) == (0, True), done.stderr
    again = subprocess.Popen(
        [sys.executable, "-m", "nadi.cli.app", "lake", "run", scope, "meters"],
        env={**os.environ, "NADI_CONTROLLER": uri},
    )
    try:
        until(lambda: [one.state for one in nadi.lake.status(manager, scope, "meters-lake").writers] == ["level"])
        write(manager, scope, 21, 26)
        until(lambda: nadi.lake.status(manager, scope, "meters-lake").rows == 23)
        refused = command(uri, "delete", scope, "meters-lake", "--yes")
        assert (refused.exit_code, "stop it first" in refused.stderr) == (1, True)
        assert command(uri, "stop", scope, "meters-lake").exit_code == 0
        assert again.wait(60) == 0
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait()
    assert "stopped" in command(uri, "status", scope, "meters-lake").stdout
    (row,) = json.loads(command(uri, "list", scope, "--json").stdout)
    assert (row["lake"], row["wanted"], row["writers"]) == ("meters-lake", "no", 0)
    assert command(uri, "delete", scope, "meters-lake", "--yes").exit_code == 0
    assert "has no lakes" in command(uri, "list", scope).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "home", "meters", "--catalog", "a=1", "--catalog", "a=2"], "twice"),
        (["run", "home", "meters", "--once", "--define-only"], "exclude each other"),
        (["status", "home", "none"], "no lake"),
    ],
)
def test_what_cannot_be_meant_is_said(nadi_server: RestartableServer, words: list[str], said: str) -> None:
    done = command(nadi_server.controller_uri, *words)
    assert (done.exit_code, said in done.stderr.replace("\n", " ")) == (1, True), done.stderr


def test_queries_read_table_and_stream_and_deleting_the_stream_names_its_lake(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    uri = nadi_server.controller_uri
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 1, 11)
    catch_up(manager, lake)
    manager.bookmarks(scope).create("monday", manager.stream_info(scope, "meters").tail)
    write(manager, scope, 11, 21)
    total = "select sum(wh)::long as wh from"
    for stretch, expected in {
        f"{scope}.meters for lake": 210,
        f"{scope}.meters for lake as of 'monday' where wh > 1": 54,
        f"{scope}.meters for lake m join {scope}.meters for lake as of 'monday' o using (wh)": 55,
    }.items():
        done = nadi_command(uri, "sql", f"{total} {stretch}", "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, [{"wh": expected}]), done.output
    manager.seal_stream(scope, "meters")
    asked = nadi_command(uri, "stream", "delete", scope, "meters", given="n\n")
    assert (asked.exit_code, f"table {lake.table} of lake meters-lake" in asked.output) == (1, True)
    assert "nadi lake rebuild" in nadi_command(uri, "stream", "delete", scope, "meters", "--yes").output
