"""A command that deletes what isn't there says so on standard error, and exits with 1: of all kinds of things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from tests.cli.test_streams import Shell

NONE = {
    "scope delete none --yes": "no scope none",
    "stream delete home none --yes": "no stream home/none",
    "group delete home none --yes": "no reader group home/none",
    "table delete home none --yes": "no table home/none",
    "table remove home rooms none": "no key none",
    "bookmark delete home none": "no bookmark none",
    "slice delete home none": "no slice none",
    "stream-table drop home none": "no table none",
    "function delete home none --yes": "no function home/none",
    "function forget home none": "no function home/none",
    "lake forget home.none --yes": "no lake home/none-lake",
    "search drop home none --yes": "no stream home/none",
    "search drop home meters --yes": "stream home/meters has no search index",
    "search standing drop home meters --yes": "stream home/meters has no standing queries",
    "search standing remove home meters none": "stream home/meters has no standing queries",
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server:
        shell = Shell(server.controller_uri)
        shell.run("scope", "create", "home")
        shell.run("stream", "create", "home", "meters")
        shell.run("table", "create", "home", "rooms", "--key-bytes", "16")
        yield shell


@pytest.mark.parametrize("command", NONE)
def test_what_is_not_there(shell: Shell, command: str) -> None:
    done = shell.run(*command.split(), code=1)
    assert done.stdout == ""
    assert NONE[command] in done.stderr.replace("\n", " ")
