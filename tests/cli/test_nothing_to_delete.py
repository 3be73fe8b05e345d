"""A command that deletes what isn't there says so on standard error, and exits with 1: of all kinds of things."""

from __future__ import annotations

import pytest

from tests.cli.test_streams import Shell

NONE = {
    "scope delete none --yes": "no scope none",
    "stream delete home none --yes": "no stream home/none",
    "group delete home none --yes": "no reader group home/none",
    "table delete home none --yes": "no table home/none",
    "table remove home rooms none": "no key none",
    "bookmark delete home none --yes": "no bookmark home/none",
    "slice delete home none": "no slice home/none",
    "stream-table delete home none": "no stream table home/none",
    "function delete home none --yes": "no function home/none",
    "function settle home none": "no function home/none",
    "function stop home none": "no function home/none",
    "processor delete home none/none --yes": "no processor home/none/none",
    "processor stop home none/none": "no processor home/none/none",
    "lake delete home none-lake --yes": "no lake home/none-lake",
    "search delete home none --yes": "no stream home/none",
    "search delete home meters --yes": "stream home/meters has no search index",
    "search standing delete home meters --yes": "stream home/meters has no standing queries",
    "search standing remove home meters none": "stream home/meters has no standing queries",
}


@pytest.fixture(scope="module")
def things(shell: Shell) -> Shell:
    shell.run("stream", "create", "home", "meters")
    shell.run("table", "create", "home", "rooms", "--key-bytes", "16")
    return shell


@pytest.mark.parametrize("command", NONE)
def test_what_is_not_there(things: Shell, command: str) -> None:
    done = things.run(*command.split(), code=1)
    assert done.stdout == ""
    assert NONE[command] in done.stderr.replace("\n", " ")
