"""Deleting something that doesn't exist fails with exit code 1 and an error, for all kinds of things."""

from __future__ import annotations

import pytest

from tests.cli.test_streams import Shell

NONE = {
    "scope delete none --yes": "scope none",
    "stream delete home none --yes": "stream home/none",
    "group delete home none --yes": "reader group home/none",
    "table delete home none --yes": "table home/none",
    "table remove home rooms none": "key none",
    "bookmark delete home none --yes": "bookmark home/none",
    "slice delete home none": "slice home/none",
    "stream-table delete home none": "stream table home/none",
    "function delete home none --yes": "function home/none",
    "function settle home none": "function home/none",
    "function stop home none": "function home/none",
    "processor delete home none/none --yes": "processor home/none/none",
    "processor stop home none/none": "processor home/none/none",
    "lake delete home none-lake --yes": "lake home/none-lake",
    "search delete home none --yes": "stream home/none",
    "search delete home meters --yes": "home/meters",
    "search standing delete home meters --yes": "home/meters",
    "search standing remove home meters none": "home/meters",
}


@pytest.fixture(scope="module")
def things(shell: Shell) -> Shell:
    shell.run("stream", "create", "home", "meters")
    shell.run("table", "create", "home", "rooms", "--key-bytes", "16")
    return shell


@pytest.mark.parametrize("command", NONE)
def test_command_on_a_missing_thing_fails_and_names_it(things: Shell, command: str) -> None:
    done = things.run(*command.split(), code=1)
    assert done.stdout == ""
    assert NONE[command] in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("command", [command for command in NONE if command.endswith("--yes")])
def test_no_question_is_asked_about_a_missing_thing(things: Shell, command: str) -> None:
    done = things.run(*command.removesuffix(" --yes").split(), code=1)
    assert "Delete" not in done.output
    assert NONE[command].split()[-1] in done.stderr.replace("\n", " ")
